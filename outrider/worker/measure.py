"""What a decode costs by its number of rows, measured when a worker starts: the controller's first guess."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from outrider.engine.base import Engine, Span
from outrider.types import RowTime, WorkerRole

#: Numbers of rows that are tried; the first decode of all only warms up.
SIZES = (1, 1, 2, 3, 4, 6, 8, 16)
#: No further size is tried once so much time has passed, microseconds.
BUDGET_US = 2_000_000


def row_times(engine: Engine, role: WorkerRole, clock: Callable[[], int] = perf_counter_ns) -> list[RowTime]:
    """Times of decodes, every row with its logits. A target's rows follow one another, a draft's are one of each branch.

    clock: nanoseconds. The sequences are empty before and after."""
    begun, times = clock(), {}
    for n in SIZES:
        spans = _target_rows(n) if role == "target" else _draft_rows(n)
        fits = max(span.seq for span in spans) < engine.n_seq + engine.n_branches
        if not fits or n > min(engine.n_batch, engine.n_ctx) or clock() - begun > 1000 * BUDGET_US:
            break
        start = clock()
        engine.decode(spans)
        times[n] = (clock() - start) // 1000
        for span in spans:
            engine.truncate(span.seq, 0)
    return [RowTime(n, us) for n, us in times.items()]


def _target_rows(n: int) -> list[Span]:
    return [Span(0, 0, list(range(n)), n)]


def _draft_rows(n: int) -> list[Span]:
    return [Span(seq, 0, [0], 1) for seq in range(n)]
