"""Averages that follow a machine which changes its mind."""

from __future__ import annotations

#: Weight of a new measurement.
RATE = 0.2
#: Weight of a value above the lowest.
RISE = 0.02


class Average:
    """An exponential average; None before the first value."""

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


class Lowest:
    """What something takes at least: what it takes more, it waits for others. Rises slowly."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        if self.value is None or value < self.value:
            self.value = value
        else:
            self.value += RISE * (value - self.value)
