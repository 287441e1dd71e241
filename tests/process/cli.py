"""The real program in real processes. Whatever a test starts is ended, and what it leaves behind fails the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OUTRIDER = [sys.executable, "-m", "coordinator.cli"]
MARK = "TEST_RUN_MARK"
TARGET = "scripted:seed=1"
DRAFT = "scripted:seed=1,disagree=20"
#: Slow enough to be interrupted: 10 ms per decode.
SLOW = ",decode_us=10000"


def poll_for(predicate: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """What `predicate` returns as soon as it is true; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"not true within {timeout_s} s: {predicate}"
        time.sleep(0.01)
    return value


class Started:
    """A running `outrider`. Pipes are unbuffered, so what was read and what comes later join without a gap."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.first = b""

    def first_byte(self) -> None:
        """Wait until its answer begins."""
        assert self.process.stdout is not None
        self.first = self.process.stdout.read(1)
        assert self.first, self.end()

    def line(self) -> str:
        """The next line of its standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode().rstrip("\n")

    def end(self, timeout_s: float = 30.0) -> tuple[int, str, str]:
        """Exit code, standard output and error."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, (self.first + out).decode(errors="replace"), err.decode(errors="replace")


class Cli:
    """Starts `outrider` with a temporary folder of its own and a mark in the environment of all that it starts."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        self.environ = {**os.environ, MARK: mark, "TMPDIR": str(folder)}
        self.mark = mark

    def run(
        self, *arguments: str, command: list[str] | None = None, timeout_s: float = 30.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*(command or OUTRIDER), *arguments],
            capture_output=True,
            timeout=timeout_s,
            env=self.environ,
            **options,
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def answer(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """The JSON object of `outrider run --json …`, which must succeed."""
        done = self.run("run", "--json", *arguments, **options)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    @contextmanager
    def start(self, *arguments: str, command: list[str] | None = None) -> Iterator[Started]:
        pipes: dict[str, Any] = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        process = subprocess.Popen([*(command or OUTRIDER), *arguments], bufsize=0, env=self.environ, **pipes)
        try:
            yield Started(process)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=10)
            except (subprocess.TimeoutExpired, ValueError):  # ValueError: the test has closed a pipe
                process.kill()
                process.wait()

    def processes(self, word: str = "") -> list[int]:
        """Running processes with our mark whose command line contains `word`."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and self._is_ours(entry) and word in _read(entry / "cmdline"):
                found.append(int(entry.name))
        return found

    def _is_ours(self, entry: Path) -> bool:
        return f"{MARK}={self.mark}\0" in _read(entry / "environ") and "\nState:\tZ" not in _read(entry / "status")

    def worker(self, role: str) -> int:
        """Process id of the running worker, as soon as there is one."""
        return int(poll_for(lambda: self.processes(f"{role}_worker"))[0])


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def model_flags(target: str = TARGET, draft: str | None = DRAFT) -> list[str]:
    return ["--engine", "scripted", "-m", target, *(["-md", draft] if draft else [])]
