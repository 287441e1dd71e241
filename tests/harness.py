"""A session and its workers in one thread: messages are handed over directly, in the order they are sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from coordinator.auto import make_session
from coordinator.instructions import Emit, Finished, Send, WakeAt
from coordinator.request import Request
from coordinator.schedule import Lockstep, Schedule, SpeculationSettings
from coordinator.session import Session
from draft_worker.worker import DraftWorker
from outrider.engine.base import Engine
from outrider.engine.scripted import ScriptedEngine
from outrider.types import SamplingParams
from outrider.wire.messages import Message
from outrider.worker.slots import SlotWorker
from target_worker.worker import TargetWorker

GREEDY = SamplingParams(temp=0.0)
DRAFT_SIMPLE = ("draft-simple",)


def scripted(script: str = "", **options: Any) -> ScriptedEngine:
    return ScriptedEngine(f"scripted:{script}", **options)


def ticking(step_ns: int = 1_000_000) -> Callable[[], int]:
    """A clock that goes on by a millisecond whenever it is read: every decode takes that long, on any machine."""
    return count(0, step_ns).__next__


class Pair:
    """A target and perhaps a draft worker; `run` takes one request to its end."""

    def __init__(self, target: Engine, draft: Engine | None = None) -> None:
        self.workers: dict[str, SlotWorker[Any]] = {"target": TargetWorker(target, ticking())}
        if draft is not None:
            self.workers["draft"] = DraftWorker(draft, ticking())
        self.sent: list[tuple[str, Message]] = []
        self.texts: list[str] = []
        self.finished: Finished | None = None
        self.clock = 0.0
        self.wake_at: float | None = None
        #: Called with every message to a worker; what it returns is delivered (several, changed, none).
        self.filter: Callable[[str, Message], Sequence[Message]] = lambda role, message: [message]

    def connect(self, session: Session, role: str, incarnation: int) -> list[Any]:
        return session.worker_ready(role, incarnation, self.workers[role].engine.facts)  # type: ignore[arg-type]

    def run(self, request: Request, schedule: Schedule | None = None) -> Session:
        session = make_session(request, schedule or Lockstep())
        for incarnation, role in enumerate(self.workers, start=1):
            self.connect(session, role, incarnation)
        self.drive(session, session.start(self.clock))
        return session

    def drive(self, session: Session, commands: Sequence[Any]) -> None:
        """Execute commands until nothing is left to do."""
        queue: deque[Any] = deque(commands)
        self.texts, self.finished = [], None
        while queue or self.step_workers(session, queue) or self.wake(session, queue):
            if queue:
                self.execute(session, queue.popleft(), queue)

    def wake(self, session: Session, queue: deque[Any]) -> bool:
        """Nothing else happens: the time comes that the session waits for."""
        if self.wake_at is None or self.finished is not None:
            return False
        self.clock, self.wake_at = max(self.clock, self.wake_at), None
        queue.extend(session.wake(self.clock))
        return True

    def step_workers(self, session: Session, queue: deque[Any]) -> bool:
        busy = [worker for worker in self.workers.values() if worker.has_work()]
        for worker in busy:
            for reply in worker.step():
                self._reply(session, reply, queue)
        return bool(busy or queue)

    def _reply(self, session: Session, reply: Message, queue: deque[Any]) -> None:
        queue.extend(session.handle(reply, self.clock))
        session.prepare()

    def execute(self, session: Session, command: Any, queue: deque[Any]) -> None:
        self.clock += 0.001
        match command:
            case Send(role, message):
                self.sent.append((role, message))
                for delivered in self.filter(role, message):
                    for reply in self.workers[role].handle(delivered):
                        self._reply(session, reply, queue)
            case WakeAt(time):
                self.wake_at = time
            case Emit(text, _):
                self.texts.append(text)
            case Finished():
                self.finished = command


def make_request(
    prompt: Sequence[int] = tuple(b"Once upon a time"),
    n_predict: int = 40,
    sampling: SamplingParams = GREEDY,
    types: Sequence[str] = DRAFT_SIMPLE,
    n_max: int = 3,
    **options: Any,
) -> Request:
    names = ("n_min", "p_min", "draft_sampling", "synth_rates")
    limits = {name: options.pop(name) for name in names if name in options}
    settings = SpeculationSettings(types=types, n_max=n_max, **limits)
    return Request(session=1, prompt=prompt, sampling=sampling, n_predict=n_predict, speculation=settings, **options)


def plain(engine: Engine, request: Request) -> Session:
    """The same request without a draft, on a fresh worker: what every speculative run must equal."""
    return Pair(engine).run(request)
