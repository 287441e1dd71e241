"""The worker processes that are ours: descriptors that tell of their ends, and who is started again."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from coordinator.launcher import Launcher, WorkerProcess, open_pidfd
from outrider.errors import OutriderError

log = logging.getLogger("outrider.coordinator")


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker that died, and why. "restarts": it will be back; "away": a draft that died too often; "fatal": a worker
    without which nobody can be served."""

    worker: WorkerProcess
    error: OutriderError
    outcome: Literal["restarts", "away", "fatal"]


class Children:
    """`launcher` is None where all workers are started elsewhere. `keep_target`: a target that dies is started again."""

    def __init__(self, launcher: Launcher | None, *, keep_target: bool) -> None:
        self._launcher, self._keep_target = launcher, keep_target
        self._pids: dict[int, int] = {}  # by descriptor

    @property
    def fds(self) -> Collection[int]:
        """Readable when one of them has ended."""
        return self._pids.keys()

    @property
    def next_due(self) -> float | None:
        """When one is to be started again."""
        return None if self._launcher is None else self._launcher.next_due()

    def start(self) -> None:
        """Raises WorkerLostError if a process cannot be started."""
        if self._launcher is not None:
            self._launcher.start_all()
            self._watch()

    def start_due(self, now: float) -> None:
        """Those whose back-off is over."""
        due = self.next_due
        if self._launcher is not None and due is not None and due <= now:
            self._launcher.start_due(now)
            self._watch()

    def ready(self, name: str) -> None:
        """This worker, if it is ours, has loaded its model."""
        if self._launcher is not None:
            self._launcher.ready(name)

    def kill(self, name: str) -> None:
        """It no longer listens; its death brings the restart."""
        if self._launcher is not None:
            self._launcher.kill(name)

    def ended(self, ready: Collection[int], now: float) -> Iterator[Ended]:
        """Those that have died since the last call. `ready`: descriptors found readable; on systems that have none the
        workers are looked at each time."""
        launcher = self._launcher
        if launcher is None or not (self._pids.keys() & ready or len(self._pids) < len(launcher.workers)):
            return
        for worker, error in launcher.dead():
            yield Ended(worker, error, self._outcome(launcher, worker, error, now))
            self._watch()

    def _outcome(
        self, launcher: Launcher, worker: WorkerProcess, error: OutriderError, now: float
    ) -> Literal["restarts", "away", "fatal"]:
        """Start it again if that can help; else a draft stays away, and without a target we end."""
        is_draft = worker.role == "draft"
        if worker.name not in launcher.once_ready or not (is_draft or self._keep_target):
            return "fatal"
        restart = launcher.schedule_restart(worker.name, now)
        if restart is not None:
            log.warning("%s; it is started again in %.1f s", error, restart - now)
            return "restarts"
        if is_draft:
            log.error("%s; it died too often, drafting stays off", error)
            return "away"
        return "fatal"

    def stop(self, grace_s: float) -> None:
        """Nothing of ours is left running."""
        if self._launcher is not None:
            self._launcher.stop_all(grace_s)
        for fd in list(self._pids):
            self._unwatch(fd)

    def _watch(self) -> None:
        assert self._launcher is not None
        alive = {worker.pid for worker in self._launcher.workers.values()}
        for fd in [fd for fd, pid in self._pids.items() if pid not in alive]:
            self._unwatch(fd)
        for pid in alive - set(self._pids.values()):
            pidfd = open_pidfd(pid)
            if pidfd is not None:
                self._pids[pidfd] = pid

    def _unwatch(self, fd: int) -> None:
        del self._pids[fd]
        os.close(fd)
