"""Rows of logits per decode and per sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.decoding.limits import output_limits

if TYPE_CHECKING:
    from pathlib import Path


def check(path: Path, data: dict[str, Any]) -> list[str]:
    """Differences between the recorded rows and `output_limits`; empty = match."""
    differences = []
    for n_batch, n_parallel, n_draft, total, per_seq in data["rows"]:
        ours = output_limits(n_batch, n_parallel, n_draft)
        # the recorded total was narrowed to 32 bits
        if ((ours.total + 2**31) % 2**32 - 2**31, ours.per_seq) != (total, per_seq):
            differences.append(f"{path.name}: {(n_batch, n_parallel, n_draft)}: {ours}, recorded {(total, per_seq)}")
    return differences
