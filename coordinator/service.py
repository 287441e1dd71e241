"""The coordinator's loop: sockets, clock and processes around the pure sessions.

    receive → handle → execute → report

`Service` is driven by `turn`, which waits for the next thing to happen and does all that follows from it. Commands of the
sessions become messages; signs of life become `worker_ready` and `worker_lost`; deaths of our own children come from the
launcher. It never blocks on a peer.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Protocol

from coordinator.auto import make_session
from coordinator.children import Children, Ended
from coordinator.instructions import Emit, Finished, Send, WakeAt
from coordinator.launcher import Launcher
from coordinator.live import Live
from coordinator.observer import Observer
from coordinator.questions import Questions
from coordinator.request import Request
from coordinator.schedule import Schedule
from coordinator.session import Session
from coordinator.vocab_check import VocabCheck
from coordinator.workers import Connection, Connections, refusal
from outrider.errors import (
    OutriderError,
    PeerUnknownError,
    PromptTooLongError,
    ProtocolError,
    RequestError,
    SendError,
    VocabMismatchError,
    WorkerLostError,
)
from outrider.speculators.chain import Chain
from outrider.types import WorkerRole
from outrider.wire.base import Router
from outrider.wire.messages import (
    Failure,
    FailureCode,
    Heartbeat,
    Hello,
    Measure,
    Message,
    Ready,
    SessionMessage,
    Shutdown,
    TextResult,
    TokenizeResult,
    VocabBlock,
    VocabRequest,
)

log = logging.getLogger("outrider.coordinator")

#: Messages handled before the clock is looked at again.
MAX_PER_TURN = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    heartbeat_s: float = 0.5
    lost_after_s: float = 3.0
    stuck_after_s: float = 120.0
    away_s: float = 120.0  # that requests wait for a target which was lost


class ClientHandler(Protocol):
    """Answers clients (`coordinator/clients.py`)."""

    def handle(self, connection: Connection, message: Message) -> None: ...
    def lost(self, connection: Connection) -> None: ...


class Service:
    """See the module's docstring. One thread calls it."""

    def __init__(
        self,
        transport: Router,
        expected: Mapping[str, WorkerRole],
        schedule: Schedule,
        *,
        limits: Limits | None = None,
        launcher: Launcher | None = None,
        keep_target: bool = False,
        measure_draft: bool = False,
        observer: Observer | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        limits = limits or Limits()
        self.transport, self.schedule, self.launcher, self.clock = transport, schedule, launcher, clock
        self.children = Children(launcher, keep_target=keep_target)
        self.questions = Questions(lambda: self.target, transport.send)
        self.connections = Connections(
            expected,
            heartbeat_s=limits.heartbeat_s,
            lost_after_s=limits.lost_after_s,
            stuck_after_s=limits.stuck_after_s,
        )
        self.limits = limits
        self.observer = observer  # watches all sessions
        self.keep_target = keep_target  # wait for a lost target to come back, instead of failing its requests
        self._measure_draft = measure_draft  # once the target is there, and idle: it would disturb the draft
        self.clients: ClientHandler | None = None
        self.live: dict[int, Live] = {}
        self.fatal: OutriderError | None = None  # why this coordinator can serve nobody
        self.refused: dict[str, OutriderError] = {}  # workers that will not come back, by role
        self.n_dropped = 0  # messages that belonged to no connection
        self._numbers = itertools.count(1)
        self._vocab = VocabCheck()
        self._next_beat = 0.0
        self._away_since: float | None = None  # the target, that was here before

    # --- what the outside calls ----------------------------------------------------------------------------------

    @property
    def target(self) -> Connection | None:
        return self.connections.of_role("target")

    @property
    def draft(self) -> Connection | None:
        return self.connections.of_role("draft")

    @property
    def overdue(self) -> WorkerLostError | None:
        """The target has been away for so long that nobody should wait for it any more."""
        if self._away_since is None or self.clock() - self._away_since <= self.limits.away_s:
            return None
        return WorkerLostError(f"target worker: lost, and not back within {self.limits.away_s:g} s")

    def start_workers(self) -> None:
        """Launch the workers that are ours. Raises WorkerLostError if a process cannot be started."""
        self.children.start()

    def submit(
        self,
        request: Request,
        chain: Chain,
        on_text: Callable[[str], None],
        on_done: Callable[[dict[str, Any]], None],
        on_emit: Callable[[Emit], None] | None = None,
    ) -> int:
        """Start a session; its number. `on_done` gets the object of `--json`, `on_emit` the text token by token.

        Raises RequestError for a prompt that is empty, too long, or holds an id that the target does not have, and
        WorkerLostError without a target.
        """
        target = self.target
        if target is None or target.facts is None:
            raise WorkerLostError("target worker: not connected")
        check_prompt(request.prompt, target.facts.n_vocab, target.facts.n_ctx)
        number = next(self._numbers)
        request = replace(request, session=number, report_probs=self.observer is not None)
        session = make_session(request, self.schedule, chain)
        live = Live(session, on_text, on_done, on_emit, self.observer)
        self.live[number] = live
        for connection in (target, self.draft):
            if connection is not None and connection.facts is not None:
                session.worker_ready(connection.worker_role, connection.incarnation, connection.facts)
        self._run(live, session.start(self.clock()))
        return number

    def cancel(self, number: int) -> None:
        """Nobody wants it any more."""
        self._end(number, lambda session, now: session.cancel(now))

    def fail(self, number: int, error: str, code: FailureCode | None = None) -> None:
        """It cannot be finished."""
        self._end(number, lambda session, now: session.fail(now, error, code))

    def _end(self, number: int, end: Callable[[Session, float], Sequence[object]]) -> None:
        live = self.live.get(number)
        if live is not None:
            self._run(live, end(live.session, self.clock()))

    def turn(self, timeout_s: float, fds: Sequence[int] = ()) -> set[int]:
        """Wait for the next event, at most `timeout_s`, and handle all that is ready.

        Returns those of the caller's descriptors that are readable.
        """
        wait = min(timeout_s, self._until_next_deadline())
        ready = self.transport.poll(wait, [*fds, *self.children.fds])
        traffic = self.transport.traffic
        for _ in range(MAX_PER_TURN):
            start, n_bytes = self.clock(), traffic["in"]
            received = self.transport.recv()
            if received is None:
                break
            self._on_message(*received, start, traffic["in"] - n_bytes)
        for end in self.children.ended(ready, self.clock()):
            self._on_death(end)
        self._on_time()
        return ready & set(fds)

    def shutdown(self, reason: str, grace_s: float) -> None:
        """Tell all workers to end and wait for ours; nothing of ours is left running."""
        for number in list(self.live):
            self.fail(number, reason, "worker_lost")
        for connection in self.connections:
            self.send(connection, Shutdown(connection.incarnation, reason))
        self.children.stop(grace_s)

    # --- messages ------------------------------------------------------------------------------------------------

    def _on_message(self, peer: bytes, message: Message, start: float, n_bytes: int) -> None:
        """`start`: when it was about to be read."""
        now = self.clock()
        if isinstance(message, Hello):
            self._on_hello(peer, message, now)
            return
        connection = self.connections.heard(peer, getattr(message, "incarnation", 0), now)
        if connection is None:
            self.n_dropped += 1
            if self.connections.of_peer(peer) is None:
                self._reply(peer, refusal("unknown_incarnation", "this connection is not known; say Hello"))
            return
        if connection.role == "client":
            if isinstance(message, Heartbeat):
                self.connections.heartbeat(connection, message, now)
            elif self.clients is not None:
                self.clients.handle(connection, message)
            return
        self._on_worker_message(connection, message, now, start, n_bytes)

    def _on_worker_message(
        self, connection: Connection, message: Message, now: float, start: float, n_bytes: int
    ) -> None:
        match message:
            case Heartbeat():
                self.connections.heartbeat(connection, message, now)
                self._resend_lost(connection, now)
            case Ready():
                self.connections.ready(connection, message)
                self.children.ready(connection.name)
                self._check_vocab()
            case VocabBlock():
                self._vocab.took(connection.worker_role, message)
                self._check_vocab()
            case TokenizeResult() | TextResult():
                self.questions.answered(message)
            case Failure() if message.request:
                self.questions.failed(message)
            case SessionMessage() if message.session in self.live:
                live = self.live[message.session]
                live.saw(now, "from", connection.worker_role, message, n_bytes)
                self._run(live, live.session.handle(message, now))
                live.session.prepare()
                live.worked(start, self.clock())
            case _:
                self.n_dropped += 1

    def _on_hello(self, peer: bytes, hello: Hello, now: float) -> None:
        namesake = self.connections.namesake(peer, hello)
        if namesake is not None and not self._is_reachable(namesake):
            # Restarted from outside: its socket is gone, although it is not silent for long enough yet.
            self._forget(namesake, "its connection is gone, and another process has come in its place", comes_back=True)
        answer, before = self.connections.hello(peer, hello, now)
        if before is not None:
            self._forget(before, "it greeted again", comes_back=True, same_process=True)
        if isinstance(answer, Failure):
            log.warning("refused: %s", answer.reason)
        else:
            log.info("%s %r connected (process %d)", hello.role, hello.name, hello.pid)
        self._reply(peer, answer)

    def _is_reachable(self, connection: Connection) -> bool:
        try:
            self.transport.send(connection.peer, Heartbeat(connection.incarnation, 0, 0))
        except PeerUnknownError:
            return False
        except SendError:
            pass  # it is there, and does not read
        return True

    def _check_vocab(self) -> None:
        """Let workers in whose vocabulary was found compatible; ask for what is still needed to tell."""
        roles = {c.worker_role: c for c in self.connections if c.facts is not None}
        target, draft = roles.get("target"), roles.get("draft")
        if target is not None and not target.usable:
            self._let_in(target)
        if target is None or draft is None or draft.usable or target.facts is None or draft.facts is None:
            return
        try:
            wanted = self._vocab.wanted(target.facts, draft.facts)
        except VocabMismatchError as error:
            self._refuse(draft, error)
            return
        if wanted is None and self._is_to_measure(draft):
            draft.was_asked = True
            self.send(draft, Measure(draft.incarnation))  # it will be Ready again
        elif wanted is None:
            self._let_in(draft)
        else:
            for role, block in wanted:
                self.send(roles[role], VocabRequest(roles[role].incarnation, block))

    def _is_to_measure(self, draft: Connection) -> bool:
        return self._measure_draft and not (draft.was_asked or self.live)

    def _let_in(self, connection: Connection) -> None:
        assert connection.facts is not None
        connection.usable = True
        if connection.role == "target":
            self._away_since = None
        self.refused.pop(connection.role, None)
        log.info("%s %r is ready: %s", connection.role, connection.name, connection.facts.name)
        for live in list(self.live.values()):
            ready = live.session.worker_ready(connection.worker_role, connection.incarnation, connection.facts)
            self._run(live, ready)

    def _refuse(self, connection: Connection, error: OutriderError) -> None:
        log.warning("%s %r refused: %s", connection.role, connection.name, error)
        self.refused[connection.role] = error
        self.send(connection, refusal("refused", str(error), connection.incarnation))
        self._forget(connection, str(error))

    def _resend_lost(self, connection: Connection, now: float) -> None:
        """A worker that waits for work while we wait for it has lost a message, or we have."""
        if connection.n_waiting:
            return
        for live in list(self.live.values()):
            if live.misses(connection.worker_role, now):
                self._run(live, live.session.resend(connection.worker_role))

    # --- execute -------------------------------------------------------------------------------------------------

    def _run(self, live: Live, commands: Sequence[object]) -> None:
        for command in commands:
            match command:
                case Send(role, message):
                    connection = self.connections.of_role(role)
                    if connection is not None and not self._send_of_session(live, connection, message):
                        return
                case WakeAt(time):
                    live.wake_at = time
                case Emit():
                    live.emit(command)
                case Finished():
                    self.live.pop(live.number, None)
                    live.finish(self.clock())

    def _send_of_session(self, live: Live, connection: Connection, message: SessionMessage) -> bool:
        """False: the message is not valid, which ends this session and no other."""
        now, n_bytes = self.clock(), self.transport.traffic["out"]
        try:
            self.send(connection, message)
        except ProtocolError as error:
            self.fail(live.number, f"the request does not fit a message: {error}", "bad_request")
            return False
        live.saw(now, "to", connection.worker_role, message, self.transport.traffic["out"] - n_bytes)
        return True

    def send(self, connection: Connection, message: Message) -> None:
        """A peer that takes no more is treated as silent: `lost_after_s` decides."""
        self._reply(connection.peer, message)

    def _reply(self, peer: bytes, message: Message) -> None:
        try:
            self.transport.send(peer, message)
        except SendError as error:
            log.debug("not sent: %s", error)

    # --- time and death ------------------------------------------------------------------------------------------

    def _until_next_deadline(self) -> float:
        now = self.clock()
        times = [self._next_beat, *(live.wake_at for live in self.live.values() if live.wake_at is not None)]
        if self.children.next_due is not None:
            times.append(self.children.next_due)
        return max(min(times) - now, 0.0)

    def _on_time(self) -> None:
        now = self.clock()
        for live in [live for live in self.live.values() if live.wake_at is not None and live.wake_at <= now]:
            live.wake_at = None
            self._run(live, live.session.wake(now))
            live.worked(now, self.clock())
        for connection, why in self.connections.lost(now):
            log.warning("%s %r lost: %s", connection.role, connection.name, why)
            self._forget(connection, why)
            if connection.role != "client":
                self.children.kill(connection.name)
        if now >= self._next_beat:
            self._next_beat = now + self.limits.heartbeat_s
            for connection in self.connections:
                self.send(connection, Heartbeat(connection.incarnation, 0, 0))
        self.children.start_due(now)
        overdue = self.overdue
        for number in list(self.live) if overdue is not None else ():
            self.fail(number, str(overdue), "worker_lost")

    def _on_death(self, end: Ended) -> None:
        for connection in self.connections:
            if connection.name == end.worker.name:
                self._forget(connection, str(end.error))
        if end.outcome == "away":
            self.refused["draft"] = end.error
        elif end.outcome == "fatal":
            self.fatal = end.error

    def _forget(
        self, connection: Connection, why: str, *, comes_back: bool = False, same_process: bool = False
    ) -> None:
        """This connection is over. `comes_back`: a process of its name has greeted, and is ready soon."""
        self.connections.drop(connection)
        if connection.role == "client":
            if self.clients is not None:
                self.clients.lost(connection)
            return
        self._vocab.forget(connection.worker_role)
        if connection.role == "target":
            if connection.usable:
                self._away_since = self.clock()
            self.questions.lost(WorkerLostError(f"target worker {connection.name!r} lost: {why}"))
        for live in list(self.live.values()):
            role, now = connection.worker_role, self.clock()
            self._run(live, live.session.worker_lost(role, why, now, same_process=same_process))
            if connection.role == "target" and not (self.keep_target or comes_back):
                self.fail(live.number, f"target worker {connection.name!r} lost: {why}", "worker_lost")


def check_prompt(prompt: Sequence[int], n_vocab: int, n_ctx: int) -> None:
    """Raise RequestError for a prompt that this target cannot continue."""
    if not prompt:
        raise RequestError("the prompt is empty: give at least one token")
    if len(prompt) >= n_ctx:
        raise PromptTooLongError(len(prompt), n_ctx)
    bad = next((token for token in prompt if not 0 <= token < n_vocab), None)
    if bad is not None:
        raise RequestError(f"prompt token {bad} is not in the target's vocabulary (0 to {n_vocab - 1})")
