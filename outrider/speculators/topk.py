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
    if len(values) < k:
        raise EngineError("the logits hold nan; the model file or its computation is faulty")
    # Plain Python: for a dozen numbers it is quicker than numpy.
    best = sorted([(-value, token) for value, token in zip(values, ids, strict=True)])[:k]
    highest = best[0][0]
    weights = [math.exp(highest - value) for value, _ in best]
    total = sum(weights)
    return [token for _, token in best], [weight / total for weight in weights]


def _candidates(row: NDArray[np.float32], k: int) -> tuple[list[int], list[float]]:
    """Ids and values among which the k best are, in any order."""
    n_groups = row.size // _FOLD
    if n_groups <= k:
        return _at_least(row, _kth_largest(row, k), k)
    whole = n_groups * _FOLD
    folded = row[:whole].reshape(_FOLD, n_groups)
    maxima = np.maximum.reduce(folded)
    floor = _kth_largest(maxima, k)
    columns = (maxima >= floor).nonzero()[0]
    places, values = _at_least(folded.take(columns, axis=1).ravel(), floor, k)
    groups = columns.tolist()
    ids = [place // len(groups) * n_groups + groups[place % len(groups)] for place in places]
    if whole < row.size:
        rest, rest_values = _at_least(row[whole:], floor, k)
        return ids + [whole + token for token in rest], values + rest_values
    return ids, values


def _kth_largest(values: NDArray[np.float32], k: int) -> np.float32:
    values = values.copy()
    values.partition(values.size - k)
    largest: np.float32 = values[values.size - k]
    return largest


def _at_least(values: NDArray[np.float32], floor: np.float32, k: int) -> tuple[list[int], list[float]]:
    """Indices and values of those that reach `floor`: all above it, of those that equal it the first `k` at least."""
    at = (values >= floor).nonzero()[0]
    if at.size > 2 * k:
        ties = values.take(at) == floor  # thousands, where a model gives most of its tokens one logit
        at = np.concatenate((at[~ties], at[ties][:k]))
    return at.tolist(), values.take(at).tolist()
