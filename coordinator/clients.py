"""Requests of clients that are connected by socket (`outrider run --connect`), on the side of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.admission import Admission, Ticket
from coordinator.assemble import load_tables, make_request, make_session_chain
from coordinator.instructions import Emit
from coordinator.result import to_json
from coordinator.service import Service
from coordinator.workers import Connection
from outrider.config import Config
from outrider.config.request import apply_request
from outrider.errors import OutriderError, ProtocolError, RequestError
from outrider.types import ChatMessage
from outrider.wire.messages import Cancel, Chunk, Done, Failure, FailureCode, Generate, Message


@dataclass(slots=True)
class Job:
    """One request of one client."""

    client: Connection
    number: int  # the client's own
    config: Config
    ticket: Ticket | None = None  # None while its prompt is tokenized


class Clients:
    """Answers Generate and Cancel."""

    def __init__(self, service: Service, config: Config, admission: Admission) -> None:
        self._service, self._config, self._admission = service, config, admission
        self._shared = load_tables(config)
        self._jobs: list[Job] = []

    def handle(self, connection: Connection, message: Message) -> None:
        match message:
            case Generate():
                self._generate(connection, message)
            case Cancel():
                self._cancel([job for job in self._jobs_of(connection) if job.number == message.request])

    def lost(self, connection: Connection) -> None:
        """A client that went away frees what it used."""
        self._cancel(self._jobs_of(connection))

    def _jobs_of(self, connection: Connection) -> list[Job]:
        return [job for job in self._jobs if job.client is connection]

    def _cancel(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.ticket is not None:
                self._admission.cancel(job.ticket)
            if job in self._jobs:  # it was not running, so nothing else answers
                self._failed(job, RequestError("cancelled before it was started"))

    def _generate(self, connection: Connection, request: Generate) -> None:
        try:
            config = apply_request(self._config, request.options)
            self._admission.check_room()
        except OutriderError as error:
            self._fail(connection, request.request, error)
            return
        job = Job(connection, request.request, config)
        self._jobs.append(job)
        if request.prompt_tokens:
            self._enqueue(job, request.prompt_tokens)
            return
        self._service.questions.tokenize(
            request.prompt,
            [ChatMessage("user", request.prompt)] if request.chat else [],
            lambda tokens: self._enqueue(job, tokens),
            lambda error: self._failed(job, error),
        )

    def _enqueue(self, job: Job, tokens: list[int]) -> None:
        """Read the text that the answer may repeat, if there is one, and then wait for a sequence."""
        prediction = job.config.generation.prediction
        if not prediction:
            self._wait(job, tokens, [])
            return
        self._service.questions.tokenize(
            prediction,
            [],
            lambda predicted: self._wait(job, tokens, predicted),
            lambda error: self._failed(job, error),
            special=False,
        )

    def _wait(self, job: Job, tokens: list[int], prediction: list[int]) -> None:
        if job not in self._jobs:
            return  # cancelled meanwhile
        try:
            job.ticket = Ticket(
                make_request(job.config, tokens, prediction),
                lambda: make_session_chain(job.config, self._shared),
                lambda emit: self._emit(job, emit),
                lambda answer: self._done(job, answer),
                lambda error: self._failed(job, error),
            )
            self._admission.enqueue(job.ticket)
        except OutriderError as error:
            self._failed(job, error)

    def _emit(self, job: Job, emit: Emit) -> None:
        if emit.text:
            self._service.send(job.client, Chunk(job.client.incarnation, job.number, emit.text))

    def _done(self, job: Job, answer: dict[str, Any]) -> None:
        self._forget(job)
        try:
            self._service.send(job.client, Done(job.client.incarnation, job.number, to_json(answer)))
        except ProtocolError as error:
            self._fail(job.client, job.number, RequestError(f"the answer does not fit a message: {error}"))

    def _failed(self, job: Job, error: OutriderError) -> None:
        self._forget(job)
        self._fail(job.client, job.number, error)

    def _forget(self, job: Job) -> None:
        if job in self._jobs:
            self._jobs.remove(job)

    def _fail(self, connection: Connection, number: int, error: OutriderError) -> None:
        code: FailureCode = "bad_request" if isinstance(error, RequestError) else "worker_lost"
        failure = Failure(connection.incarnation, 0, 0, 0, 0, request=number, code=code, reason=str(error)[:4096])
        self._service.send(connection, failure)
