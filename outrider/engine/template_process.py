"""Chat templates run in a child process, which is killed where they take too long.

A template comes with a model file, and nothing in the language bounds what it computes. The child is kept for the next
rendering, started again after it was killed, and ends with its parent.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from time import monotonic

from outrider.errors import RequestError

CPU_S = 1.0  # processor time of one rendering; the largest templates in use take some milliseconds
WALL_S = 15.0  # for a child that the system does not let run
MAX_REPLY = 1 << 26  # bytes: the longest output, with every character escaped

_COMMAND = [sys.executable, "-m", "outrider.engine.template_child"]


class TemplateProcess:
    """One thread at a time may call it."""

    def __init__(self, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> None:
        self.cpu_s, self.wall_s = cpu_s, wall_s
        self._child: _Child | None = None

    def start(self) -> _Child:
        """The running child; a new one, which may still be on its way, if there is none."""
        if self._child is None or self._child.process.poll() is not None:
            self._child = _Child()
        return self._child

    def render(self, source: str, values: Mapping[str, object]) -> str:
        """What the template writes. Raises RequestError if it is faulty, refuses the values, writes or takes too much."""
        try:
            request = json.dumps([source, values, self.cpu_s]).encode() + b"\n"
        except (RecursionError, ValueError) as error:
            raise RequestError(f"variables of the chat template: {error}") from None
        child = self.start()
        try:
            reply = json.loads(child.ask(request, self.wall_s))
        except TimeoutError:
            child.end()
            raise _refusal(f"gave no answer within {self.wall_s:g} s") from None
        except (OSError, ValueError):
            raise _refusal(self._why_ended(child.end())) from None
        if "error" in reply:
            raise RequestError(reply["error"])
        return str(reply["text"])

    def _why_ended(self, code: int) -> str:
        if code == -signal.SIGPROF:
            return f"took more than {self.cpu_s:g} s of processor time"
        return f"ended the process that ran it (exit code {code})"


class _Child:
    """The process and our end of its socket; both are gone when this object is."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        with theirs:
            # A process group of its own: Ctrl-C is for its parent.
            self.process = subprocess.Popen(_COMMAND, stdin=theirs.fileno(), stdout=theirs.fileno(), process_group=0)
        self._end = weakref.finalize(self, _end, self.process, self._link)

    def ask(self, request: bytes, wall_s: float) -> bytes:
        """The line that answers. Raises TimeoutError, or another OSError if the process ends or writes too much."""
        deadline = monotonic() + wall_s
        self._link.settimeout(wall_s)
        self._link.sendall(request)
        reply = bytearray()
        while not reply.endswith(b"\n"):
            self._link.settimeout(max(deadline - monotonic(), 1e-3))
            piece = self._link.recv(1 << 16)
            reply += piece
            if not piece or len(reply) > MAX_REPLY:
                raise ConnectionError
        return bytes(reply)

    def end(self) -> int:
        """End the process, if it has not ended; its exit code."""
        self._end()
        return int(self.process.returncode)


def _end(process: subprocess.Popen[bytes], link: socket.socket) -> None:
    link.close()
    process.kill()
    process.wait()


def _refusal(why: str) -> RequestError:
    return RequestError(f"the model's chat template {why}; shorten the messages, or give another --chat-template-file")
