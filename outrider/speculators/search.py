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

#: Where more than one position in so many is a candidate, whole passes are quicker than picking candidates.
_DENSE = 16

#: Longer runs are not told apart.
_MAX_SUFFIX = 32


def find_newest(tokens: Tokens, pattern: Tokens, first: int, last: int) -> int:
    """The largest j in first … last with tokens[j : j+n] == pattern (int32 [n], n ≥ 1), or -1.

    last + n ≤ len(tokens). Costs a few passes over the range, at most n where the text is made against it.
    """
    n, block, wanted = pattern.size, _FIRST_BLOCK, pattern.tobytes()
    while first <= last:
        start = max(first, last - block + 1)
        window = tokens[start : last + n]
        mask = _ends_match(window, pattern)
        newest = mask.size - 1 - int(mask[::-1].argmax())
        if not mask[newest]:
            found = _NOWHERE
        elif window[newest : newest + n].tobytes() == wanted:
            return start + newest
        else:
            found = _matching(window, pattern, mask)
        if found.size:
            return start + int(found[-1])
        last, block = start - 1, tokens.size
    return -1


def find_all(tokens: Tokens, pattern: Tokens, first: int, last: int) -> NDArray[np.intp]:
    """All j in first … last with tokens[j : j+n] == pattern, ascending. last + n ≤ len(tokens)."""
    if last < first:
        return _NOWHERE
    window = tokens[first : last + pattern.size]
    return _matching(window, pattern, _ends_match(window, pattern)) + first


def match_mask(tokens: Tokens, pattern: Tokens, first: int, last: int) -> NDArray[np.bool_]:
    """For each j in first … last whether tokens[j : j+n] == pattern. last + n ≤ len(tokens). Always n passes."""
    width = last - first + 1
    mask = np.ones(width, np.bool_)
    for i, token in enumerate(pattern):
        mask &= tokens[first + i : first + i + width] == token
    return mask


def longest_suffix(tokens: Tokens, last: int, n_min: int) -> tuple[int, int] | None:
    """Where the longest run of tokens stands that ends this text and `last` behind it.

    The index behind the newest such place (at most len(tokens)) and the length of the run, from `n_min` up to a bound;
    None if there is none of `n_min` tokens.
    """
    width, mask = tokens.size, tokens == last
    if not mask.any():
        return None
    newest = width - 1 - int(mask[::-1].argmax())
    run = tokens[width - _MAX_SUFFIX + 1 :]
    if newest >= _MAX_SUFFIX - 1 and np.array_equal(tokens[newest - _MAX_SUFFIX + 1 : newest], run):
        return newest + 1, _MAX_SUFFIX
    ends, length = _ends_of_suffix(tokens, mask)
    while length < min(_MAX_SUFFIX, width):
        longer = ends[ends >= length]
        longer = longer[tokens[longer - length] == tokens[width - length]]
        if longer.size == 0:
            break
        ends, length = longer, length + 1
    return (int(ends[-1]) + 1, length) if length >= n_min else None


def _ends_of_suffix(tokens: Tokens, mask: NDArray[np.bool_]) -> tuple[NDArray[np.intp], int]:
    """From the places of the last token (`mask`) to so few that they can be picked one by one: where they are, and how
    many tokens before them agree, the last one included."""
    length, width = 1, tokens.size
    while length < min(_MAX_SUFFIX, width) and (length == 1 or np.count_nonzero(mask) > mask.size // _DENSE):
        longer = mask[1:] & (tokens[: mask.size - 1] == tokens[width - length])
        if not longer.any():
            break
        mask, length = longer, length + 1
    return mask.nonzero()[0] + (width - mask.size), length


_NOWHERE = np.empty(0, np.intp)


def _ends_match(window: Tokens, pattern: Tokens) -> NDArray[np.bool_]:
    """For each position of the window whether the last and the first token of the pattern stand right."""
    n = pattern.size
    mask: NDArray[np.bool_] = window[n - 1 :] == pattern[-1]
    if n > 1:
        mask &= window[: mask.size] == pattern[0]
    return mask


def _matching(window: Tokens, pattern: Tokens, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The positions that match whole, ascending. `mask`, from `_ends_match`, is used up."""
    inner = list(range(1, pattern.size - 1))
    while inner and np.count_nonzero(mask) > mask.size // _DENSE:
        i = inner.pop()
        mask &= window[i : i + mask.size] == pattern[i]
    found = mask.nonzero()[0]
    while inner and found.size > _FEW:
        i = inner.pop()
        found = found[window[found + i] == pattern[i]]
    if not inner:
        return found
    wanted = pattern.tobytes()
    rows = [position for position in found.tolist() if window[position : position + pattern.size].tobytes() == wanted]
    return np.array(rows, np.intp)


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
