"""The one table of options. A row gives a key its flags and its meaning; type, range and default stand in `schema.py`.

From this table come the parser, the help, the environment names, the merged printout and `docs/configuration.md`.
Flags are llama.cpp's where it has the option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as mi

from outrider.config import forms
from outrider.config.schema import Config, Section
from outrider.config.values import describe, parse_text

ENV_PREFIX = "OUTRIDER_"
#: Defaults that another key's value changes: (key, value) -> (key, its default then).
IMPLIED = {("speculative.schedule", "lockstep"): ("speculative.n_max", 3)}  # llama.cpp's; what chooses may go further


@dataclass(frozen=True, slots=True)
class Option:
    """One key. `parse` reads a text form of its own (else the type's); `follows` names the key whose value it takes
    where nothing sets it; `adds` makes repeated flags add up to one list; `path` marks file names; `switch` marks the
    flags that take no value."""

    key: str
    flags: tuple[str, ...]
    help: str
    kind: mi.Type
    type: Any
    default: Any
    metavar: str
    parse: Callable[[str], Any]
    has_own_form: bool
    follows: str = ""
    adds: bool = False
    path: bool = False

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.key.replace(".", "_").upper()

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def switch(self) -> bool:
        return isinstance(self.kind, mi.BoolType)

    @property
    def allowed(self) -> str:
        return describe(self.kind)


def _row(
    key: str,
    flags: str,
    help: str,
    metavar: str = "",
    *,
    form: Callable[[str], Any] | None = None,
    follows: str = "",
    adds: bool = False,
    path: bool = False,
) -> Option:
    kind, type_, default = _field(key)
    return Option(
        key=key,
        flags=tuple(flags.split()),
        help=help,
        kind=kind,
        type=type_,
        default=default,
        metavar=metavar or _metavar(kind),
        parse=form or (lambda text: parse_text(kind, text)),
        has_own_form=form is not None,
        follows=follows,
        adds=adds,
        path=path,
    )


def _metavar(kind: mi.Type) -> str:
    match kind:
        case mi.BoolType():
            return ""
        case mi.IntType():
            return "N"
        case mi.FloatType():
            return "X"
        case mi.LiteralType(values=values):
            return "|".join(str(value) for value in values) if len(values) < 5 else "TYPE"
        case _:
            return "TEXT"


@cache
def _fields(section: type[msgspec.Struct]) -> dict[str, tuple[mi.Type, Any, Any]]:
    """Name -> (kind, type, default) of the fields of one table."""
    info = mi.type_info(section)
    assert isinstance(info, mi.StructType)
    kinds = {field.name: field.type for field in info.fields}
    instance = section()
    return {
        field.name: (kinds[field.name], field.type, getattr(instance, field.name))
        for field in msgspec.structs.fields(section)
    }


def _field(key: str) -> tuple[mi.Type, Any, Any]:
    section: type[msgspec.Struct] = Config
    *tables, name = key.split(".")
    for table in tables:
        section = _fields(section)[table][1]
    return _fields(section)[name]


def schema_keys(section: type[msgspec.Struct] = Config, prefix: str = "") -> Iterator[str]:
    """Every key that `schema.py` knows, in its order."""
    for name, (_, type_, _) in _fields(section).items():
        if isinstance(type_, type) and issubclass(type_, Section | msgspec.Struct):
            yield from schema_keys(type_, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


_MIN_HITS = {
    "simple": "not read, as in llama.cpp",
    "map-k": "not read, as in llama.cpp",
    "map-k4v": "lookups of a key before it drafts",
}

OPTIONS: tuple[Option, ...] = (
    _row("target.model", "-m --model", "target model: a GGUF file, or package:NAME/FILE", "FILE", path=True),
    _row("target.name", "", "name of the target worker"),
    _row("target.launch", "", "start the target worker; false: it is started on its own host and connects"),
    _row("target.sha256", "", "refuse the model file unless it has this hash"),
    _row("target.engine", "--engine", "what evaluates the models; auto: llama where it is installed, else numpy"),
    _row("target.ctx_size", "-c --ctx-size", "positions per sequence; 0: what the model was trained for"),
    _row("target.batch_size", "-b --batch-size", "rows per evaluation"),
    _row("target.threads", "-t --threads", "threads of the target; 0: one per CPU that it may use"),
    _row("target.cpus", "--cpus", "CPUs that the target worker is pinned to, as 0-3,8", "LIST", form=forms.cpu_list),
    _row(
        "target.n_gpu_layers",
        "-ngl --gpu-layers --n-gpu-layers",
        "layers on the GPU: a number, auto (-1) or all (-2)",
        form=forms.gpu_layers,
    ),
    _row(
        "target.devices",
        "-dev --device",
        "devices by llama.cpp's names; none: the CPU alone; not given: all GPUs",
        "LIST",
    ),
    _row("target.cache_type_k", "-ctk --cache-type-k", "type of the cached keys (engine llama)"),
    _row("target.cache_type_v", "-ctv --cache-type-v", "type of the cached values (engine llama)"),
    _row(
        "target.flash_attn",
        "-fa --flash-attn",
        "flash attention (engine llama)",
        form=forms.flash_attention,
    ),
    _row(
        "target.chat_template_file",
        "--chat-template-file",
        "Jinja template for chat messages in place of the model's own",
        "FILE",
        path=True,
    ),
    _row(
        "draft.model",
        "-md --model-draft --spec-draft-model",
        "draft model; switches drafting on",
        "FILE",
        path=True,
    ),
    _row("draft.name", "", "name of the draft worker"),
    _row("draft.launch", "", "start the draft worker; false: it is started on its own host and connects"),
    _row("draft.sha256", "", "refuse the draft model file unless it has this hash"),
    _row("draft.engine", "--engine-draft", "what evaluates the draft model", follows="target.engine"),
    _row("draft.ctx_size", "-cd --ctx-size-draft", "positions per sequence of the draft", follows="target.ctx_size"),
    _row("draft.batch_size", "", "rows per evaluation of the draft", follows="target.batch_size"),
    _row(
        "draft.threads",
        "-td --threads-draft --spec-draft-threads",
        "threads of the draft",
        follows="target.threads",
    ),
    _row("draft.cpus", "--cpus-draft", "CPUs that the draft worker is pinned to", "LIST", form=forms.cpu_list),
    _row(
        "draft.n_gpu_layers",
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
        "layers of the draft on the GPU: a number, auto (-1) or all (-2)",
        form=forms.gpu_layers,
    ),
    _row(
        "draft.devices",
        "-devd --device-draft --spec-draft-device",
        "devices of the draft",
        "LIST",
        follows="target.devices",
    ),
    _row("draft.cache_type_k", "-ctkd --cache-type-k-draft --spec-draft-type-k", "type of the draft's cached keys"),
    _row("draft.cache_type_v", "-ctvd --cache-type-v-draft --spec-draft-type-v", "type of the draft's cached values"),
    _row(
        "draft.flash_attn",
        "",
        "flash attention of the draft",
        form=forms.flash_attention,
        follows="target.flash_attn",
    ),
    _row(
        "speculative.types",
        "--spec-type",
        "types of speculation, as a comma list",
        "LIST",
        form=forms.spec_types,
        adds=True,
    ),
    _row("speculative.n_max", "--spec-draft-n-max", "most tokens of a draft"),
    _row("speculative.n_min", "--spec-draft-n-min", "a draft of fewer tokens is dropped"),
    _row(
        "speculative.p_min",
        "--spec-draft-p-min --draft-p-min",
        "stop drafting before a token less probable than this (among the ten best)",
    ),
    _row(
        "speculative.draft_sampling",
        "--spec-draft-sampling",
        "coupled: at temp > 0 the draft samples with the noise of the target's sampler",
    ),
    _row("speculative.schedule", "--schedule", "order of drafting and verifying"),
    _row(
        "speculative.n_branches",
        "--spec-draft-n-branches",
        "schedules branches and auto: other ways on that the draft prepares",
    ),
    _row(
        "speculative.synth_len",
        "--spec-synth-len",
        "benchmark only, the text is INVALID: accept drafts at random, for this mean length",
        form=forms.synthetic_length,
    ),
    _row(
        "speculative.synth_rates",
        "--spec-synth-rates",
        "benchmark only, the text is INVALID: accept position i with this probability",
        "LIST",
        form=forms.synthetic_rates,
    ),
    *(
        row
        for kind in ("simple", "map-k", "map-k4v")
        for table in (f"speculative.ngram_{kind.replace('-', '_')}",)
        for row in (
            _row(f"{table}.size_n", f"--spec-ngram-{kind}-size-n", "tokens that must match"),
            _row(f"{table}.size_m", f"--spec-ngram-{kind}-size-m", "most tokens of a draft"),
            _row(f"{table}.min_hits", f"--spec-ngram-{kind}-min-hits", _MIN_HITS[kind]),
        )
    ),
    _row("speculative.ngram_mod.n_match", "--spec-ngram-mod-n-match", "tokens that must match"),
    _row("speculative.ngram_mod.n_min", "--spec-ngram-mod-n-min", "a draft of fewer tokens is dropped"),
    _row("speculative.ngram_mod.n_max", "--spec-ngram-mod-n-max", "most tokens of a draft"),
    _row("speculative.ngram_mod.pool", "--spec-ngram-mod-pool", "one table of n-grams per session, or one for all"),
    _row("speculative.ngram_suffix.n_min", "--spec-ngram-suffix-n-min", "tokens that must match"),
    _row("speculative.ngram_suffix.n_max", "--spec-ngram-suffix-n-max", "most tokens of a draft"),
    _row(
        "speculative.ngram_cache.static",
        "-lcs --lookup-cache-static",
        "static lookup file, only read",
        "FILE",
        path=True,
    ),
    _row(
        "speculative.ngram_cache.dynamic",
        "-lcd --lookup-cache-dynamic",
        "dynamic lookup file",
        "FILE",
        path=True,
    ),
    _row("sampling.temp", "--temp --temperature", "temperature; 0 or less: always the best token"),
    _row("sampling.seed", "-s --seed", "seed of the random numbers; -1: a new one, shown in the result"),
    _row("sampling.top_k", "--top-k", "keep the k best tokens; 0: off"),
    _row("sampling.typical_p", "--typical --typical-p", "locally typical sampling; 1: off"),
    _row("sampling.top_p", "--top-p", "keep the best tokens that hold this probability; 1: off"),
    _row("sampling.min_p", "--min-p", "drop tokens below this share of the best one's probability; 0: off"),
    _row("sampling.repeat_last_n", "--repeat-last-n", "tokens that the penalties look at; 0: off, -1: all"),
    _row("sampling.repeat_penalty", "--repeat-penalty", "divides the logits of tokens seen; 1: off"),
    _row("sampling.presence_penalty", "--presence-penalty", "taken from the logits of tokens seen; 0: off"),
    _row("sampling.frequency_penalty", "--frequency-penalty", "the same for every time they were seen; 0: off"),
    _row(
        "sampling.logit_bias",
        "-l --logit-bias",
        "add to the logit of a token; may be repeated",
        "TOKEN±BIAS",
        form=forms.logit_bias,
        adds=True,
    ),
    _row("sampling.ignore_eos", "--ignore-eos", "never sample the end of the text"),
    _row("sampling.min_tokens", "--min-tokens", "no end of the text before this many tokens"),
    _row("sampling.n_probs", "--n-probs --logprobs", "report the probabilities of this many best tokens"),
    _row(
        "sampling.post_sampling_probs", "", "report the probabilities after bias, penalties, truncation and temperature"
    ),
    _row("generation.prompt", "-p --prompt", "the prompt"),
    _row("generation.file", "-f --file", "file that holds the prompt; - reads stdin", "FILE", path=True),
    _row("generation.prompt_tokens", "--prompt-tokens", "the prompt as token ids, comma list", "LIST"),
    _row("generation.chat", "--chat", "the prompt is a message: render it by the target's chat template"),
    _row("generation.n_predict", "-n --predict --n-predict", "most tokens to generate; -1: until it ends"),
    _row(
        "generation.stop",
        "--stop",
        "end the text before this string; may be repeated",
        form=forms.stop_string,
        adds=True,
    ),
    _row(
        "generation.grammar", "--grammar", "the answer obeys this grammar, in GBNF with the start rule `root`", "GBNF"
    ),
    _row("generation.grammar_file", "--grammar-file", "file that holds the grammar", "FILE", path=True),
    _row("generation.json_schema", "-j --json-schema", "the answer is JSON that obeys this schema; {}: any", "SCHEMA"),
    _row("generation.json_schema_file", "-jf --json-schema-file", "file that holds the JSON schema", "FILE", path=True),
    _row("generation.prediction", "", "text that the answer may repeat in parts: a corpus of the ngram types"),
    _row("generation.prediction_file", "--prediction", "file that holds such a text", "FILE", path=True),
    _row("generation.json", "--json", "print one JSON object with text, tokens, timings and speculation"),
    _row("generation.stream", "--stream", "print the text as it comes, not at its end"),
    _row("generation.row_hashes", "--row-hashes", "report a hash of the logits behind every token"),
    _row("generation.explain", "--explain", "say at the end what the schedule measured, predicted and chose, and why"),
    _row("coordinator.listen", "--listen", "ipc (a private socket), ipc:///PATH or tcp://HOST:PORT", "ADDRESS"),
    _row("coordinator.address", "--address", "where workers reach the coordinator, if not at listen", "ADDRESS"),
    _row("coordinator.keys", "--keys", "folder of CURVE keys, made by `outrider keys`; tcp needs it", "DIR", path=True),
    _row("coordinator.allow", "", "names that may connect over tcp; tcp needs it"),
    _row("coordinator.allow_remote", "--allow-remote", "allow listening on other than loopback addresses"),
    _row("coordinator.n_seq", "-np --parallel", "sequences that each worker holds at once"),
    _row("coordinator.heartbeat_s", "", "seconds between signs of life"),
    _row("coordinator.lost_after_s", "", "seconds of silence after which a draft counts as lost; a target: thrice"),
    _row("coordinator.stuck_after_s", "", "seconds without progress after which a busy worker counts as lost"),
    _row(
        "coordinator.start_timeout_s",
        "",
        "seconds until the workers must be there, models loaded, and until requests give up a target that was lost",
    ),
    _row(
        "coordinator.max_restarts",
        "",
        "restarts of a worker within the window; then it stays away (draft) or all ends (target)",
    ),
    _row("coordinator.restart_window_s", "", "the window of max_restarts, in seconds"),
    _row(
        "coordinator.grace_s",
        "",
        "seconds that requests have to end after SIGTERM, and workers after that",
    ),
    _row("server.port", "--port", "port of the HTTP front; 0: any free one. `up` has a front only where this is given"),
    _row("server.host", "--host", "addresses to listen on", "LIST"),
    _row("server.alias", "--alias", "names of the model; the first in the alphabet is its id", "LIST"),
    _row("server.tags", "--tags", "tags of the model, for information", "LIST"),
    _row(
        "server.api_key_file",
        "--api-key-file",
        "file of keys, one a line; requests need one of them",
        "FILE",
        path=True,
    ),
    _row(
        "server.cors_origins",
        "--cors-origins",
        "origins whose pages may read answers; localhost: those of this machine; *: all",
        "LIST",
    ),
    _row("server.metrics", "--metrics", "serve /metrics"),
    _row("server.slots", "--slots", "serve /slots"),
    _row("server.props", "--props", "serve /props"),
    _row("server.page", "--ui", "serve the page at /"),
    _row("server.context_shift", "--context-shift", "go on with half of the text where the context is full"),
    _row("server.max_queued", "--max-queued", "requests that may wait for a free sequence; more get 429"),
    _row("server.max_body_bytes", "", "longest body of a request, in bytes"),
    _row("server.ping_s", "--sse-ping-interval", "seconds of silence after which a stream gets a comment"),
    _row("client.connect", "--connect", "use the coordinator that runs at this address", "ADDRESS"),
    _row("client.name", "--client-name", "name (and key) under which `run --connect` connects"),
    _row("log.verbose", "-v --verbose", "log more"),
    _row("log.file", "--log-file", "write the log to this file instead of stderr", "FILE", path=True),
    _row(
        "log.trace", "--trace", "write what every process did when, for Perfetto or chrome://tracing", "FILE", path=True
    ),
)

BY_KEY: dict[str, Option] = {option.key: option for option in OPTIONS}
BY_ENV: dict[str, Option] = {option.env: option for option in OPTIONS}

#: Flag -> (option, value of a switch or None). `--no-X` is the negative of every long switch `--X`.
BY_FLAG: dict[str, tuple[Option, bool | None]] = {
    **{flag: (option, True if option.switch else None) for option in OPTIONS for flag in option.flags},
    **{
        "--no-" + flag[2:]: (option, False)
        for option in OPTIONS
        if option.switch
        for flag in option.flags
        if flag.startswith("--")
    },
}

#: Flags that stand for several settings: flag -> ((key, text), …).
FLAG_SETS: dict[str, tuple[tuple[str, str], ...]] = {
    "--spec-default": (
        ("speculative.types", "ngram-mod"),
        ("speculative.ngram_mod.n_match", "24"),
        ("speculative.ngram_mod.n_min", "48"),
        ("speculative.ngram_mod.n_max", "64"),
    ),
}
