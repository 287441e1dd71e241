"""What a decode costs by its number of rows, learned while it runs."""

from __future__ import annotations

import math
from bisect import bisect, insort
from collections.abc import Sequence

from outrider.averages import Average
from outrider.types import RowTime

#: Rows that a target adds at most to make a decode shorter.
MAX_PADDING = 3
#: What a row more than were ever measured costs at least, in one-row decodes.
MIN_BETA = 0.1


class RowCosts:
    """Seconds of a decode by rows.

    times: measured before. hopeful: a row more than were ever measured may be free; else it costs what those of the upper
    half did."""

    def __init__(self, times: Sequence[RowTime] = (), *, hopeful: bool = False) -> None:
        self._hopeful = hopeful
        self._by_rows: dict[int, Average] = {}
        #: The numbers of rows that were measured, rising.
        self.rows: list[int] = []
        for time in times:
            self.add(time.n_rows, time.us / 1e6)

    def add(self, n_rows: int, seconds: float) -> None:
        if n_rows not in self._by_rows:
            self._by_rows[n_rows] = Average()
            insort(self.rows, n_rows)
        self._by_rows[n_rows].add(seconds)

    def seconds(self, n_rows: int) -> float | None:
        """Of a decode of `n_rows`: measured, or between and beyond what was. None if nothing was measured."""
        if n_rows in self._by_rows:
            return self._by_rows[n_rows].value
        rows = self.rows
        if not rows:
            return None
        if n_rows > rows[-1]:
            return self._of(rows[-1]) + (n_rows - rows[-1]) * self._next_row_s()
        if n_rows < rows[0]:
            return self._of(rows[0]) / (1 + MIN_BETA * (rows[0] - n_rows))
        i = bisect(rows, n_rows)
        below, above = rows[i - 1], rows[i]
        return self._of(below) + (n_rows - below) * self._slope(below, above)

    def gap(self, n_rows: int) -> float:
        """How many rows are between this number and those that were measured; 0 within them, inf if nothing was."""
        return max(self.rows[0] - n_rows, n_rows - self.rows[-1], 0) if self.rows else math.inf

    def _next_row_s(self) -> float:
        """What a row costs beyond those that were measured."""
        if self._hopeful:
            return 0.0
        rows, least = self.rows, MIN_BETA * self._of(self.rows[0])
        lower = [n for n in rows if 2 * n <= rows[-1]]
        return max(self._slope(lower[-1], rows[-1]), least) if lower else least

    def _slope(self, below: int, above: int) -> float:
        """Seconds a row between two measured numbers of rows."""
        return (self._of(above) - self._of(below)) / (above - below)

    def _of(self, n_rows: int) -> float:
        value = self._by_rows[n_rows].value
        assert value is not None
        return value
