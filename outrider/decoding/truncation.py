"""The truncation samplers: which candidates survive. Definitions as llama.cpp's samplers of the same names.

"Sorted" means: logits descending, equal logits by ascending token id. (llama.cpp leaves the order of equal logits to
its sort; here it is fixed, so that a text never depends on it.) Probabilities are float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Logits = NDArray[np.float32]
    Probs = NDArray[np.float64]

_GROUP = 64  # elements per group in `_floor`
_HEAD = 256  # candidates that `nucleus` sorts before it sorts all of them


def top(row: Logits, k: int) -> tuple[Ids, Logits]:
    """The `k` ≥ 1 best candidates of a row, sorted; fewer where fewer are above -inf.

    row: float32 [n_vocab], no nan."""
    floor = _floor(row, k) if k < len(row) else np.float32(-np.inf)
    ids, logits = above(row, floor)
    order = np.argsort(-logits, kind="stable")[:k]
    return ids[order], logits[order]


def above(row: Logits, floor: np.float32) -> tuple[Ids, Logits]:
    """All candidates that reach `floor` and are above -inf, by ascending id."""
    ids = np.flatnonzero(row >= floor if floor > -np.inf else row > -np.inf)
    return ids, row[ids]


def _floor(row: Logits, k: int) -> np.float32:
    """A value that at least `k` elements of `row` reach, and few more. 1 ≤ k ≤ len(row).

    It is the k-th largest of the maxima of groups of 64: two vectorised passes where a selection in the whole row would
    cost ten times as much. Rows too small for that are selected in whole.
    """
    n_groups = len(row) // _GROUP
    values = row[: n_groups * _GROUP].reshape(_GROUP, n_groups).max(axis=0) if n_groups >= k else row
    floor: np.float32 = np.partition(values, len(values) - k)[len(values) - k]
    return floor


def softmax(logits: Logits) -> Probs:
    """Probabilities of a non-empty array of finite logits."""
    powers = _powers(logits, logits.max())
    probs: Probs = powers / powers.sum()
    return probs


def _powers(logits: Logits, best: np.float32) -> Probs:
    powers: Probs = np.exp(logits.astype(np.float64) - float(best))
    return powers


def typical(ids: Ids, logits: Logits, typical_p: float) -> tuple[Ids, Logits]:
    """The locally typical candidates (Meister et al. 2022), sorted: those whose surprise is nearest to the entropy,
    until their probabilities exceed `typical_p`; at least one. ids, logits: sorted, not empty, finite.

    A probability that underflows to 0 adds nothing to the entropy (in llama.cpp it makes it nan)."""
    probs = softmax(logits)
    possible = probs > 0
    surprise = np.full_like(probs, np.inf)
    surprise[possible] = -np.log(probs[possible])
    entropy = float((probs[possible] * surprise[possible]).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    n_kept = int(np.searchsorted(np.cumsum(probs[order]), typical_p, side="right")) + 1
    kept = np.sort(order[:n_kept])
    return ids[kept], logits[kept]


def top_p_len(probs: Probs, top_p: float) -> int:
    """How many of the sorted probabilities it takes to reach `top_p`: at least one; one more than there are if they do
    not reach it."""
    return int(np.searchsorted(np.cumsum(probs), top_p, side="left")) + 1


def nucleus(row: Logits, top_p: float) -> tuple[Ids, Logits]:
    """Top-p over the whole vocabulary, in no order; of equal logits the lowest ids. top_p < 1.

    row: float32 [n_vocab] with a finite maximum, no nan. Few candidates suffice for most rows, so all are sorted only
    where they do not."""
    best = row.max()
    total = float(_powers(row, best).sum())
    ids, logits = top(row, _HEAD)
    n_kept = top_p_len(_powers(logits, best) / total, top_p)
    if n_kept <= len(ids):
        return ids[:n_kept], logits[:n_kept]
    descending = np.sort(row)[::-1]
    n_kept = min(top_p_len(_powers(descending, best) / total, top_p), len(row))
    ids, logits = above(row, descending[n_kept - 1])
    n_surplus = max(len(ids) - n_kept, 0)
    equal = np.flatnonzero(logits == descending[n_kept - 1])
    kept = np.delete(np.arange(len(ids)), equal[len(equal) - n_surplus :])
    return ids[kept], logits[kept]


def min_p_floor(best: np.float32, min_p: float) -> np.float32:
    """The logit of a candidate that is `min_p` times as probable as the best one; 0 < min_p ≤ 1."""
    return np.float32(best + np.log(np.float32(min_p)))
