"""ngram-cache: drafts the token that usually followed the last one to four, token by token, as llama.cpp does it.

Quirks that belong to it: up to 8 tokens, whatever the options say; `begin` does nothing; each round is counted as a piece
of its own, so n-grams across two rounds are never seen; if the best token of an order fails the test, the next shorter
order is asked, not the second best; on a tie the token first seen later wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.errors import SpeculatorError
from outrider.speculators.base import DraftParams, LookupSpeculator
from outrider.speculators.lookup_file import NGRAM_MAX, LookupTable
from outrider.speculators.ngram_counts import Ngram, NgramCounts, SortedText
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import CACHE_DRAFT_LEN
from outrider.speculators.unordered import iteration_order

#: Tokens of the n-grams of a static table.
NGRAM_STATIC = 2

#: (samples, percent of them) that the best token needs, by order 1 to 4.
LAX = ((2, 66), (2, 50), (1, 50), (1, 50))
STRICT = ((4, 75), (3, 66), (2, 66), (2, 66))

#: A token of the static table counts for so many times its count there.
_STATIC_WEIGHT = 100

#: A prompt of this length is sorted at `begin`; a shorter one is quicker counted.
_SORT_FROM = 256

_EMPTY: Mapping[int, int] = {}


@dataclass(slots=True)
class CacheState:
    """Of one sequence. size: tokens read so far, the pending one included. prepared: the prompt of `begin`, sorted, and
    the stamp of its text."""

    size: int = 0
    counts: NgramCounts = field(default_factory=NgramCounts)
    prepared: tuple[int, SortedText] | None = None


class NgramCache(LookupSpeculator):
    """`static` and `dynamic` are read-only and may be shared."""

    type = "ngram-cache"
    n_max = CACHE_DRAFT_LEN

    def __init__(self, n_seq: int = 1, static: LookupTable | None = None, dynamic: LookupTable | None = None) -> None:
        self.static, self.dynamic = static, dynamic
        self.states = [CacheState() for _ in range(n_seq)]

    def _state(self, seq: int) -> CacheState:
        if not 0 <= seq < len(self.states):
            raise SpeculatorError(f"ngram-cache: no sequence {seq}; there are {len(self.states)}")
        return self.states[seq]

    def begin(self, seq: int, prompt: TokenArray) -> None:
        """Changes no answer: the first text is sorted here, so that the first draft need not."""
        if 0 <= seq < len(self.states) and self.states[seq].size == 0 and len(prompt) >= _SORT_FROM:
            self.states[seq].prepared = prompt.stamp, SortedText(prompt.tokens)

    def propose(self, request: DraftParams) -> list[int]:
        state, text = self._state(request.seq), request.prompt
        self._read(state, text, request.id_last)
        context = [*text.tokens[-(NGRAM_MAX - 1) :].tolist(), request.id_last]
        draft: list[int] = []
        while len(context) >= NGRAM_STATIC and len(draft) < CACHE_DRAFT_LEN:
            token = self._next(state.counts, context[-NGRAM_MAX:])
            if token is None:
                break
            draft.append(token)
            context.append(token)
        return draft

    def _read(self, state: CacheState, text: TokenArray, last: int) -> None:
        """Count the tokens that were not read before, as a piece of their own."""
        start, state.size = state.size, max(state.size, len(text) + 1)
        if start > len(text):
            return
        first = 0
        if state.prepared is not None and state.prepared[0] == text.stamp:
            state.counts = NgramCounts(state.prepared[1])
            n_sorted = state.prepared[1].tokens.size
            start = max(n_sorted - NGRAM_MAX, 0)
            first = n_sorted - start
        state.prepared = None
        state.counts.add([*text.tokens[start:].tolist(), last], first)

    def _next(self, counts: NgramCounts, context: Sequence[int]) -> int | None:
        """The token to draft behind `context` (its last 2 to 4 tokens)."""
        ngram = tuple(context)
        static = self.static
        weights = _EMPTY if static is None else static.counts(ngram[-NGRAM_STATIC:])
        token = longest_order(counts.get, ngram, weights, LAX)
        if token is None and self.dynamic is not None:
            token = longest_order(self.dynamic.counts, ngram, weights, STRICT)
        if token is None and weights:
            token = best_token(weights, _EMPTY, *LAX[NGRAM_STATIC - 1])
        return token

    def get_state(self, seq: int) -> object:
        state = self._state(seq)
        return CacheState(state.size, state.counts.copy(), state.prepared)

    def set_state(self, seq: int, state: object) -> None:
        assert isinstance(state, CacheState)
        self._state(seq)
        self.states[seq] = CacheState(state.size, state.counts.copy(), state.prepared)


def longest_order(
    counts_of: Callable[[Ngram], Mapping[int, int]],
    context: Ngram,
    weights: Mapping[int, int],
    limits: Sequence[tuple[int, int]],
) -> int | None:
    """The first good token, from the longest n-gram of `context` to the shortest."""
    for n in range(len(context), 0, -1):
        counts = counts_of(context[-n:])
        if counts:
            token = best_token(counts, weights, *limits[n - 1])
            if token is not None:
                return token
    return None


def best_token(counts: Mapping[int, int], weights: Mapping[int, int], n_samples: int, percent: int) -> int | None:
    """The token with the largest count × weight, if there are enough samples and enough of them are its own."""
    total = sum(counts.values())
    if total < n_samples:
        return None
    best = _best_weighted(counts, weights) if weights else _best(counts)
    return best if 100 * counts[best] >= percent * total else None


def _best(counts: Mapping[int, int]) -> int:
    """Of equal counts only two can be large enough to pass, and of two tokens the newer comes first."""
    most = max(counts.values())
    return next(token for token in reversed(counts) if counts[token] == most)


def _best_weighted(counts: Mapping[int, int], weights: Mapping[int, int]) -> int:
    products = {token: n * _STATIC_WEIGHT * weights[token] if token in weights else n for token, n in counts.items()}
    most = max(products.values())
    best = [token for token, product in products.items() if product == most]
    if len(best) == 1:
        return best[0]
    return next((token for token in iteration_order(list(counts)) if token in best), best[0])
