"""The configuration as typed, frozen structs: every key, its type, its range and its default.

What a key means and which flags set it stands in `options.py`, one row per key. A value here is always complete: where
a key can follow another one (a draft's threads follow the target's), merging has already put the number in.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from outrider.engine.options import MAX_SEQ, MAX_THREADS, EngineKind
from outrider.speculators.types import TYPE_NAMES
from outrider.types import MAX_TOKENS, DraftSampling, Grammar, SamplingParams, Tokens
from outrider.wire.messages import MAX_BRANCHES, MAX_DRAFT

INT32_MAX = 2**31 - 1

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
FlashAttention = Literal["on", "off", "auto"]
Schedule = Literal["lockstep", "overlap", "branches", "auto"]
NgramPool = Literal["session", "shared"]

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Address = Annotated[str, Meta(max_length=512, pattern=r"^(|(ipc|tcp)://\S+)$")]
Seconds = Annotated[float, Meta(gt=0.0, le=86400.0)]
Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Size = Annotated[int, Meta(ge=1, le=1024)]
Length = Annotated[int, Meta(ge=0, le=1024)]
Hits = Annotated[int, Meta(ge=1, le=INT32_MAX)]
MAX_CPU = 4095
GrammarText = Annotated[str, Meta(max_length=1 << 20)]
SpecType = Annotated[str, Meta(pattern=f"^({'|'.join(name for name in TYPE_NAMES if name != 'none')})$")]
Cpu = Annotated[int, Meta(ge=0, le=MAX_CPU)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables of the configuration."""


class Worker(Section, frozen=True, kw_only=True):
    """What a worker of either role needs to know of itself."""

    model: str = ""
    launch: bool = True
    sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    engine: EngineKind = "auto"
    ctx_size: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 4096
    batch_size: Annotated[int, Meta(ge=1, le=65536)] = 512
    threads: Annotated[int, Meta(ge=0, le=MAX_THREADS)] = 0
    cpus: Annotated[list[Cpu], Meta(max_length=4096)] = []
    n_gpu_layers: Annotated[int, Meta(ge=-2, le=INT32_MAX)] = -1
    devices: list[str] = []
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    flash_attn: FlashAttention = "auto"


class Target(Worker, frozen=True, kw_only=True):
    name: Name = "target"
    chat_template_file: str = ""


class Draft(Worker, frozen=True, kw_only=True):
    name: Name = "draft"


class NgramSizes(Section, frozen=True, kw_only=True):
    """Of ngram-simple, ngram-map-k and ngram-map-k4v."""

    size_n: Size = 12
    size_m: Size = 48
    min_hits: Hits = 1

    @property
    def effective_min_hits(self) -> int:
        """What the speculators compare with: llama.cpp keeps 16 bits of it."""
        return self.min_hits % 2**16


class NgramMod(Section, frozen=True, kw_only=True):
    n_match: Size = 24
    n_min: Length = 48
    n_max: Length = 64
    pool: NgramPool = "session"


class NgramSuffix(Section, frozen=True, kw_only=True):
    n_min: Size = 2
    n_max: Length = 48


class NgramCache(Section, frozen=True, kw_only=True):
    static: str = ""
    dynamic: str = ""


class Speculative(Section, frozen=True, kw_only=True):
    """`types` is empty where speculation is off; it never holds "none"."""

    types: list[SpecType] = []
    n_max: Count = 8
    n_min: Annotated[int, Meta(ge=-INT32_MAX, le=INT32_MAX)] = 0
    p_min: float = 0.0
    draft_sampling: DraftSampling = "greedy"
    schedule: Schedule = "auto"
    n_branches: Annotated[int, Meta(ge=0, le=MAX_BRANCHES)] = 16
    synth_len: float | None = None
    synth_rates: list[float] = []
    ngram_simple: NgramSizes = field(default_factory=NgramSizes)
    ngram_map_k: NgramSizes = field(default_factory=NgramSizes)
    ngram_map_k4v: NgramSizes = field(default_factory=NgramSizes)
    ngram_mod: NgramMod = field(default_factory=NgramMod)
    ngram_suffix: NgramSuffix = field(default_factory=NgramSuffix)
    ngram_cache: NgramCache = field(default_factory=NgramCache)

    @property
    def draft_n_max(self) -> int:
        """The longest draft to ask the draft worker for; 0: do not ask. A p_min above 1 lets no token pass."""
        return 0 if self.p_min > 1.0 else min(self.n_max, MAX_DRAFT)

    @property
    def draft_n_branches(self) -> int:
        """Branches that the draft worker may follow under this schedule."""
        return self.n_branches if self.schedule in ("branches", "auto") else 0

    @property
    def is_measured(self) -> bool:
        """Does the schedule choose by what decodes cost?"""
        return self.schedule != "lockstep" and "draft-simple" in self.types

    @property
    def draft_n_min(self) -> int:
        return max(0, min(self.n_min, MAX_DRAFT))

    @property
    def draft_p_min(self) -> float:
        """A probability: `p < nan` is never true, as if it were 0."""
        return min(self.p_min, 1.0) if self.p_min > 0.0 else 0.0


class Sampling(SamplingParams, frozen=True, kw_only=True, array_like=False, forbid_unknown_fields=True):
    """The fields of `SamplingParams`, as a table of the configuration."""

    def params(self) -> SamplingParams:
        """The same values as they travel to the target."""
        return SamplingParams(**{name: getattr(self, name) for name in SamplingParams.__struct_fields__})


class Generation(Section, frozen=True, kw_only=True):
    prompt: str | None = None
    file: str = ""
    prompt_tokens: Tokens | None = None
    chat: bool = False
    n_predict: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] = -1
    stop: list[Annotated[str, Meta(min_length=1, max_length=65536)]] = []
    grammar: GrammarText = ""
    grammar_file: str = ""
    json_schema: GrammarText = ""
    json_schema_file: str = ""
    prediction: str = ""
    prediction_file: str = ""
    json: bool = False
    stream: bool = True
    row_hashes: bool = False
    explain: bool = False

    @property
    def constraint(self) -> Grammar | None:
        """What the answer must obey; at most one of the two is set."""
        if self.json_schema:
            return Grammar("json_schema", self.json_schema)
        return Grammar("gbnf", self.grammar) if self.grammar else None


class Coordinator(Section, frozen=True, kw_only=True):
    listen: Annotated[str, Meta(max_length=512, pattern=r"^(ipc|ipc://\S+|tcp://\S+)$")] = "ipc"
    address: Address = ""
    keys: str = ""
    allow: list[Name] = []
    allow_remote: bool = False
    n_seq: Annotated[int, Meta(ge=1, le=MAX_SEQ)] = 1
    heartbeat_s: Annotated[float, Meta(gt=0.0, le=60.0)] = 0.5
    lost_after_s: Seconds = 3.0
    stuck_after_s: Seconds = 120.0
    start_timeout_s: Seconds = 120.0
    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 5
    restart_window_s: Seconds = 60.0
    grace_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 5.0


class Client(Section, frozen=True, kw_only=True):
    connect: Address = ""
    name: Name = "client"


class Server(Section, frozen=True, kw_only=True):
    """The HTTP front; there is none without a port."""

    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    host: list[Annotated[str, Meta(min_length=1, max_length=255)]] = field(default_factory=lambda: ["127.0.0.1"])
    alias: list[Annotated[str, Meta(min_length=1, max_length=256)]] = []
    tags: list[Annotated[str, Meta(min_length=1, max_length=256)]] = []
    api_key_file: str = ""
    cors_origins: list[Annotated[str, Meta(min_length=1, max_length=255)]] = []
    metrics: bool = True
    slots: bool = True
    props: bool = True
    page: bool = True
    context_shift: bool = False
    max_queued: Annotated[int, Meta(ge=0, le=65536)] = 64
    max_body_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = 8 << 20
    ping_s: Seconds = 30.0


class Log(Section, frozen=True, kw_only=True):
    verbose: bool = False
    file: str = ""
    trace: str = ""


class Config(Section, frozen=True, kw_only=True):
    target: Target = field(default_factory=Target)
    draft: Draft = field(default_factory=Draft)
    speculative: Speculative = field(default_factory=Speculative)
    sampling: Sampling = field(default_factory=Sampling)
    generation: Generation = field(default_factory=Generation)
    coordinator: Coordinator = field(default_factory=Coordinator)
    server: Server = field(default_factory=Server)
    client: Client = field(default_factory=Client)
    log: Log = field(default_factory=Log)
