"""Who runs next: requests wait, in order, for a free sequence of the target. One queue for all kinds of clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.instructions import Emit
from coordinator.request import Request
from coordinator.service import Service, check_prompt
from coordinator.session import Session
from coordinator.shift import joined, shifted
from outrider.errors import BusyError, OutriderError, WorkerLostError
from outrider.speculators.chain import Chain


@dataclass(slots=True, eq=False)
class Ticket:
    """One request, waiting or running. `make_chain` is called when it starts."""

    request: Request
    make_chain: Callable[[], Chain]
    on_emit: Callable[[Emit], None]
    on_done: Callable[[dict[str, Any]], None]  # the object of `--json`
    on_error: Callable[[OutriderError], None]  # it could not be started
    session: int | None = None  # None while it waits
    state: Session | None = None  # of the session


class Admission:
    """At most as many requests run as the target has sequences; at most `max_queued` wait."""

    def __init__(self, service: Service, max_queued: int) -> None:
        self._service, self.max_queued = service, max_queued
        self.running: list[Ticket] = []
        self.waiting: deque[Ticket] = deque()

    def enqueue(self, ticket: Ticket) -> None:
        """Raises RequestError for a prompt that cannot be served, BusyError if too many requests wait already."""
        target = self._service.target
        if target is not None and target.facts is not None:
            check_prompt(ticket.request.prompt, target.facts.n_vocab, target.facts.n_ctx)
        self.check_room()
        self.waiting.append(ticket)
        self.pump()

    def check_room(self) -> None:
        """Raise BusyError if one more request could neither run nor wait."""
        runs_at_once = not self.waiting and len(self.running) < self._n_sequences()
        if not runs_at_once and len(self.waiting) >= self.max_queued:
            raise BusyError(f"{len(self.waiting)} requests are waiting already; try again later")

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request that waits, end one that runs; nothing for one that is over."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        elif ticket.session is not None:
            self._service.cancel(ticket.session)

    def refuse(self, error: OutriderError) -> None:
        """None of those that wait will run."""
        while self.waiting:
            self.waiting.popleft().on_error(error)

    def pump(self) -> None:
        """Start what can be started. To be called whenever a sequence or the target may have become free."""
        while self.waiting and len(self.running) < self._n_sequences():
            self._start(self.waiting.popleft())

    def _n_sequences(self) -> int:
        target = self._service.target
        return target.facts.n_seq if target is not None and target.facts is not None else 0

    def _start(self, ticket: Ticket) -> None:
        self.running.append(ticket)
        try:
            self._run(ticket, ticket.request, [])
        except WorkerLostError:
            self.running.remove(ticket)
            self.waiting.appendleft(ticket)  # the target went just now: wait for it
        except OutriderError as error:
            self.running.remove(ticket)
            ticket.on_error(error)

    def _run(self, ticket: Ticket, request: Request, before: list[dict[str, Any]]) -> None:
        """Run one session of the request; `before`: the answers of those that had no more room."""
        ticket.session = self._service.submit(
            request,
            ticket.make_chain(),
            lambda text: None,
            lambda answer: self._done(ticket, [*before, answer]),
            ticket.on_emit,
        )
        live = self._service.live.get(ticket.session)
        ticket.state = live.session if live is not None else None

    def _done(self, ticket: Ticket, answers: list[dict[str, Any]]) -> None:
        following = shifted(ticket.state) if ticket.state is not None else None
        if following is not None and self._service.target is not None:
            self._run(ticket, following, answers)
            return
        self.running.remove(ticket)
        ticket.on_done(joined(answers) if len(answers) > 1 else answers[0])
        self.pump()
