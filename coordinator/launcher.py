"""Starts worker processes, restarts them with back-off, and ends them all.

A worker is a fresh interpreter (never a fork of a process with sockets or threads). It gets its configuration as one
line of JSON on its standard input, which then stays open: when it closes, its parent is gone and the worker ends. Its
standard error goes to an unnamed file, so that the reason of an early death can be told in one line.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import IO

from outrider.errors import ModelFileError, OutriderError, WorkerLostError
from outrider.types import WorkerRole
from outrider.worker.main import ERROR_PREFIX

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0


@dataclass(slots=True)
class WorkerProcess:
    """One running worker."""

    name: str
    role: WorkerRole
    process: subprocess.Popen[bytes]
    stderr: IO[bytes] | None  # None: it writes to ours
    was_ready: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def last_line(self) -> str:
        """The last line it wrote that explains something."""
        if self.stderr is None:
            return ""
        self.stderr.seek(0)
        lines = [line for line in self.stderr.read()[-65536:].decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(ERROR_PREFIX)]
        return (errors or lines or [""])[-1].removeprefix(ERROR_PREFIX)

    def close(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        if self.stderr is not None:
            self.stderr.close()


def spawn(role: WorkerRole, name: str, config_json: str, *, own_stderr: bool) -> WorkerProcess:
    """Start `python -m {role}_worker`. Raises WorkerLostError if the process cannot be started."""
    stderr = None if own_stderr else tempfile.TemporaryFile()  # noqa: SIM115
    command = [sys.executable, "-m", f"{role}_worker", "--config", "-"]
    try:
        # A process group of its own: Ctrl-C reaches us, and we end our workers in order.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, process_group=0
        )
    except OSError as error:
        raise WorkerLostError(f"{role} worker {name!r} cannot be started: {error}") from None
    worker = WorkerProcess(name, role, process, stderr)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died already; `death` will say why
        process.stdin.write(config_json.encode() + b"\n")
        process.stdin.flush()
    return worker


def death(worker: WorkerProcess, model: str) -> OutriderError | None:
    """Why this worker is dead, as the error to end with; None while it lives."""
    code = worker.process.poll()
    if code is None:
        return None
    line, loading = worker.last_line(), not worker.was_ready
    who = f"{worker.role} worker {worker.name!r}"
    if code < 0 and loading:
        return ModelFileError(f"{model}: {who} was killed by signal {-code} while loading: {line or 'no word'}")
    if code == ModelFileError.exit_code:
        return ModelFileError(line or f"{model}: {who} could not load it")
    if code > 0 and loading:
        error = OutriderError(line or f"{who} ended with exit code {code}")
        error.exit_code = code
        return error
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return WorkerLostError(f"{who} {how}{': ' + line if line and code > 0 else ''}")


@dataclass(slots=True)
class Restarts:
    """Back-off and breaker of one worker: 0.5 s, doubling to 30 s; given up after `limit` starts within `window_s`."""

    limit: int
    window_s: float
    _times: list[float] = field(default_factory=list)

    def next_start(self, now: float) -> float | None:
        """When to start again after a death at `now`; None to give up."""
        self._times = [time for time in self._times if now - time < self.window_s]
        if len(self._times) >= self.limit:
            return None
        delay = min(FIRST_BACKOFF_S * 2.0 ** len(self._times), MAX_BACKOFF_S)
        self._times.append(now)
        return now + delay


class Launcher:
    """The workers that this process started. `configs` holds the JSON line of each worker, by name."""

    def __init__(
        self, configs: Mapping[str, tuple[WorkerRole, str, str]], *, own_stderr: bool, limit: int, window_s: float
    ) -> None:
        self._configs = dict(configs)  # name -> role, model, configuration
        self._own_stderr = own_stderr
        self._restarts = {name: Restarts(limit, window_s) for name in configs}
        self._due: dict[str, float] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.once_ready: set[str] = set()  # names whose worker has worked before
        self.n_restarts: dict[WorkerRole, int] = {}  # by role

    def start_all(self) -> None:
        for name in self._configs:
            self.start(name)

    def start(self, name: str) -> None:
        role, _, config = self._configs[name]
        self._due.pop(name, None)
        self.workers[name] = spawn(role, name, config, own_stderr=self._own_stderr)

    def ready(self, name: str) -> None:
        """This worker has loaded its model."""
        if name in self.workers:
            self.workers[name].was_ready = True
            self.once_ready.add(name)

    def dead(self) -> Iterator[tuple[WorkerProcess, OutriderError]]:
        """Workers that have died since the last call, each told once."""
        for name, worker in list(self.workers.items()):
            _, model, _ = self._configs[name]
            error = death(worker, model)
            if error is not None:
                worker.close()
                del self.workers[name]
                yield worker, error

    def schedule_restart(self, name: str, now: float) -> float | None:
        """Start this worker again after its back-off; the time of that, or None if it died too often."""
        start = self._restarts[name].next_start(now)
        if start is not None:
            self._due[name] = start
        return start

    def start_due(self, now: float) -> None:
        for name in [name for name, due in self._due.items() if due <= now]:
            role = self._configs[name][0]
            self.n_restarts[role] = self.n_restarts.get(role, 0) + 1
            self.start(name)

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def kill(self, name: str) -> None:
        """End a worker that no longer listens."""
        if name in self.workers:
            self.workers[name].process.kill()

    def stop_all(self, timeout_s: float) -> None:
        """Wait for workers that were told to end; then SIGTERM, then SIGKILL. One that has not yet served has nothing to end
        in order, and inside a model's loading it would not listen. Nothing is left afterwards."""
        self._due.clear()
        for worker in self.workers.values():
            if not worker.was_ready:
                worker.process.kill()
        for ask in (lambda _: None, subprocess.Popen.terminate, subprocess.Popen.kill):
            for worker in self.workers.values():
                if worker.process.poll() is None:
                    ask(worker.process)
            self._wait(timeout_s if self.workers else 0.0)
        for worker in self.workers.values():
            worker.process.wait()
            worker.close()
        self.workers.clear()

    def _wait(self, timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        for worker in self.workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(deadline - monotonic(), 0.01))


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the system has such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
