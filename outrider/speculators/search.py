"""Finding n-grams in a text, and hashing all of them at once. Everything here is vectorised and keeps no state."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

#: The newest positions are looked at first: most matches are near, and a miss costs little more.
_FIRST_BLOCK = 4096

#: So few candidates are compared one by one.
_FEW = 3


def find_newest(tokens: Tokens, pattern: Tokens, first: int, last: int) -> int:
    """The largest j in first … last with tokens[j : j+n] == pattern (int32 [n], n ≥ 1), or -1.

    last + n ≤ len(tokens). Costs a few passes over the range, at most n where the text is made against it.
    """
    n, block = pattern.size, _FIRST_BLOCK
    while first <= last:
        start = max(first, last - block + 1)
        found = _newest_in(tokens[start : last + n], pattern)
        if found >= 0:
            return start + found
        last, block = start - 1, tokens.size
    return -1


def find_all(tokens: Tokens, pattern: Tokens, first: int, last: int) -> NDArray[np.intp]:
    """All j in first … last with tokens[j : j+n] == pattern, ascending. last + n ≤ len(tokens)."""
    if last < first:
        return np.empty(0, np.intp)
    window = tokens[first : last + pattern.size]
    found = _candidates(window, pattern)
    for i in _inner(pattern.size):
        if found.size == 0:
            break
        found = found[window[found + i] == pattern[i]]
    return found + first


def _newest_in(window: Tokens, pattern: Tokens) -> int:
    """As find_newest, over the whole of `window`."""
    found = _candidates(window, pattern)
    wanted = pattern.tobytes()
    for i in _inner(pattern.size):
        if found.size <= _FEW:
            break
        newest = int(found[-1])
        if window[newest : newest + pattern.size].tobytes() == wanted:
            return newest
        found = found[window[found + i] == pattern[i]]
    for position in found[::-1].tolist():
        if window[position : position + pattern.size].tobytes() == wanted:
            return int(position)
    return -1


def _candidates(window: Tokens, pattern: Tokens) -> NDArray[np.intp]:
    """Positions where the last and the first token of the pattern stand right."""
    n = pattern.size
    hits = window[n - 1 :] == pattern[-1]
    if n > 1:
        hits &= window[: window.size - n + 1] == pattern[0]
    return hits.nonzero()[0]


def _inner(n: int) -> range:
    """The places of an n-gram that `_candidates` has not looked at, from the end on."""
    return range(n - 2, 0, -1)


@lru_cache(maxsize=64)
def _powers(base: int, size: int) -> NDArray[np.uint32]:
    """base^0 … base^(size-1) modulo 2^32."""
    powers = np.full(size, base & 0xFFFFFFFF, np.uint32)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint32)


def hash_windows(tokens: Tokens, n: int, base: int) -> NDArray[np.uint32]:
    """The hash of each n-gram of `tokens`: h = h * base + token over its tokens, modulo 2^32 (uint32 [len-n+1]).

    `base` is odd, so that it can be divided by: all sums of tokens[i] * base^-i come from one pass, and the window at j
    is the difference of two of them times base^(j+n-1).
    """
    count = tokens.size - n + 1
    if count <= 0:
        return np.empty(0, np.uint32)
    size = 64 << (tokens.size // 64).bit_length()
    sums = np.zeros(tokens.size + 1, np.uint32)
    inverse = pow(base, -1, 1 << 32)
    np.cumsum(tokens.view(np.uint32) * _powers(inverse, size)[: tokens.size], dtype=np.uint32, out=sums[1:])
    hashes: NDArray[np.uint32] = sums[n:] - sums[:count]
    hashes *= _powers(base, size)[n - 1 : n - 1 + count]
    return hashes
