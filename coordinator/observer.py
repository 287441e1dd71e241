"""What watches a service at work: it is told of every message of a session, and changes nothing. Pure."""

from __future__ import annotations

from typing import Literal, Protocol

from outrider.types import WorkerRole
from outrider.wire.messages import SessionMessage

Direction = Literal["to", "from"]


class Observer(Protocol):
    """Times are seconds of the service's clock; they never go back."""

    def saw(self, time: float, direction: Direction, role: WorkerRole, message: SessionMessage, n_bytes: int) -> None:
        """A message was given to the transport ("to" the worker), or has come "from" one. `n_bytes`: its size on the
        wire; 0 where the transport does not count."""
        ...

    def worked(self, session: int, start: float, end: float) -> None:
        """The coordinator was busy with one event of this session: reading it, deciding, and all that it then sent."""
        ...
