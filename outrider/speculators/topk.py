"""The best few tokens of a row of logits, and their probabilities among themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BLOCK = 128


def top_k(row: NDArray[np.float32], k: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Ids of the `k` largest of `row` (float32 [n_vocab]), best first, and their softmax over just these.

    Ties go to the lower id. A full partition of 152k logits takes longer than a small model's matrices, so the row is
    cut into blocks first: the k best lie in the k blocks with the largest maxima.
    """
    k = min(k, row.size)
    ids = _candidates(row, k)
    order = np.lexsort((ids, -row[ids]))[:k]
    best = ids[order]
    weights = np.exp((row[best] - row[best[0]]).astype(np.float64))
    return best, weights / weights.sum()


def _candidates(row: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Ids among which the k best (and all that tie with the last of them) are."""
    n_blocks = row.size // _BLOCK
    if n_blocks <= k:
        return np.arange(row.size)
    whole = n_blocks * _BLOCK
    maxima = row[:whole].reshape(n_blocks, _BLOCK).max(axis=1)
    floor = np.partition(maxima, n_blocks - k)[n_blocks - k]
    blocks = np.flatnonzero(maxima >= floor)
    ids = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
    return np.concatenate([ids, np.arange(whole, row.size)])
