"""Log lines that a peer can cause: one per kind and interval, so that a flood fills no disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger("outrider.wire")


class LimitedLog:
    """Warnings, at most one of each kind per `interval_s`; the next one says how many were left out."""

    def __init__(
        self, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic, log: logging.Logger = _log
    ) -> None:
        self._interval_s, self._clock, self._log = interval_s, clock, log
        self._quiet_until: dict[str, float] = {}
        self._n_left_out: dict[str, int] = {}

    def warn(self, kind: str, text: str) -> None:
        now = self._clock()
        if now < self._quiet_until.get(kind, now):
            self._n_left_out[kind] = self._n_left_out.get(kind, 0) + 1
            return
        n_left_out = self._n_left_out.pop(kind, 0)
        self._quiet_until[kind] = now + self._interval_s
        self._log.warning("%s%s", text, f" ({n_left_out} more of these before)" if n_left_out else "")
