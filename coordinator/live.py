"""A running session: where its text goes, what it waits for, and who watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coordinator.accounting import Accounting
from coordinator.instructions import Emit
from coordinator.observer import Direction, Observer
from coordinator.result import result
from coordinator.session import Session
from outrider.types import WorkerRole
from outrider.wire.messages import DraftRequest, SessionMessage, VerifyRequest

#: A reply that is due this long although its worker says that it has nothing to do was lost on the way.
RESEND_AFTER_S = 1.0


@dataclass(slots=True)
class Live:
    """Times are seconds of the service's clock."""

    session: Session
    on_text: Callable[[str], None]
    on_done: Callable[[dict[str, Any]], None]
    on_emit: Callable[[Emit], None] | None = None  # the same text with its tokens
    observer: Observer | None = None
    accounting: Accounting = field(default_factory=Accounting)
    asked_at: dict[WorkerRole, float] = field(default_factory=dict)
    wake_at: float | None = None
    _seen: list[tuple[float, Direction, WorkerRole, SessionMessage, int]] = field(default_factory=list)

    @property
    def number(self) -> int:
        return self.session.request.session

    def saw(self, now: float, direction: Direction, role: WorkerRole, message: SessionMessage, n_bytes: int) -> None:
        """A message of this session was sent to, or came from, a worker. Who watches is told when the workers have all
        that they wait for."""
        if direction == "to" and isinstance(message, DraftRequest | VerifyRequest):
            self.asked_at[role] = now
        self._seen.append((now, direction, role, message, n_bytes))

    def _tell(self) -> None:
        for seen in self._seen:
            self.accounting.saw(*seen)
            if self.observer is not None:
                self.observer.saw(*seen)
        self._seen.clear()

    def worked(self, start: float, end: float) -> None:
        """The coordinator was busy with this session."""
        self._tell()
        self.accounting.worked(self.number, start, end)
        if self.observer is not None:
            self.observer.worked(self.number, start, end)

    def misses(self, role: WorkerRole, now: float) -> bool:
        """Has a reply of this worker, which has nothing to do, been due for too long?"""
        return self.session.expects(role) and now - self.asked_at.get(role, now) > RESEND_AFTER_S

    def emit(self, emit: Emit) -> None:
        if emit.text:
            self.on_text(emit.text)
        if self.on_emit is not None:
            self.on_emit(emit)

    def finish(self, now: float) -> None:
        self._tell()
        self.on_done(result(self.session, self.accounting.report(now)))
