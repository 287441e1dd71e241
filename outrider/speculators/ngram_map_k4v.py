"""ngram-map-k4v: as ngram-map-k, but only where one of up to four known continuations clearly leads.

Quirks that belong to it: under min_hits nothing is even counted; the found place is counted again at every lookup; the
draft is what follows the found place, while acceptance is booked on the leading value, which may read otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.ngram_map import MAX_COUNT, Key, NgramMap, Value
from outrider.speculators.search import Tokens, find_all, match_mask

#: More places than this, and more than one in so many, are quicker compared by whole passes.
_MANY = 64
_DENSE = 16


class NgramMapK4V(NgramMap):
    type = "ngram-map-k4v"

    def _choose(self, key: Key, tokens: Tokens, key_tokens: Tokens, match: int) -> int | None:
        if key.num < self.min_hits:
            return None
        places = find_all(tokens, key_tokens, key.stat_idx, match)
        self._count(key, tokens, places + self.n)
        key.stat_idx = match
        counts = [value.num for value in key.values]
        best = counts.index(max(counts))
        others = sum(counts) - counts[best]
        return best if counts[best] >= 2 * others else None

    def _count(self, key: Key, tokens: Tokens, places: NDArray[np.intp]) -> None:
        """Add the continuations at `places` (ascending) to the values; new ones take the free slots, further ones are
        not counted."""
        for value in key.values:
            if places.size == 0:
                return
            if value.value_idx == 0:
                value.value_idx, value.num, value.n_accepted = int(places[0]), 0, self.n_max
            equal = self._equal(tokens, places, value.value_idx)
            value.num = min(value.num + int(equal.sum()), MAX_COUNT)
            places = places[~equal]

    def _equal(self, tokens: Tokens, places: NDArray[np.intp], index: int) -> NDArray[np.bool_]:
        """Which of `places` read the same m tokens as `index`."""
        wanted = tokens[index : index + self.n_max]
        if wanted.size < self.n_max:
            return np.zeros(places.size, np.bool_)
        first, last = int(places[0]), int(places[-1])
        if places.size > max((last - first) // _DENSE, _MANY):
            return match_mask(tokens, wanted, first, last)[places - first]
        equal: NDArray[np.bool_] = (tokens[places[:, None] + np.arange(self.n_max)] == wanted).all(axis=1)
        return equal

    def _survives(self, key: Key, cut: int) -> bool:
        """Values behind the cut go and the others move up; a key without values goes."""
        values = key.values
        for slot in reversed(range(len(values))):
            if values[slot].value_idx >= max(cut, 1):
                freed = Value(values[-1].n_accepted)
                del values[slot]
                values.append(freed)
        return values[0].value_idx != 0
