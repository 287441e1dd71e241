"""Who is connected: names, incarnations and signs of life. Pure; times are seconds of the caller's clock.

A connection lives until its process is known to be dead, it is refused, or nothing was heard of it for `lost_after_s`
(three times as long for a target).
A worker whose work makes no progress for `stuck_after_s` although requests wait is lost too: its socket may answer for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from outrider.types import ModelFacts, WorkerRole
from outrider.wire.messages import PROTOCOL_VERSION, Failure, FailureCode, Heartbeat, Hello, Ready, Welcome

Role = WorkerRole | Literal["client"]


#: Without a draft a request goes on; without its target it ends. So a target may be silent so many times longer.
TARGET_PATIENCE = 3.0


@dataclass(slots=True)
class Connection:
    """One connected process. `peer` is the identity of its socket."""

    peer: bytes
    name: str
    role: Role
    pid: int
    incarnation: int
    last_heard: float
    progress: int = 0
    progress_at: float = 0.0
    n_waiting: int = 0
    facts: ModelFacts | None = None  # None until Ready
    usable: bool = False  # the vocabulary was checked
    was_asked: bool = False  # to measure what its decodes take

    @property
    def worker_role(self) -> WorkerRole:
        assert self.role != "client"
        return self.role


class Connections:
    """All connections, by peer. `expected` says which worker names may come, and in which role."""

    def __init__(
        self, expected: Mapping[str, WorkerRole], *, heartbeat_s: float, lost_after_s: float, stuck_after_s: float
    ) -> None:
        self._expected = dict(expected)
        self._heartbeat_s, self._lost_after_s, self._stuck_after_s = heartbeat_s, lost_after_s, stuck_after_s
        self._by_peer: dict[bytes, Connection] = {}
        self._last_incarnation = 0

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._by_peer.values()))

    def of_peer(self, peer: bytes) -> Connection | None:
        return self._by_peer.get(peer)

    def of_role(self, role: Role) -> Connection | None:
        """The usable worker of this role."""
        return next((c for c in self._by_peer.values() if c.role == role and c.usable), None)

    def hello(self, peer: bytes, hello: Hello, now: float) -> tuple[Welcome | Failure, Connection | None]:
        """The answer to a Hello, and the connection that it ends, if any (a worker that greets again starts anew)."""
        obstacle = self._obstacle(peer, hello)
        if obstacle is not None:
            return refusal("refused", obstacle), None
        before = self._by_peer.pop(peer, None)
        self._last_incarnation += 1
        connection = Connection(peer, hello.name, hello.role, hello.pid, self._last_incarnation, now, progress_at=now)
        self._by_peer[peer] = connection
        return Welcome(PROTOCOL_VERSION, connection.incarnation, self._heartbeat_s), before

    def _obstacle(self, peer: bytes, hello: Hello) -> str | None:
        if hello.protocol != PROTOCOL_VERSION:
            return f"{hello.name} speaks protocol {hello.protocol}, this coordinator speaks {PROTOCOL_VERSION}"
        if hello.role == "client":
            return None  # any number may come, also with one key
        role = self._expected.get(hello.name)
        if role is None:
            names = ", ".join(sorted(self._expected)) or "none"
            return f"no worker named {hello.name!r} is configured (names: {names})"
        if role != hello.role:
            return f"{hello.name!r} is configured as {role} worker, it came as {hello.role} worker"
        taken = self.namesake(peer, hello)
        if taken is not None:
            return f"the name {hello.name!r} is in use by process {taken.pid}"
        return None

    def namesake(self, peer: bytes, hello: Hello) -> Connection | None:
        """The worker of another process that has this name."""
        if hello.role == "client":
            return None
        return next((c for c in self._by_peer.values() if c.name == hello.name and c.peer != peer), None)

    def heard(self, peer: bytes, incarnation: int, now: float) -> Connection | None:
        """The connection that a message came on, or None if it belongs to none that is alive."""
        connection = self._by_peer.get(peer)
        if connection is None or connection.incarnation != incarnation:
            return None
        connection.last_heard = now
        return connection

    def heartbeat(self, connection: Connection, beat: Heartbeat, now: float) -> None:
        if beat.progress != connection.progress or beat.n_waiting == 0:
            connection.progress, connection.progress_at = beat.progress, now
        connection.n_waiting = beat.n_waiting

    def ready(self, connection: Connection, ready: Ready) -> None:
        connection.facts = ready.facts

    def lost(self, now: float) -> list[tuple[Connection, str]]:
        """Connections that must be given up, and why."""
        return [(c, why) for c in self._by_peer.values() if (why := self._why_lost(c, now)) is not None]

    def _why_lost(self, connection: Connection, now: float) -> str | None:
        patience = TARGET_PATIENCE if connection.role == "target" else 1.0
        if now - connection.last_heard > patience * self._lost_after_s:
            return f"nothing heard for {now - connection.last_heard:.1f} s"
        if connection.n_waiting and now - connection.progress_at > self._stuck_after_s:
            return f"no progress for {now - connection.progress_at:.1f} s"
        return None

    def drop(self, connection: Connection) -> None:
        self._by_peer.pop(connection.peer, None)


def refusal(code: FailureCode, reason: str, incarnation: int = 0) -> Failure:
    """A failure that concerns the connection itself."""
    return Failure(incarnation, 0, 0, 0, 0, request=0, code=code, reason=reason[:4096])
