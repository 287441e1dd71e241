"""Lines of the native library on their way to Python's logging, the last ones kept for error messages."""

from __future__ import annotations

import logging
from collections import deque

_INFO, _WARN, _ERROR = 2, 3, 4  # ggml's levels
_CONTINUED = 5  # a fragment that goes on with the line before

#: What is INFO there (a hundred lines per model) is DEBUG for us.
_LEVELS = {_WARN: logging.WARNING, _ERROR: logging.ERROR}


class NativeLog:
    """Fragments in, whole lines to `logger`. The native side may call `feed` from any thread that holds the GIL."""

    def __init__(self, logger: logging.Logger, keep: int = 30) -> None:
        self._logger = logger
        self._lines: deque[tuple[int, str]] = deque(maxlen=keep)
        self._level = _INFO
        self._fragment = ""

    def feed(self, level: int, text: str) -> None:
        if level != _CONTINUED:
            self._flush()
            self._level = level
        *lines, self._fragment = (self._fragment + text).split("\n")
        for line in lines:
            self._line(line)

    def _flush(self) -> None:
        if self._fragment:
            self._line(self._fragment)
        self._fragment = ""

    def _line(self, line: str) -> None:
        if line.strip(" ."):  # dots are a progress bar
            self._lines.append((self._level, line))
            self._logger.log(_LEVELS.get(self._level, logging.DEBUG), "%s", line)

    def forget(self) -> None:
        """What was logged so far is no longer of interest for an error message."""
        self._flush()
        self._lines.clear()

    def cause(self) -> str:
        """The first error line since `forget`, which names the cause (later ones are its echo), else the last line."""
        self._flush()
        errors = [line for level, line in self._lines if level == _ERROR]
        if errors:
            return errors[0].strip()
        return self._lines[-1][1].strip() if self._lines else "llama.cpp gave no reason"
