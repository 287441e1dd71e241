"""The text that speculators search: tokens in one growing int32 array, never copied from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

_stamps = count(1)


class TokenArray:
    """Committed tokens of a sequence without the pending one; `n_corpus` tokens of other text may stand before them.

    `stamp` names this text: two readings with equal stamps differ at most by tokens appended in between, so whatever
    was derived from a prefix is still true. Everything but appending gives a new stamp.
    """

    def __init__(self, tokens: Sequence[int] = (), n_corpus: int = 0) -> None:
        self._data: NDArray[np.int32] = np.empty(max(len(tokens), 64), np.int32)
        self._len = 0
        self.n_corpus = n_corpus
        self.stamp = next(_stamps)
        self.extend(tokens)

    def __len__(self) -> int:
        return self._len

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [len], a view that is valid until the next change."""
        return self._data[: self._len]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append; amortised cost per token is constant."""
        end = self._len + len(tokens)
        if end > self._data.size:
            grown = np.empty(2 * end, np.int32)
            grown[: self._len] = self.tokens
            self._data = grown
        self._data[self._len : end] = tokens
        self._len = end

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        assert 0 <= length <= self._len
        if length < self._len:
            self._len = length
            self.stamp = next(_stamps)

    def tail(self, n: int, last: int) -> NDArray[np.int32]:
        """The n-gram that ends in `last`, the token behind this text: its last n-1 tokens and `last` (int32 [n], n ≥ 1,
        n-1 ≤ len)."""
        key = np.empty(n, np.int32)
        key[:-1] = self._data[self._len - n + 1 : self._len]
        key[-1] = last
        return key
