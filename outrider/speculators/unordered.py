"""The order in which llama.cpp reads the tokens that followed an n-gram: that of libstdc++'s hash map of integers.

It decides ties between weighted counts, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: The sizes that the table grows through, up to more tokens than a vocabulary has.
_SIZES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697, 1447153)


def iteration_order(tokens: Sequence[int]) -> list[int]:
    """`tokens` (distinct, in the order of their insertion) in the order of iteration.

    A new token comes before the others of its bucket, a new bucket before all others; when the table grows, the tokens
    are inserted anew in the order of iteration.
    """
    order: list[int] = []
    for size, below in zip(_SIZES, (0, *_SIZES), strict=False):
        order = _iterate([*order, *tokens[below:size]], size)
        if len(tokens) <= size:
            break
    return order


def _iterate(tokens: Iterable[int], size: int) -> list[int]:
    """The order after inserting `tokens` into an empty table of `size` buckets."""
    buckets: dict[int, list[int]] = {}
    for token in tokens:
        buckets.setdefault(token % size, []).append(token)
    return [token for bucket in reversed(buckets.values()) for token in reversed(bucket)]
