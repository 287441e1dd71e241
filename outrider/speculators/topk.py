"""The best few tokens of a row of logits, and their probabilities among themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Rows of the matrix into which a row of logits is folded; a column is a group of so many tokens.
_FOLD = 64


def top_k(row: NDArray[np.float32], k: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Ids of the `k` largest of `row` (float32 [n_vocab]), best first, and their softmax over just these.

    Ties go to the lower id. A full partition of 152k logits takes longer than a small model's matrices, so the row is
    cut into groups first: the k best lie in the k groups with the largest maxima.
    """
    k = min(k, row.size)
    ids = _candidates(row, k)
    values = row[ids]
    floor = np.partition(values, values.size - k)[values.size - k]
    ids = ids[values >= floor]  # k of them, and those that tie with the last
    best = ids[np.lexsort((ids, -row[ids]))[:k]]
    weights = np.exp((row[best] - row[best[0]]).astype(np.float64))
    return best, weights / weights.sum()


def _candidates(row: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Ids among which the k best (and all that tie with the last of them) are."""
    n_groups = row.size // _FOLD
    if n_groups <= k:
        return np.arange(row.size)
    whole = n_groups * _FOLD
    maxima = row[:whole].reshape(_FOLD, n_groups).max(axis=0)
    floor = np.partition(maxima, n_groups - k)[n_groups - k]
    groups = np.flatnonzero(maxima >= floor)
    ids = (groups + n_groups * np.arange(_FOLD)[:, None]).ravel()
    return np.concatenate([ids, np.arange(whole, row.size)]) if whole < row.size else ids
