"""Threads that share out the pieces of one piece of work at a time.

Pieces are handed out while they are being worked on, so a thread that the system holds up delays one piece only, and
a thread that wakes up too late is not waited for. Useful for calls that let go of the interpreter lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue

import numpy as np


@dataclass(slots=True)
class _Job:
    work: Callable[[int], None]
    n_pieces: int
    next_piece: count[int] = field(default_factory=count)  # `next` on it is atomic
    finished: SimpleQueue[None] = field(default_factory=SimpleQueue)  # an item of each thread that took part
    error: BaseException | None = None

    def help(self) -> None:
        """Do pieces until none is left, or one failed."""
        try:
            for piece in self.next_piece:
                if piece >= self.n_pieces or self.error is not None:
                    return
                self.work(piece)
        except BaseException as error:
            self.error = error


class WorkPool:
    """The calling thread and `n_threads - 1` others. One thread at a time may call `run`."""

    def __init__(self, n_threads: int) -> None:
        assert n_threads >= 1
        self.n_threads = n_threads
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"outrider-numpy-{i}", daemon=True) for i in range(1, n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Callable[[int], None], n_pieces: int) -> None:
        """`work(i)` for every i in 0..n_pieces-1, in any order and on any thread; returns when all are done.

        Raises what `work` raised; pieces that were not begun by then are left out.
        """
        if n_pieces == 1 or not self._threads:
            for piece in range(n_pieces):
                work(piece)
            return
        job = _Job(work, n_pieces)
        n_called = min(len(self._threads), n_pieces - 1)
        for _ in range(n_called):
            self._jobs.put(job)
        job.help()
        for _ in range(n_called - self._withdraw()):
            job.finished.get()
        if job.error is not None:
            raise job.error

    def _withdraw(self) -> int:
        """Take back the calls that no thread has answered yet; returns how many."""
        n_withdrawn = 0
        try:
            while True:
                self._jobs.get_nowait()
                n_withdrawn += 1
        except Empty:
            return n_withdrawn

    @np.errstate(all="ignore")  # whoever asked checks the results
    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.help()
            job.finished.put(None)

    def close(self) -> None:
        """End the threads; idempotent."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []


def usable_cpus() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
