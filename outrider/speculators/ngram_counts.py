"""How often which token followed each n-gram of up to four tokens: the memory of ngram-cache.

A long prompt is sorted once; what comes later goes into dictionaries. Both give the same answers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.lookup_file import NGRAM_MAX
from outrider.speculators.search import Tokens

Counts = dict[int, int]  # token -> how often, in the order of first occurrence
Ngram = tuple[int, ...]


#: Counting what followed an n-gram of so many places takes a while.
_FREQUENT = 256

#: Few places are counted one by one.
_FEW = 48


class SortedText:
    """All n-grams of a text of at least 2 tokens, by sorting its positions: read-only, 24 bytes per token.

    Row r stands for one position; `columns[k][r]` is the token k+1 places before it (-1 before the text), `positions[r]`
    the position. Rows are sorted by the columns, so those of one n-gram are neighbours.
    """

    def __init__(self, tokens: Tokens) -> None:
        padded = np.concatenate([np.full(NGRAM_MAX, -1, np.int32), tokens])
        columns = [padded[NGRAM_MAX - k : -k] for k in range(1, NGRAM_MAX + 1)]
        order = np.lexsort((_pair(columns[2], columns[3]), _pair(columns[0], columns[1])))
        order = order[order > 0]  # nothing stands before the first token
        self.tokens = tokens.copy()
        self.positions = order.astype(np.int32)
        # Single numbers are read quicker through these.
        self._columns = [memoryview(column[order]) for column in columns]  # type: ignore[arg-type]
        self._tokens, self._positions = memoryview(self.tokens), memoryview(self.positions)  # type: ignore[arg-type]
        self._rows = lru_cache(maxsize=64)(self._find_rows)
        self._common = {ngram: self._count_rows(first, end) for ngram, first, end in self._long_runs()}

    def _runs(self) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
        """For each length n the n-grams, as first rows and row counts."""
        changed = np.zeros(self.positions.size, np.bool_)
        changed[:1] = True
        for n, column in enumerate(map(np.asarray, self._columns), 1):
            changed[1:] |= column[1:] != column[:-1]
            first = changed.nonzero()[0]
            inside = column[first] >= 0
            yield n, first[inside], np.diff(first, append=changed.size)[inside]

    def _long_runs(self) -> Iterator[tuple[Ngram, int, int]]:
        """The n-grams that are so frequent that they are better counted beforehand, and their rows."""
        for n, firsts, sizes in self._runs():
            for first, size in zip(
                firsts[sizes >= _FREQUENT].tolist(), sizes[sizes >= _FREQUENT].tolist(), strict=True
            ):
                yield tuple(column[first] for column in reversed(self._columns[:n])), first, first + size

    def _find_rows(self, ngram: Ngram) -> tuple[int, int]:
        """First row of the positions that follow `ngram`, and the row behind the last."""
        first, end = self._rows(ngram[1:]) if len(ngram) > 1 else (0, self.positions.size)
        column, token = self._columns[len(ngram) - 1], ngram[0]
        return bisect_left(column, token, first, end), bisect_right(column, token, first, end)

    def counts(self, ngram: Ngram) -> Counts:
        """What followed `ngram`."""
        common = self._common.get(ngram)
        return self._count_rows(*self._rows(ngram)) if common is None else common.copy()

    def _count_rows(self, first: int, end: int) -> Counts:
        if end - first < _FEW:
            return _count([self._tokens[position] for position in sorted(self._positions[first:end])])
        following = self.tokens[np.sort(self.positions[first:end])]
        tokens, at, counts = np.unique(following, return_index=True, return_counts=True)
        order = at.argsort()
        return dict(zip(tokens[order].tolist(), counts[order].tolist(), strict=True))

    def __contains__(self, ngram: Ngram) -> bool:
        first, end = self._rows(ngram)
        return first < end

    def total(self) -> int:
        """Sum of all counts."""
        return sum(max(self.tokens.size - n, 0) for n in range(1, NGRAM_MAX + 1))

    def n_ngrams(self) -> int:
        """Number of distinct n-grams of all lengths."""
        return sum(firsts.size for _, firsts, _ in self._runs())


def _pair(high: Tokens, low: Tokens) -> NDArray[np.int64]:
    """Numbers that sort as the pairs do; no token is below -1."""
    return (high.astype(np.int64) << 32) + low + 1


def _count(tokens: Sequence[int]) -> Counts:
    counts: Counts = {}
    for token in tokens:
        counts[token] = counts.get(token, 0) + 1
    return counts


class NgramCounts:
    """`base`: the sorted beginning, or None. What was added since stands in `_added`, apart from the n-grams that were
    asked for, whose complete counts stand in `_known`."""

    def __init__(self, base: SortedText | None = None) -> None:
        self.base = base
        self._known: dict[Ngram, Counts] = {}
        self._added: dict[Ngram, Counts] = {}

    def add(self, tokens: Sequence[int], first: int) -> None:
        """Count the tokens from index `first` on as what follows the n-grams before them, within `tokens`."""
        for i in range(first, len(tokens)):
            for n in range(1, min(i, NGRAM_MAX) + 1):
                ngram = tuple(tokens[i - n : i])
                counts = self._known.get(ngram)
                if counts is None:
                    counts = self._added.setdefault(ngram, {})
                counts[tokens[i]] = counts.get(tokens[i], 0) + 1

    def get(self, ngram: Ngram) -> Counts:
        """What followed `ngram`, in the order of first occurrence."""
        counts = self._known.get(ngram)
        if counts is not None:
            return counts
        if self.base is None:
            return self._added.get(ngram, _NOTHING)
        counts = self.base.counts(ngram)
        for token, n in self._added.pop(ngram, _NOTHING).items():
            counts[token] = counts.get(token, 0) + n
        if counts:
            self._known[ngram] = counts
        return counts

    def n_ngrams(self) -> int:
        """Number of distinct n-grams that something followed."""
        base = self.base
        if base is None:
            return len(self._added)
        return base.n_ngrams() + sum(ngram not in base for ngram in (*self._known, *self._added))

    def total(self) -> int:
        """Sum of all counts."""
        parts = (*self._known.values(), *self._added.values())
        total = sum(sum(counts.values()) for counts in parts)
        if self.base is None:
            return total
        seen = sum(sum(self.base.counts(ngram).values()) for ngram in self._known)
        return total + self.base.total() - seen

    def copy(self) -> NgramCounts:
        """A copy that shares the read-only part."""
        return deepcopy(self, {id(self.base): self.base})


_NOTHING: Counts = {}
