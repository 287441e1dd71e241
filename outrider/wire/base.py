"""What coordinator and workers need of a transport. `transport` keeps it with sockets, `loopback` in memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from outrider.wire.messages import Message

T = TypeVar("T")


class Router(Protocol):
    """The coordinator's end: many peers, each known by the identity (bytes) of its socket.

    One thread uses it. `counts` says how many messages were "malformed" and how many connections "refused", `traffic`
    how many bytes of messages came "in" and went "out".
    """

    counts: Counter[str]
    traffic: Counter[str]

    @property
    def endpoint(self) -> str:
        """Where peers connect."""
        ...

    def poll(self, timeout_s: float | None, fds: Collection[int] = ()) -> set[int]:
        """Wait until a message may be there or one of the file descriptors is readable, at most `timeout_s` (None:
        for ever). Returns the readable descriptors; whether there is a message `recv` says."""
        ...

    def recv(self, timeout_s: float = 0.0) -> tuple[bytes, Message] | None:
        """The next valid message and its sender, or None if none came in time. Invalid ones are counted and answered
        with Failure `bad_request`."""
        ...

    def send(self, peer: bytes, message: Message) -> None:
        """Hand a message over without ever waiting.

        Raises PeerUnknownError if nobody is connected under `peer`, PeerFullError if the peer does not read,
        ProtocolError if the message is not valid. A message handed over may still be lost with the connection.
        """
        ...

    def close(self) -> None:
        """Idempotent; returns within a second whatever the peers do."""
        ...


class Dealer(Protocol):
    """A worker's or client's end: one coordinator. One thread uses it at a time.

    `n_connects` grows with each connection made; `connected` is whether one stands; `refusal` is why none will ever
    stand. They are renewed by `poll` and before every message sent.
    """

    counts: Counter[str]
    n_connects: int
    connected: bool
    refusal: str | None

    def adopt(self) -> None:
        """The calling thread uses it from now on; a lock that it holds keeps all others away."""
        ...

    def poll(self, timeout_s: float | None, fds: Collection[int] = (), *, outbound: bool = False) -> set[int]:
        """As `Router.poll`; waits also for room to send if `outbound`."""
        ...

    def recv(self, timeout_s: float = 0.0) -> Message | None:
        """The next valid message, or None if none came in time. Invalid ones are counted."""
        ...

    def send(self, message: Message) -> None:
        """`send_bytes(encode(message))`."""
        ...

    def send_bytes(self, data: bytes) -> None:
        """Hand an encoded message over without ever waiting. Raises PeerUnknownError if no connection stands,
        PeerFullError if the coordinator does not read."""
        ...

    def close(self) -> None:
        """Idempotent; returns within a second whatever the coordinator does."""
        ...


def take_within(timeout_s: float, take: Callable[[], T | None], poll: Callable[[float], object]) -> T | None:
    """What `take` finds, asked again after each `poll`, until something is there or the time is over."""
    taken = take()
    if taken is not None or timeout_s <= 0:
        return taken
    deadline = time.monotonic() + timeout_s
    while taken is None and (left_s := deadline - time.monotonic()) > 0:
        poll(left_s)
        taken = take()
    return taken
