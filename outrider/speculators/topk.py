"""The best few tokens of a row of logits, and their probabilities among themselves."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from outrider.errors import EngineError

#: Rows of the matrix into which a row of logits is folded; a column is a group of so many tokens.
_FOLD = 64


def top_k(row: NDArray[np.float32], k: int) -> tuple[list[int], list[float]]:
    """Ids of the `k` largest of `row` (float32 [n_vocab]), best first, and their softmax over just these.

    Ties go to the lower id. A full partition of 152k logits takes longer than a small model's matrices, so the row is
    cut into groups first: the k best lie in the k groups with the largest maxima. Raises EngineError where nan leaves
    fewer than k numbers to choose from.
    """
    k = min(k, row.size)
    ids, values = _candidates(row, k)
    if values.size < k:
        raise EngineError("the logits hold nan; the model file or its computation is faulty")
    order = (-values).argsort(kind="stable")[:k]  # the ids ascend: of equals the lowest comes first
    best = values.take(order).tolist()
    weights = [math.exp(value - best[0]) for value in best]
    total = sum(weights)
    return ids.take(order).tolist(), [weight / total for weight in weights]


def _candidates(row: NDArray[np.float32], k: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Ids, ascending, and values among which the k best (and all that tie with the last of them) are."""
    n_groups = row.size // _FOLD
    if n_groups <= k:
        return _at_least(row, _kth_largest(row, k))
    whole = n_groups * _FOLD
    folded = row[:whole].reshape(_FOLD, n_groups)
    maxima = folded.max(axis=0)
    floor = _kth_largest(maxima, k)
    groups, _ = _at_least(maxima, floor)
    members = folded.take(groups, axis=1)
    rows, columns = (members >= floor).nonzero()
    ids, values = rows * n_groups + groups.take(columns), members[rows, columns]
    if whole == row.size:
        return ids, values
    rest, rest_values = _at_least(row[whole:], floor)
    return np.concatenate([ids, whole + rest]), np.concatenate([values, rest_values])


def _kth_largest(values: NDArray[np.float32], k: int) -> np.float32:
    at = values.size - k
    return np.float32(np.partition(values, at)[at])


def _at_least(values: NDArray[np.float32], floor: np.float32) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    (at,) = (values >= floor).nonzero()
    return at, values[at]
