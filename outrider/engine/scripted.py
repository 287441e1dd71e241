"""An engine without a model: logits are a hash of the tokens that the cache really holds.

Because every row depends on all rows before it, a stale, missing or doubled row changes everything after it: what is
wrong in a cache shows in the text. Two engines with the same `seed` agree, except where `disagree` says otherwise,
so drafts of any quality can be had without files. Used by tests and by benchmarks of everything but the engines.

The model's "path" is its script: `scripted:seed=1,vocab=300,disagree=20` (percent of positions at which this engine's
best token differs from that of an engine with `disagree=0`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from outrider.engine.base import Engine, Output, Span, check_room
from outrider.engine.chat_template import ChatRenderer
from outrider.errors import CacheError, ConfigError, EngineError, RequestError
from outrider.types import ModelFacts, VocabFacts

EOS = 256
N_PEAKS = 4
_MASK = (1 << 64) - 1
_N_BACKGROUNDS = 1024


@dataclass(frozen=True, slots=True)
class Script:
    """What the path of a scripted model says. `eos` is the percentage of positions whose best token ends the text."""

    seed: int = 0
    vocab: int = 300
    disagree: int = 0
    eos: int = 0
    decode_us: int = 0
    checkpoint: int = 0

    @classmethod
    def parse(cls, path: str) -> Script:
        """Raises ConfigError naming the key that is unknown or no whole number."""
        body = path.removeprefix("scripted:").removeprefix("scripted")
        known = {field.name for field in fields(cls)}
        values: dict[str, int] = {}
        for item in filter(None, body.split(",")):
            key, _, value = item.partition("=")
            if key not in known or not value.isdecimal():
                raise ConfigError(f"scripted model {path!r}: {item!r} is not KEY=NUMBER with one of {sorted(known)}")
            values[key] = int(value)
        script = cls(**values)
        if script.vocab <= EOS:
            raise ConfigError(f"scripted model {path!r}: vocab must be more than {EOS}, it is {script.vocab}")
        return script


def mix(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class ScriptedTokenizer(ChatRenderer):
    """Ids 0–255 are bytes, 256 ends a text, the rest are words."""

    chat_template: str | None = None  # None: a fixed form

    def __init__(self, n_vocab: int) -> None:
        self.vocab = VocabFacts(
            type="bpe", n_vocab=n_vocab, add_bos=False, bos=-1, add_eos=False, eos=EOS, block_hashes=[]
        )

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode())

    def piece(self, token: int) -> bytes:
        if token < EOS:
            return bytes([token])
        return b"" if token == EOS else b" w%d" % token

    def is_eog(self, token: int) -> bool:
        return token == EOS

    def shown(self, token: int) -> str:
        return ""

    def texts(self, first: int, count: int) -> list[bytes]:
        return [b"<%d>" % token for token in range(first, min(first + count, self.vocab.n_vocab))]

    def render_chat(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        if not messages:
            raise RequestError("chat: there is no message; give at least one")
        if self.chat_template is not None:
            return super().render_chat(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        return "".join(f"<{role}>{content}\n" for role, content in messages) + "<assistant>" * add_generation_prompt


class ScriptedEngine(Engine):
    """See the module's docstring. Arguments as of every engine; `path` is the script."""

    def __init__(
        self, path: str = "scripted:", *, n_ctx: int = 4096, n_batch: int = 512, n_seq: int = 1, n_branches: int = 0
    ) -> None:
        self.script = Script.parse(path)
        self.n_vocab, self.n_ctx, self.n_batch, self.n_seq = self.script.vocab, n_ctx, n_batch, n_seq
        self.n_branches = n_branches
        self.memory = "checkpoint" if self.script.checkpoint else "truncate"
        self.tokenizer = ScriptedTokenizer(self.n_vocab)
        self.facts = ModelFacts(
            engine="scripted",
            architecture="scripted",
            name=path,
            n_vocab=self.n_vocab,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_seq=n_seq,
            memory=self.memory,
            memory_bytes=0,
            has_chat_template=True,
            vocab=self.tokenizer.vocab,
            row_times=[],
        )
        # states[seq][i] is the hash of the first i tokens of the sequence.
        self._states = [[mix(self.script.seed)] for _ in range(n_seq + n_branches)]
        self._logits = np.empty((0, self.n_vocab), np.float32)  # the rows of the last decode
        rng = np.random.default_rng(self.script.seed)
        # A background begins at each of the first places: many of them, and little memory to go through.
        self._noise = rng.standard_normal(self.n_vocab + _N_BACKGROUNDS - 1, np.float32)

    def decode(self, spans: Sequence[Span]) -> Output:
        self._check(spans)
        if self.script.decode_us:
            time.sleep(self.script.decode_us / 1e6)
        wanted: list[int] = []
        for span in spans:
            states = self._states[span.seq]
            for token in span.tokens:
                states.append(mix(states[-1] ^ (token + 1)))
            wanted += states[len(states) - span.n_outputs :]
        if len(wanted) > len(self._logits):
            self._logits = np.empty((len(wanted), self.n_vocab), np.float32)
        for row, state in zip(self._logits, wanted, strict=False):
            self._fill(row, state)
        return Output(self._logits[: len(wanted)])

    def _check(self, spans: Sequence[Span]) -> None:
        if len({span.seq for span in spans}) != len(spans):
            raise EngineError("two spans of one decode name the same sequence")
        if sum(len(span.tokens) for span in spans) > self.n_batch:
            raise EngineError(f"more than n_batch = {self.n_batch} rows in one decode")
        check_room(spans, self.n_ctx)
        for span in spans:
            if span.start != self.length(span.seq):
                raise EngineError(f"sequence {span.seq}: row {span.start} given, {self.length(span.seq)} rows held")
            if not 0 <= span.n_outputs <= len(span.tokens) or not span.tokens:
                raise EngineError(f"sequence {span.seq}: {span.n_outputs} outputs of {len(span.tokens)} rows")
            for token in span.tokens:
                if not 0 <= token < self.n_vocab:
                    raise EngineError(f"sequence {span.seq}: token {token} is not in 0..{self.n_vocab - 1}")

    def _fill(self, row: NDArray[np.float32], state: int) -> None:
        """Noise, and a few tokens that stand out; where the script disagrees, the first two change places."""
        first = state % _N_BACKGROUNDS
        row[:] = self._noise[first : first + self.n_vocab]
        peaks = [mix(state + k) % self.n_vocab for k in range(N_PEAKS)]
        peaks = [peak + (peak == EOS) for peak in peaks]
        if mix(state ^ 0xE05) % 100 < self.script.eos:
            peaks[0] = EOS
        if mix(state ^ 0xD1F) % 100 < self.script.disagree:
            peaks[0], peaks[1] = peaks[1], peaks[0]
        for k, peak in reversed(list(enumerate(peaks))):
            row[peak % self.n_vocab] = np.float32(10.0 - k)

    def length(self, seq: int) -> int:
        return len(self._states[seq]) - 1

    def truncate(self, seq: int, length: int) -> None:
        if not 0 <= length <= self.length(seq):
            raise CacheError(f"sequence {seq}: cannot keep {length} of {self.length(seq)} rows")
        if self.memory == "checkpoint" and 0 < length < self.length(seq):
            raise CacheError(f"sequence {seq}: this memory cannot drop a suffix")
        del self._states[seq][length + 1 :]

    def copy(self, src: int, dst: int) -> None:
        self._states[dst] = list(self._states[src])

    def save(self, seq: int) -> object:
        return tuple(self._states[seq])

    def restore(self, seq: int, checkpoint: object) -> None:
        assert isinstance(checkpoint, tuple)
        self._states[seq] = list(checkpoint)

    def close(self) -> None:
        self._states = []
