"""What a worker says to its coordinator by itself, and when. Pure: times are seconds of the caller's clock.

    no connection ──connected──▶ greeting ──Welcome──▶ welcome
          ▲                       │   ▲                   │
          └──────disconnected─────┘   └── unknown to the coordinator, or it fell silent
    greeting, welcome ──Failure "refused"──▶ refused, for good

While greeting, Hello is repeated; while welcome, Heartbeat.
"""

from __future__ import annotations

import math
from typing import Literal

from outrider.wire.messages import PROTOCOL_VERSION, Failure, Heartbeat, Message, Shutdown, Welcome

#: Heartbeats of the coordinator that may be missing before it counts as lost.
MAX_SILENT_BEATS = 10

Meaning = Literal["forward", "handled", "stale", "foreign"]


class LinkState:
    """`incarnation` is the number of the connection, 0 while there is none."""

    def __init__(self, hello_every_s: float, max_silent_beats: int = MAX_SILENT_BEATS) -> None:
        self.incarnation = 0
        self.refused = False
        self.n_silences = 0
        self._connected = False
        self._hello_every_s, self._max_silent_beats = hello_every_s, max_silent_beats
        self._heartbeat_s = hello_every_s
        self._next_word = math.inf
        self._silent_after = math.inf

    def connection(self, stands: bool, now: float) -> None:
        """A connection was made, or the one there was is gone: what was agreed on it is void."""
        self._connected = stands
        self._greet(now)

    def refuse(self, now: float) -> None:
        """We are not wanted: say nothing more."""
        self.refused = True
        self._greet(now)

    def hear(self, message: Message, now: float) -> Meaning:
        """Take note of a message of the coordinator.

        "forward": for the work loop; "handled": not for it; "stale": of another connection; "foreign": a Welcome of
        another version of the protocol, which refuses us as `refused` does.
        """
        meaning = self._meaning(message, now)
        if self.incarnation:
            self._silent_after = now + self._max_silent_beats * self._heartbeat_s
        return meaning

    def _meaning(self, message: Message, now: float) -> Meaning:
        match message:
            case Shutdown():  # also the last word of a connection that has ended meanwhile
                return "forward"
            case Welcome() if self.refused or not self._connected:
                return "stale"
            case Welcome() if message.protocol == PROTOCOL_VERSION:
                self.incarnation, self._heartbeat_s = message.incarnation, message.heartbeat_s
                self._next_word = now + self._heartbeat_s
            case Failure(code="unknown_incarnation"):
                self._greet(now)
                return "handled"
            case Welcome() | Failure(code="refused"):
                self.refuse(now)
                return "forward" if isinstance(message, Failure) else "foreign"
            case Heartbeat():
                return "handled"
            case Failure(incarnation=0):
                return "forward"
        return "forward" if getattr(message, "incarnation", None) == self.incarnation else "stale"

    def word_due(self, now: float) -> Literal["hello", "heartbeat"] | None:
        """What is to be said now; saying it sets the time of the next."""
        if self.incarnation and now >= self._silent_after:
            self.n_silences += 1
            self._greet(now)
        if now < self._next_word:
            return None
        self._next_word = now + (self._heartbeat_s if self.incarnation else self._hello_every_s)
        return "heartbeat" if self.incarnation else "hello"

    def wait_s(self, now: float) -> float:
        """Seconds until `word_due` may have something to say, if nothing happens before; at most an hour."""
        return min(max(min(self._next_word, self._silent_after) - now, 0.0), 3600.0)

    def _greet(self, now: float) -> None:
        self.incarnation = 0
        self._silent_after = math.inf
        self._next_word = now if self._connected and not self.refused else math.inf
