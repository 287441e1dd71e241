"""How long a draft may be, and how many rows of logits a verification asks for."""

from __future__ import annotations

from typing import NamedTuple


def draft_budget(n_ctx: int, n_past: int, n_predict: int, n_generated: int) -> int:
    """The longest draft that fits, ≥ 0; 0 means: do not ask for one.

    n_ctx: positions of the target's context. n_past: position of the pending token, that is base_len. Its row and the
    position of the token sampled last are kept free. n_predict: tokens that the request may generate, -1 = no bound;
    n_generated: those already committed. Every round commits one token more than it accepts.
    """
    room = n_ctx - n_past - 2
    if n_predict >= 0:
        room = min(room, n_predict - n_generated - 1)
    return max(room, 0)


class OutputLimits(NamedTuple):
    """Rows of logits that one decode may have to give."""

    total: int
    per_seq: int


def output_limits(n_batch: int, n_parallel: int, n_draft: int) -> OutputLimits:
    """Rows for `n_parallel` sequences with drafts of `n_draft` (negative: none), as llama.cpp counts them.

    Both are capped by `n_batch` rows per decode; there is no lower bound (`at_least_one` adds it)."""
    per_seq = 1 + max(0, n_draft)
    return OutputLimits(min(n_batch, n_parallel * per_seq), min(n_batch, per_seq))


def at_least_one(limits: OutputLimits) -> OutputLimits:
    """The limits a context is created with: no context works without an output row."""
    return OutputLimits(max(1, limits.total), max(1, limits.per_seq))
