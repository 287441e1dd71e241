"""The hash table of the two map speculators: from an n-gram to where it stands in the text."""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.search import Tokens, hash_windows

N_BUCKETS = 2**18
FACTOR = 2654435761


class BucketTable:
    """2^18 buckets, each the index of the n-gram that took it first (0: free); nothing is ever replaced, and the n-gram
    itself is not kept, so a hit must be compared. `last_idx`: everything up to here has been entered."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.last_idx = 0
        self.slots: NDArray[np.uint32] = np.zeros(N_BUCKETS, np.uint32)
        self._weights = np.array([pow(FACTOR, n - 1 - i, 2**32) for i in range(n)], np.uint32)

    def lookup(self, key: Tokens) -> int:
        """The index in the bucket of `key` (int32 [n])."""
        bucket = int((key.view(np.uint32) * self._weights).sum(dtype=np.uint32)) % N_BUCKETS
        return int(self.slots[bucket])

    def fill(self, tokens: Tokens, first: int, last: int) -> None:
        """Enter the n-grams at first … last, the highest index first: it wins where buckets collide."""
        if first > last:
            return
        buckets = hash_windows(tokens[first : last + self.n], self.n, FACTOR) & np.uint32(N_BUCKETS - 1)
        free = (self.slots[buckets] == 0).nonzero()[0]
        # Ascending, so that the highest index of a bucket is written last.
        self.slots[buckets[free]] = free + first

    def filled(self, tokens: Tokens, first: int, last: int) -> BucketTable:
        """A copy with these n-grams entered."""
        table = self.copy()
        table.fill(tokens, first, last)
        return table

    def cut(self, index: int) -> None:
        """Forget all n-grams from `index` on."""
        self.slots[self.slots >= max(index, 1)] = 0
        self.last_idx = max(index - 1, 0)

    def copy(self) -> BucketTable:
        table = copy(self)
        table.slots = self.slots.copy()
        return table
