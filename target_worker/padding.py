"""Rows that cost less than nothing: kernels come in tiles, and a decode of three rows may take longer than one of four."""

from __future__ import annotations

from outrider.decoding.row_costs import MAX_PADDING, RowCosts

#: A decode must get shorter by this factor to be padded: averages are not exact.
WORTH = 0.95


def n_padding(n_rows: int, most: int, costs: RowCosts) -> int:
    """How many rows, whose logits nobody reads, to add to a decode of `n_rows`; `most` is the room for them."""
    if n_rows not in costs.rows:
        return 0
    own = costs.seconds(n_rows) or 0.0
    larger = [n for n in costs.rows if n_rows < n <= n_rows + min(most, MAX_PADDING)]
    best = min(larger, key=lambda n: costs.seconds(n) or own, default=n_rows)
    return best - n_rows if (costs.seconds(best) or own) < WORTH * own else 0
