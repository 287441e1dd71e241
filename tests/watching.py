"""Messages of a session as an observer sees them: made by hand with exact times, or by a real session and its workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coordinator.instructions import Send
from coordinator.observer import Observer
from coordinator.request import Request
from coordinator.schedule import Schedule
from coordinator.session import Session
from outrider.wire.messages import Branch, DraftTokens, SessionMessage, Verdict, VerifyRequest
from tests.harness import Pair, make_request

N_BYTES = 100


def draft_tokens(
    start: int, tokens: Sequence[int], ms: float, *, round: int = 1, epoch: int = 0, n_dropped: int = 0, **others: Any
) -> DraftTokens:
    """`others`: branches, as lists of a position and tokens."""
    branches = [Branch(at, tokens, [0.5] * len(tokens)) for at, *tokens in others.get("branches", ())]
    return DraftTokens(
        *(2, 1, round, epoch, start),
        start=start,
        tokens=list(tokens),
        probs=[0.5] * len(tokens),
        entropies=[1.0] * len(tokens),
        branches=branches,
        final=True,
        n_dropped=n_dropped,
        n_evaluated=len(tokens),
        decode_us=round_us(ms),
    )


def verify_request(committed_len: int, draft: Sequence[int], *, round: int = 1, epoch: int = 0) -> VerifyRequest:
    return VerifyRequest(1, 1, round, epoch, committed_len, 0, committed_len, [], list(draft), 0, False)


def verdict(committed_len: int, tokens: Sequence[int], n_tested: int, ms: float, *, round: int = 1) -> Verdict:
    """All tokens but the last were drafted."""
    return Verdict(
        *(1, 1, round, 0, committed_len),
        ahead=False,
        n_tested=n_tested,
        accepted=len(tokens) - 1,
        tokens=list(tokens),
        pieces=[b"x"] * len(tokens),
        end_of_text=False,
        row_hashes=[],
        n_reused=0,
        n_evaluated=n_tested + 1,
        decode_us=round_us(ms),
        n_sessions=1,
        n_rows=n_tested + 1,
        logprobs=[],
    )


def round_us(ms: float) -> int:
    return round(1e3 * ms)


def show(observer: Observer, *seen: tuple[float, SessionMessage]) -> None:
    """Tell an observer of messages; times in milliseconds."""
    for ms, message in seen:
        sent = isinstance(message, VerifyRequest)
        role: Any = "draft" if isinstance(message, DraftTokens) else "target"
        observer.saw(ms / 1e3, "to" if sent else "from", role, message, N_BYTES)


class Watched(Pair):
    """A pair whose messages are shown to observers, as the service does it."""

    def __init__(self, *engines: Any, observers: Sequence[Observer]) -> None:
        super().__init__(*engines)
        self.observers = observers

    def run(self, request: Request, schedule: Schedule | None = None) -> Session:
        return super().run(replace(request, report_probs=True), schedule)

    def run_watched(self, schedule: Schedule, **options: Any) -> Session:
        return self.run(make_request(**options), schedule)

    def drive(self, session: Session, commands: Sequence[Any]) -> None:
        handle = session.handle

        def handling(message: Any, now: float) -> Any:
            for observer in self.observers:
                role: Any = "draft" if isinstance(message, DraftTokens) else "target"
                observer.saw(self.clock, "from", role, message, N_BYTES)
                observer.worked(message.session, self.clock, self.clock + 0.0001)
            self.clock += 0.001
            return handle(message, now)

        session.handle = handling  # type: ignore[method-assign]
        super().drive(session, commands)

    def execute(self, session: Session, command: Any, queue: Any) -> None:
        if isinstance(command, Send):
            for observer in self.observers:
                message: Any = command.message
                observer.saw(self.clock, "to", command.role, message, N_BYTES)
        super().execute(session, command, queue)
