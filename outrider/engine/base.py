"""The contract that every engine keeps, and the two functions over it that all workers use.

An engine holds one model and `n_seq` sequences of cached rows. It evaluates spans of tokens, drops suffixes and copies
sequences; it knows nothing of drafts, sessions or sockets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from outrider.errors import ContextFullError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from outrider.types import MemoryKind, ModelFacts, VocabFacts


#: Rows that a branch may have for itself, on average, beside those that it shares with its origin.
BRANCH_ROWS = 32


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens to evaluate in one sequence at positions `start, start+1, …`; `start` must be the sequence's length.

    The logits of the last `n_outputs` rows are wanted (0 ≤ n_outputs ≤ len(tokens)).
    """

    seq: int
    start: int
    tokens: Sequence[int]
    n_outputs: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """Result of a decode. Arrays are views into the engine's buffers, valid until its next decode.

    logits: float32 [rows asked, n_vocab], rows in the order of the spans.
    hidden: float32 [rows asked, n_embd] where the engine was created with taps, else None.
    """

    logits: NDArray[np.float32]
    hidden: NDArray[np.float32] | None = None


class Tokenizer(Protocol):
    """Text to ids and back, from the tables of one GGUF file."""

    vocab: VocabFacts
    chat_template: str | None  # Jinja source
    suppressed: Sequence[int]  # ids that must never be sampled (tokenizer.ggml.suppress_tokens)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`; BOS/EOS as the model's flags say if `add_special`; control tokens are recognised in
        the text if `parse_special`, else they are plain characters."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that this token adds to a text; empty for control tokens."""
        ...

    def is_eog(self, token: int) -> bool:
        """Does this token end a generation?"""
        ...

    def texts(self, first: int, count: int) -> list[bytes]:
        """Raw vocabulary texts of ids `first … first+count-1` (fewer at the end): what the vocabulary gate compares."""
        ...

    def render_chat(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """(role, content) pairs rendered by the model's own chat template, with the head of the assistant's answer if
        `add_generation_prompt`; `variables` are further ones of the template.

        Raises RequestError if the model has none or the template refuses."""
        ...


class Engine(ABC):
    """One model with `n_seq` sequences, and `n_branches` more behind them for copies that differ in a few rows.

    Single-threaded: one thread calls it. `memory` says how a sequence goes back: "truncate" (drop a suffix) or
    "checkpoint" (only `save` and `restore`).
    """

    facts: ModelFacts
    tokenizer: Tokenizer
    n_vocab: int
    n_ctx: int  # positions per sequence
    n_batch: int  # rows per decode
    n_seq: int
    n_branches: int = 0
    memory: MemoryKind

    @abstractmethod
    def decode(self, spans: Sequence[Span]) -> Output:
        """Evaluate spans of distinct sequences, at most `n_batch` rows in all, and append their rows to the caches.

        Raises ContextFullError before anything is changed if a span would pass `n_ctx`; EngineError if the
        computation failed (then the sequences of the batch are cut back to their lengths before the call).
        """

    @abstractmethod
    def length(self, seq: int) -> int:
        """Rows in the cache of `seq`."""

    @abstractmethod
    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` rows. Never partial: raises CacheError, with the cache unchanged, if it cannot."""

    @abstractmethod
    def copy(self, src: int, dst: int) -> None:
        """Make `dst` equal to `src`. Raises CacheError where the memory has no branches."""

    @abstractmethod
    def save(self, seq: int) -> object:
        """A checkpoint of `seq`, for `restore` on the same engine."""

    @abstractmethod
    def restore(self, seq: int, checkpoint: object) -> None:
        """Put `seq` back to what it was when `checkpoint` was saved."""

    def use_chat_template(self, source: str) -> None:
        """Render chat messages by this Jinja template from now on, instead of the model's own."""
        self.tokenizer.chat_template = source
        self.facts = msgspec.structs.replace(self.facts, has_chat_template=True)

    @abstractmethod
    def close(self) -> None:
        """Free everything; idempotent."""


def common_prefix_len(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the longest common prefix, given that the first `start` items are known to be equal."""
    n = min(len(a), len(b))
    while start < n and a[start] == b[start]:
        start += 1
    return start


def check_room(spans: Sequence[Span], n_ctx: int) -> None:
    """Raise ContextFullError if a span passes the context; engines call it before they change anything."""
    for span in spans:
        if span.start + len(span.tokens) > n_ctx:
            raise ContextFullError(
                f"sequence {span.seq}: {span.start + len(span.tokens)} positions asked for, n_ctx is {n_ctx}"
            )
