"""`--trace FILE`: what coordinator and workers did when, for the viewers that read Chrome's trace format (Perfetto).

`Trace` watches a service and keeps the last `MAX_RECORDS` of what it saw. `coordinator/trace_events.py` draws them, and
`coordinator/trace_file.py` writes the drawing, once, at the end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from coordinator.observer import Direction
from outrider.types import WorkerRole
from outrider.wire.messages import DraftRequest, DraftTokens, SessionMessage, Verdict, VerifyRequest

#: About 40 MB of memory.
MAX_RECORDS = 100_000


@dataclass(frozen=True, slots=True)
class Seen:
    """One message. `args`: its fields that are worth showing; `decode_us`: the worker had computed so long for it."""

    time: float
    direction: Direction
    role: WorkerRole
    kind: str
    session: int
    round: int
    committed_len: int
    n_bytes: int
    decode_us: int
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Worked:
    """The coordinator was busy with a session."""

    session: int
    start: float
    end: float


class Trace:
    """Keeps `coordinator.observer.Observer`."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self.records: deque[Seen | Worked] = deque(maxlen=max_records)
        self.n_seen = 0

    @property
    def n_forgotten(self) -> int:
        """Records that had to make room for later ones."""
        return self.n_seen - len(self.records)

    def saw(self, time: float, direction: Direction, role: WorkerRole, message: SessionMessage, n_bytes: int) -> None:
        self.n_seen += 1
        args, decode_us = _shown(message)
        kind, round_ = type(message).__name__, message.round
        record = Seen(
            time, direction, role, kind, message.session, round_, message.committed_len, n_bytes, decode_us, args
        )
        self.records.append(record)

    def worked(self, session: int, start: float, end: float) -> None:
        self.n_seen += 1
        self.records.append(Worked(session, start, end))


def _shown(message: SessionMessage) -> tuple[dict[str, Any], int]:
    """`args` and `decode_us` of a message. Prompts stay out: they would be kept alive."""
    match message:
        case DraftTokens():
            shown = {"epoch": message.epoch, "start": message.start, "tokens": message.tokens, "probs": message.probs}
            if message.branches:
                shown["branches"] = [[branch.start, *branch.tokens] for branch in message.branches]
            return {**shown, "rows": message.n_evaluated, "final": message.final}, message.decode_us
        case Verdict():
            shown = {"ahead": message.ahead, "tested": message.n_tested, "accepted": message.accepted}
            return {**shown, "tokens": message.tokens, "rows": message.n_evaluated}, message.decode_us
        case VerifyRequest():
            return {"epoch": message.epoch, "draft": message.draft, "credit": message.credit}, 0
        case DraftRequest():
            return {"epoch": message.epoch, "n_max": message.n_max, "credit": message.credit}, 0
    return {"epoch": message.epoch}, 0
