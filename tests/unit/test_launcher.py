"""When a worker is started again, and how the reason of a death is told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from coordinator.assemble import wait_until_ready
from coordinator.launcher import Launcher, Restarts, WorkerProcess, death
from coordinator.schedule import Lockstep
from coordinator.service import Service
from coordinator.signals import Signals
from outrider.config import from_json
from outrider.errors import ModelFileError, OutriderError, WorkerLostError
from outrider.wire.transport import RouterTransport


def test_restarts_back_off_and_give_up() -> None:
    restarts = Restarts(limit=5, window_s=60.0)
    delays = [restarts.next_start(float(i)) for i in range(5)]
    assert [delay and delay - i for i, delay in enumerate(delays)] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert restarts.next_start(5.0) is None
    assert restarts.next_start(64.5) == 64.5 + 0.5  # the first five are forgotten


def dead(code: str, *, was_ready: bool) -> WorkerProcess:
    """A process that has ended as `code` says."""
    stderr = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen([sys.executable, "-c", code], stderr=stderr)
    process.wait()
    return WorkerProcess("d", "draft", process, stderr, was_ready)


KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("code", "was_ready", "kind", "words"),
    [
        ("import sys; print('error: f.gguf: no', file=sys.stderr); sys.exit(3)", False, ModelFileError, "f.gguf: no"),
        ("import sys; print('error: bad key', file=sys.stderr); sys.exit(2)", False, OutriderError, "bad key"),
        ("import sys; print('last word', file=sys.stderr);" + KILL, False, ModelFileError, "m.gguf: draft worker 'd'"),
        (KILL, True, WorkerLostError, "draft worker 'd' was killed by signal 9"),
        ("raise SystemExit(1)", True, WorkerLostError, "draft worker 'd' ended with exit code 1"),
    ],
)
def test_the_reason_of_a_death_is_one_line(code: str, was_ready: bool, kind: Any, words: str) -> None:
    worker = dead(code, was_ready=was_ready)
    error = death(worker, "m.gguf")
    worker.close()
    assert type(error) is kind
    assert words in str(error)
    assert "\n" not in str(error)


def test_the_living_are_not_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    worker = WorkerProcess("d", "draft", process, None)
    assert death(worker, "m.gguf") is None
    worker.close()
    process.wait()


def test_a_worker_that_still_loads_is_not_waited_for() -> None:
    """It would not hear a signal before its model is read."""
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    launcher = Launcher({}, own_stderr=False, limit=1, window_s=1.0)
    launcher.workers["d"] = WorkerProcess("d", "draft", process, None)
    launcher.stop_all(timeout_s=30.0)
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()


def test_a_worker_that_never_gets_ready_ends_the_start() -> None:
    """A worker of another host that does not come: the limit is named, and the time is up."""
    sections = {"target": {"launch": False}, "coordinator": {"start_timeout_s": 0.05}}
    config = from_json(json.dumps(sections))
    transport = RouterTransport()
    try:
        service = Service(transport, {"target": "target"}, Lockstep())
        with Signals() as signals, pytest.raises(WorkerLostError, match=r"target: not ready after .*start_timeout_s"):
            wait_until_ready(service, config, signals, service.turn)
    finally:
        transport.close()
