"""Requests of clients that are connected by socket (`outrider run --connect`), on the side of the coordinator."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from coordinator.assemble import load_tables, make_request, make_session_chain
from coordinator.result import to_json
from coordinator.service import Service
from coordinator.workers import Connection
from outrider.config import Config
from outrider.config.request import apply_request
from outrider.errors import OutriderError, RequestError
from outrider.types import ChatMessage
from outrider.wire.messages import Cancel, Chunk, Done, Failure, FailureCode, Generate, Message

#: Requests that wait for a free sequence; more are refused.
MAX_QUEUED = 64


@dataclass(slots=True)
class Job:
    """One request of one client."""

    client: Connection
    number: int  # the client's own
    config: Config
    tokens: list[int]
    session: int | None = None  # None while it waits for a free sequence


class Clients:
    """Answers Generate and Cancel. Requests beyond the target's sequences wait in order."""

    def __init__(self, service: Service, config: Config) -> None:
        self._service, self._config = service, config
        self._shared = load_tables(config)
        self._running: list[Job] = []
        self._queue: deque[Job] = deque()

    def handle(self, connection: Connection, message: Message) -> None:
        match message:
            case Generate():
                self._generate(connection, message)
            case Cancel():
                self._cancel([job for job in self._jobs(connection) if job.number == message.request])

    def lost(self, connection: Connection) -> None:
        """A client that went away frees what it used."""
        self._cancel(self._jobs(connection))

    def _jobs(self, connection: Connection) -> list[Job]:
        return [job for job in [*self._running, *self._queue] if job.client is connection]

    def _cancel(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job in self._queue:
                self._queue.remove(job)
            elif job.session is not None:
                self._service.cancel(job.session)

    def _generate(self, connection: Connection, request: Generate) -> None:
        try:
            config = apply_request(self._config, request.options)
            if len(self._queue) >= MAX_QUEUED:
                raise RequestError(f"{MAX_QUEUED} requests are waiting already; try again later")
        except OutriderError as error:
            self._fail(connection, request.request, error)
            return
        job = Job(connection, request.request, config, request.prompt_tokens)
        if request.prompt_tokens:
            self._enqueue(job)
            return
        self._service.tokenize(
            request.prompt,
            [ChatMessage("user", request.prompt)] if request.chat else [],
            lambda tokens: self._enqueue(job, tokens),
            lambda error: self._fail(connection, request.request, error),
        )

    def _enqueue(self, job: Job, tokens: list[int] | None = None) -> None:
        if tokens is not None:
            job.tokens = tokens
        self._queue.append(job)
        self._start_next()

    def _start_next(self) -> None:
        target = self._service.target
        while self._queue and target is not None and target.facts and len(self._running) < target.facts.n_seq:
            self._start(self._queue.popleft())

    def _start(self, job: Job) -> None:
        self._running.append(job)
        try:
            job.session = self._service.submit(
                make_request(job.config, job.tokens),
                make_session_chain(job.config, self._shared),
                lambda text: self._reply(job, Chunk(job.client.incarnation, job.number, text)),
                lambda answer: self._done(job, answer),
            )
        except OutriderError as error:
            self._running.remove(job)
            self._fail(job.client, job.number, error)

    def _done(self, job: Job, answer: dict[str, Any]) -> None:
        self._running.remove(job)
        self._reply(job, Done(job.client.incarnation, job.number, to_json(answer)))
        self._start_next()

    def _reply(self, job: Job, message: Message) -> None:
        self._service.send(job.client, message)

    def _fail(self, connection: Connection, number: int, error: OutriderError) -> None:
        code: FailureCode = "bad_request" if isinstance(error, RequestError) else "worker_lost"
        failure = Failure(connection.incarnation, 0, 0, 0, 0, request=number, code=code, reason=str(error)[:4096])
        self._service.send(connection, failure)
