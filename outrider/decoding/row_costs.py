"""What a decode costs by its number of rows, learned while it runs."""

from __future__ import annotations

import numpy as np

#: Weight of a new measurement.
RATE = 0.2
#: What an additional row costs, in one-row decodes, until it was measured.
DEFAULT_BETA = 0.1


class Average:
    """An exponential average, so it follows a machine that changes its mind; None before the first value."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._stale = False

    def add(self, value: float) -> None:
        if self.value is None or self._stale:
            self.value, self._stale = value, False
        else:
            self.value += RATE * (value - self.value)

    def age(self) -> None:
        """Nothing was measured for long: the next value counts for all before it."""
        self._stale = True


class RowCosts:
    """Seconds of a decode by rows.

    beta: what a row more than were ever measured is thought to cost, in one-row decodes."""

    def __init__(self, beta: float = DEFAULT_BETA) -> None:
        self._beta = beta
        self._by_rows: dict[int, Average] = {}

    @property
    def rows(self) -> list[int]:
        """The numbers of rows that were measured."""
        return sorted(self._by_rows)

    def add(self, n_rows: int, seconds: float) -> None:
        self._by_rows.setdefault(n_rows, Average()).add(seconds)

    def seconds(self, n_rows: int) -> float | None:
        """Of a decode of `n_rows`: measured, or between and beyond what was. None if nothing was measured."""
        known = sorted((n, average.value) for n, average in self._by_rows.items() if average.value is not None)
        if not known:
            return None
        rows = [n for n, _ in known]
        times = [time for _, time in known]
        if n_rows > rows[-1]:
            return times[-1] + (n_rows - rows[-1]) * self._beta * times[0]
        if n_rows < rows[0]:
            return times[0] / (1 + self._beta * (rows[0] - n_rows))
        return float(np.interp(n_rows, rows, times))
