"""Many sessions on the same two workers, in one thread, some of them cancelled at random points of a round."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from coordinator.auto import make_session
from coordinator.instructions import Send, WakeAt
from coordinator.request import Request
from coordinator.schedule import Lockstep, Schedule
from coordinator.session import Phase, Session
from draft_worker.worker import DraftWorker
from outrider.engine.base import Engine
from outrider.wire.messages import SessionMessage
from outrider.worker.slots import SlotWorker
from target_worker.worker import TargetWorker
from tests.harness import ticking

Check = Callable[["Crowd", Session], None]


class Crowd:
    """`run` serves requests, as many at once as the workers have sequences, until all of them are over.

    cancels: a request is cancelled with this probability at each of its messages. check: called after each verdict.
    """

    def __init__(
        self,
        target: Engine,
        draft: Engine,
        *,
        cancels: float = 0.0,
        seed: int = 0,
        schedule: Schedule | None = None,
        check: Check | None = None,
    ) -> None:
        self.workers: dict[str, SlotWorker[Any]] = {
            "target": TargetWorker(target, ticking()),
            "draft": DraftWorker(draft, ticking()),
        }
        self.live: dict[int, Session] = {}
        self._cancels, self._random = cancels, random.Random(seed)
        self._schedule = schedule or Lockstep()
        self._check = check
        self._queue: deque[tuple[Session, Send]] = deque()
        self._wakes: dict[int, float] = {}  # session -> when it wants to be woken
        self._now = 0.0

    def run(self, requests: Sequence[Request]) -> list[Session]:
        """Finished sessions, in the order of the requests."""
        todo = deque(replace(request, session=number) for number, request in enumerate(requests, 1))
        n_seq = min(worker.engine.n_seq for worker in self.workers.values())
        sessions = []
        while todo or self.live:
            while todo and len(self.live) < n_seq:
                sessions.append(self._start(todo.popleft()))
            self._deliver()
            busy = [worker for worker in self.workers.values() if worker.has_work()]
            for worker in busy:
                for reply in worker.step():
                    self._receive(reply)
            if not busy and not self._queue:
                self._wake()
        self._deliver()
        return sessions

    def _start(self, request: Request) -> Session:
        session = self.live[request.session] = make_session(request, self._schedule)
        for incarnation, (role, worker) in enumerate(self.workers.items(), 1):
            session.worker_ready(role, incarnation, worker.engine.facts)  # type: ignore[arg-type]
        self._take(session, session.start(self._now))
        return session

    def _take(self, session: Session, commands: Sequence[object]) -> None:
        number = session.request.session
        for command in commands:
            if isinstance(command, Send):
                self._queue.append((session, command))
            elif isinstance(command, WakeAt):
                self._wakes[number] = command.time
        if session.phase is Phase.DONE:
            self.live.pop(number, None)
            self._wakes.pop(number, None)

    def _wake(self) -> None:
        """Nothing else happens: time goes on to the next wish."""
        if self._wakes:
            number = min(self._wakes, key=lambda number: self._wakes[number])
            self._now = max(self._now, self._wakes.pop(number))
            self._take(self.live[number], self.live[number].wake(self._now))

    def _deliver(self) -> None:
        while self._queue:
            session, send = self._queue.popleft()
            for reply in self.workers[send.role].handle(send.message):
                self._receive(reply)
            if session.phase is not Phase.DONE and self._random.random() < self._cancels:
                self._take(session, session.cancel(self._now))

    def _receive(self, reply: object) -> None:
        assert isinstance(reply, SessionMessage)
        session = self.live.get(reply.session)
        if session is None:
            return
        n_before = len(session.generated)
        self._take(session, session.handle(reply, self._now))
        session.prepare()
        if self._check is not None and len(session.generated) > n_before:
            self._check(self, session)


def caches_are_exact(crowd: Crowd, session: Session) -> None:
    """After a round: each worker's rows are what its engine holds, and all of them are of the committed text, as far
    as that goes; the target holds everything but the pending token."""
    base_len = len(session.history) - 1
    for role, worker in crowd.workers.items():
        slot = worker.slots.get(session.request.session)
        if slot is None:
            continue
        rows = slot.cache.tokens
        assert worker.engine.length(slot.cache.seq) == len(rows)
        assert rows[:base_len] == session.history.tokens[: min(base_len, len(rows))]
        if role == "target":
            assert len(rows) >= base_len
