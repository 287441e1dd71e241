"""Was somebody at work meanwhile? Pure."""

from __future__ import annotations


class Busy:
    """How many are at work, and how often one has begun."""

    def __init__(self) -> None:
        self._n_at_work = self._n_begun = 0

    def change(self, by: int) -> None:
        """One more has begun (+1), or one has ended (-1)."""
        self._n_at_work += by
        self._n_begun += max(by, 0)

    def idle_mark(self) -> int | None:
        """For `idle_since`; None while somebody is at work."""
        return None if self._n_at_work else self._n_begun

    def idle_since(self, mark: int | None) -> bool:
        """Has nobody been at work since this mark was taken?"""
        return mark is not None and mark == self.idle_mark()
