"""Signals as events of the loop: they set a flag and make a descriptor readable, and nothing else happens in between."""

from __future__ import annotations

import contextlib
import signal
import socket
from types import FrameType, TracebackType

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Signals:
    """While it is entered, SIGINT, SIGTERM and SIGHUP are only noted in `received`; `fd` wakes a poll."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def __enter__(self) -> Signals:
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        self._read.close()
        self._write.close()

    @property
    def fd(self) -> int:
        return self._read.fileno()

    def drain(self) -> None:
        """Make `fd` unreadable again."""
        with contextlib.suppress(BlockingIOError):
            self._read.recv(4096)

    @property
    def exit_code(self) -> int:
        """128 + number of the first signal, as shells have it."""
        return 128 + self.received[0] if self.received else 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
