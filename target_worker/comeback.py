"""Which sessions are back in a moment: a decode takes little longer with their rows in it, and two take twice as long.

Sessions that are answered together ask again together, some thousandths of a second apart. Without a wait the first of them
would start a decode of its own, the others would share the next one, and it would stay so for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How long a decode may wait, as a part of the one before it, and at most.
MAX_SHARE = 0.1
MAX_WAIT_NS = 10_000_000
#: A session that was waited for in vain is not waited for 2, 4, 8, … times.
MAX_LEFT_OUT = 5


@dataclass(slots=True)
class Comeback:
    """Whether the next request of one session is worth a wait. Times are nanoseconds."""

    _is_awaited: bool = False
    _due: int | None = None  # until when it is waited for
    _n_vain: int = 0  # waits without it, since the last one with it
    _n_left_out: int = 0  # answers still to come after which it is not waited for

    def answered(self) -> None:
        """Its request was answered: the next one is on its way, unless something else has to be done first."""
        self._due = None
        self._is_awaited = self._n_left_out == 0
        self._n_left_out = max(self._n_left_out - 1, 0)

    def came(self) -> None:
        """Its next request is here."""
        if self._due is not None:
            self._n_vain = 0
        self._is_awaited, self._due = False, None

    def wait(self, now: int, longest: int) -> int:
        """How much longer other sessions' rows should wait for it; never more than `longest` from the first call on."""
        if not self._is_awaited:
            return 0
        if self._due is None:
            self._due = now + longest
        if now < self._due:
            return self._due - now
        self._n_vain = min(self._n_vain + 1, MAX_LEFT_OUT)
        self._n_left_out = 2**self._n_vain
        self._is_awaited, self._due = False, None
        return 0


def longest_wait(decode_us: int) -> int:
    """Nanoseconds that the rows at hand may wait, after a decode that took this long."""
    return min(int(decode_us * 1000 * MAX_SHARE), MAX_WAIT_NS)
