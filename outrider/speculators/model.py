"""draft-simple: a small model proposes its own most probable tokens, one decode per token, all sequences together.

The rules are llama.cpp's: always the most probable token; its probability among the ten best is held against `p_min`
(strictly below stops, and that token is dropped); the length is tested after a token was taken, so even an `n_max` of 0
yields one; a draft shorter than `n_min` is dropped whole.

A draft may also be given its own way to choose (`Drafting.choose`): with the noise of the target's sampler it often picks
what the target will (`DraftSlot.choose`). `p_min` then looks at the token that was chosen. Where nobody reads the
probabilities they are not computed: the ten best take several times as long to find as the best.

Unlike llama.cpp nothing is evaluated twice: rows of accepted drafts stay, and only a wrong tail is given up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.engine.base import Engine, Output, Span
from outrider.engine.cached import CachedSequence
from outrider.speculators.topk import top_k

N_CANDIDATES = 10

#: (logits after the last token, position of the draft's first token, the draft so far) -> the next token of the draft.
Choose = Callable[[NDArray[np.float32], int, Sequence[int]], int]


@dataclass(slots=True)
class Drafting:
    """A draft in the making. `draws[i]` are ids and probabilities of the ten best at draw i; a refused draw is the last.

    Without `with_probs` there are no draws, probabilities and entropies, and `p_min` must be 0.
    """

    n_max: int
    n_min: int
    p_min: float
    start: int = 0  # position of tokens[0]: the length of the committed text in front of it
    choose: Choose | None = None  # None: always the most probable token that is not in `never`
    never: frozenset[int] = frozenset()
    with_probs: bool = True
    tokens: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)  # nats, of the ten best
    draws: list[tuple[list[int], list[float]]] = field(default_factory=list)
    done: bool = False
    n_dropped: int = 0
    n_evaluated: int = 0

    def take(self, row: NDArray[np.float32]) -> None:
        """One draw from the logits (float32 [n_vocab]) after the last token."""
        if not self.with_probs:
            self.tokens.append(self.choose(row, self.start, self.tokens) if self.choose else self._best(row))
        elif not self._take_weighed(row):
            self.finish()
        if len(self.tokens) >= self.n_max:
            self.finish()

    def _take_weighed(self, row: NDArray[np.float32]) -> bool:
        """False: the token is refused."""
        ids, probs = top_k(row, N_CANDIDATES)
        self.draws.append((ids, probs))
        token, prob = self.choose(row, self.start, self.tokens) if self.choose else self._allowed(ids), probs[0]
        if token != ids[0]:
            prob *= math.exp(row.item(token) - row.item(ids[0]))
        if prob < self.p_min:
            return False
        self.tokens.append(token)
        self.probs.append(prob)
        self.entropies.append(entropy(probs))
        return True

    def _best(self, row: NDArray[np.float32]) -> int:
        token = int(row.argmax())
        if token not in self.never and math.isfinite(row.item(token)):
            return token
        return self._allowed(top_k(row, N_CANDIDATES)[0])  # which knows what to do about nan, too

    def _allowed(self, ids: Sequence[int]) -> int:
        return next((token for token in ids if token not in self.never), ids[0])

    def n_taken(self, committed: Sequence[int]) -> int | None:
        """How many of the tokens the committed text has come to hold; None if it went another way, or beyond them."""
        n = len(committed) - self.start
        return n if 0 <= n <= len(self.tokens) and list(committed[self.start :]) == self.tokens[:n] else None

    def rest(self, n_taken: int, n_max: int, p_min: float) -> Drafting:
        """The same draft behind its first `n_taken` tokens, with new limits. A draw that was refused is drawn again."""
        rest = Drafting(n_max, 0, p_min, self.start + n_taken, self.choose, self.never, self.with_probs)
        rest.tokens, rest.probs = self.tokens[n_taken:], self.probs[n_taken:]
        rest.entropies, rest.draws = self.entropies[n_taken:], self.draws[n_taken : len(self.tokens)]
        if len(rest.tokens) >= n_max:
            rest.finish()
        return rest

    def finish(self) -> None:
        """No further draw; too short a draft is dropped."""
        self.done = True
        if len(self.tokens) < self.n_min:
            self.n_dropped = len(self.tokens)
            self.tokens, self.probs, self.entropies = [], [], []


def entropy(probs: Sequence[float]) -> float:
    """Entropy in nats; probabilities of 0 add nothing. (Of ten numbers: plain Python is quicker than numpy.)"""
    return max(-sum([p * math.log(p) for p in probs if p > 0.0]), 0.0)


class DraftingSequence(Protocol):
    """What `step` works on: a cache, and the draft that is wanted behind its committed text, if any."""

    @property
    def cache(self) -> CachedSequence: ...

    @property
    def drafting(self) -> Drafting | None: ...


SequenceT = TypeVar("SequenceT", bound=DraftingSequence)


def missing(sequence: DraftingSequence) -> list[int]:
    """Tokens to evaluate next: committed ones, then drafted ones. Empty: nothing to do."""
    drafting = sequence.drafting
    if drafting is not None and drafting.done:
        return []
    return sequence.cache.missing(None if drafting is None else drafting.tokens)


def n_missing(sequence: DraftingSequence) -> int:
    """How many `missing` has."""
    drafting = sequence.drafting
    if drafting is not None and drafting.done:
        return 0
    return sequence.cache.n_missing(None if drafting is None else drafting.tokens)


Decode = Callable[[Sequence[Span]], Output]


def step(engine: Engine, sequences: Sequence[SequenceT], room: int, decode: Decode | None = None) -> list[SequenceT]:
    """One decode: the next rows of each sequence, at most `room` in all, and a draw wherever the rows are complete.

    `decode` stands in for the engine's own, to measure it. Returns the sequences whose draft is finished now; one that
    reaches the end of the context ends there.
    """
    finished = [sequence for sequence in sequences if _ends_with_context(engine, sequence)]
    work = _batch(sequences, room)
    if not work:
        return finished
    output = (decode or engine.decode)([span for _, span in work])
    row = 0
    for sequence, span in work:
        sequence.cache.appended(span.tokens)
        drafting = sequence.drafting
        if drafting is None:
            continue
        drafting.n_evaluated += len(span.tokens)
        if span.n_outputs:
            drafting.take(output.logits[row])
            row += 1
            if drafting.done:
                finished.append(sequence)
    return finished


def _ends_with_context(engine: Engine, sequence: DraftingSequence) -> bool:
    drafting = sequence.drafting
    if drafting is None or drafting.done:
        return False
    if len(sequence.cache.committed) + len(drafting.tokens) <= engine.n_ctx:
        return False
    drafting.finish()
    return True


def _batch(sequences: Sequence[SequenceT], room: int) -> list[tuple[SequenceT, Span]]:
    work: list[tuple[SequenceT, Span]] = []
    for sequence in sorted(sequences, key=n_missing):
        tokens = missing(sequence)
        if not tokens or room <= 0:
            continue
        n = sequence.cache.next_rows(len(tokens), room)
        room -= n
        draws = sequence.drafting is not None and n == len(tokens)
        work.append((sequence, sequence.cache.span(tokens[:n], int(draws))))
    return work
