"""A session and its workers in virtual time: the program's own code, with simulated engines and a clock that jumps.

What takes minutes on real processes takes seconds here and is the same every time, so schedules can be tuned with it.
Nothing costs time but the simulated engines and the link (`bench/schedules.py` has real processes and sockets).

    python -m bench.virtual_time [--tokens 1500] [--cells 0,1,…] [--schedules lockstep,overlap,branches,auto]
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from coordinator.auto import Auto, make_session
from coordinator.instructions import Finished, Send, WakeAt
from coordinator.overlap import Overlap
from coordinator.request import Request
from coordinator.schedule import Lockstep, Schedule, SpeculationSettings
from coordinator.session import Session
from draft_worker.worker import DraftWorker
from outrider.engine.simulated import SimulatedEngine
from outrider.types import SamplingParams
from outrider.wire.messages import Message
from outrider.worker.slots import SlotWorker
from target_worker.worker import TargetWorker


class VirtualEngine(SimulatedEngine):
    """Its decodes take no time; `spent_s` says what they would have taken."""

    spent_s = 0.0

    def _take_time(self, start: float, seconds: float) -> None:
        self.spent_s += seconds


@dataclass
class Process:
    """A worker, the messages on their way to it, and until when it computes."""

    engine: VirtualEngine
    worker: SlotWorker[Any]
    delay_s: float = 0.0  # of the link, one way
    inbox: list[Message] = field(default_factory=list)
    busy: bool = False
    spent_s: float = 0.0  # by the engine, before the step at hand


class World:
    """Events by time. A worker takes what has arrived, computes one step, and answers when the step is over."""

    def __init__(
        self,
        session: Session,
        target: VirtualEngine,
        draft: VirtualEngine,
        round_trip_s: float = 0.0,
        target_round_trip_s: float = 0.0,
    ) -> None:
        self.session, self.now, self.finished = session, 0.0, False
        self.processes = {
            "target": Process(target, TargetWorker(target, lambda: self.clock("target")), target_round_trip_s / 2),
            "draft": Process(draft, DraftWorker(draft, lambda: self.clock("draft")), round_trip_s / 2),
        }
        self._numbers = count()
        self._events: list[tuple[float, int, str, Any]] = []

    def clock(self, role: str) -> int:
        """Nanoseconds; within a step the engine's work has passed already."""
        process = self.processes[role]
        return int((self.now + process.engine.spent_s - process.spent_s) * 1e9)

    def at(self, delay_s: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), kind, what))

    def run(self) -> float:
        """Seconds until the session has finished."""
        for incarnation, (role, process) in enumerate(self.processes.items(), start=1):
            self.do(self.session.worker_ready(role, incarnation, process.engine.facts))  # type: ignore[arg-type]
        self.do(self.session.start(self.now))
        while not self.finished:
            self.now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"on_{kind}")(what)
        return self.now

    def do(self, commands: Sequence[Any]) -> None:
        for command in commands:
            match command:
                case Send(role, message):
                    self.at(self.processes[role].delay_s, "delivery", (role, message))
                case WakeAt(time):
                    self.at(max(time - self.now, 0.0), "wake", time)
                case Finished():
                    self.finished = True

    def on_wake(self, time: float) -> None:
        self.do(self.session.wake(self.now))

    def on_reply(self, message: Message) -> None:
        self.do(self.session.handle(message, self.now))
        self.session.prepare()

    def on_delivery(self, sent: tuple[str, Message]) -> None:
        role, message = sent
        self.processes[role].inbox.append(message)
        self.work(role)

    def on_stepped(self, done: tuple[str, list[Message]]) -> None:
        role, replies = done
        self.processes[role].busy = False
        self.answer(role, replies)
        self.work(role)

    def answer(self, role: str, replies: Sequence[Message]) -> None:
        for reply in replies:
            self.at(self.processes[role].delay_s, "reply", reply)

    def work(self, role: str) -> None:
        process = self.processes[role]
        if process.busy:
            return
        while process.inbox:
            self.answer(role, process.worker.handle(process.inbox.pop(0)))
        process.spent_s = process.engine.spent_s
        if not process.worker.has_work():
            return
        patience_s = process.worker.patience_s()
        if patience_s:
            self.at(patience_s, "patience_over", role)
            return
        replies = process.worker.step()
        process.busy = True
        self.at(process.engine.spent_s - process.spent_s, "stepped", (role, replies))

    def on_patience_over(self, role: str) -> None:
        self.work(role)


@dataclass(frozen=True)
class Cell:
    """Costs in one-row decodes: `beta` of a further row, `c` of a draft step, `trip` of the link there and back."""

    beta: float
    c: float
    alpha: float
    trip: float
    target_trip: float = 0.0  # of the link to the target


T_S = 0.04


def speedup(cell: Cell, schedule: Schedule, n_max: int, n_tokens: int, n_branches: int = 24) -> tuple[float, Session]:
    """Over plain decoding, and the session."""
    target = VirtualEngine(f"simulated:decode_ms={T_S * 1e3},beta={cell.beta}", n_ctx=n_tokens + 100)
    path = f"simulated:decode_ms={cell.c * T_S * 1e3},alpha={cell.alpha}"
    draft = VirtualEngine(path, n_ctx=n_tokens + 100, n_branches=n_branches)
    limits = SpeculationSettings(types=("draft-simple",), n_max=n_max)
    greedy = SamplingParams(temp=0.0, ignore_eos=True)
    request = Request(session=1, prompt=[1, 2, 3], sampling=greedy, n_predict=n_tokens, speculation=limits)
    session = make_session(request, schedule)
    seconds = World(session, target, draft, cell.trip * T_S, cell.target_trip * T_S).run()
    return n_tokens * T_S / seconds, session


#: Cells of the published table, with its columns: sequential (and its draft length), chain, branches at the target.
CELLS = [
    (Cell(0.02, 0.05, 0.6, 0), 1.80, 4, 1.87, 2.03),
    (Cell(0.02, 0.05, 0.8, 0), 2.79, 7, 2.90, 3.43),
    (Cell(0.02, 0.05, 0.8, 0.5), 2.10, 8, 2.41, 3.11),
    (Cell(0.02, 0.05, 0.8, 2), 1.24, 10, 1.61, 2.43),
    (Cell(0.02, 0.20, 0.8, 0), 1.79, 4, 2.22, 2.71),
    (Cell(0.02, 0.20, 0.8, 2), 0.92, 4, 1.45, 2.04),
    (Cell(0.02, 0.20, 0.9, 0), 2.25, 6, 2.96, 3.48),
    (Cell(0.02, 0.40, 0.8, 0), 1.33, 2, 1.65, 1.69),
    (Cell(0.02, 0.40, 0.9, 0), 1.53, 3, 1.99, 1.82),
    (Cell(0.35, 0.05, 0.8, 0), 1.36, 2, 1.39, 1.42),
    (Cell(0.35, 0.20, 0.8, 0), 1.16, 2, 1.32, 1.39),
    (Cell(0.35, 0.20, 0.8, 0.5), 0.94, 2, 1.30, 1.33),
    (Cell(0.35, 0.40, 0.8, 0), 1.03, 1, 1.29, 1.34),
    (Cell(0.35, 0.40, 0.9, 2), 0.70, 2, 1.32, 1.44),
]


def make_schedule(name: str, n_branches: int) -> Schedule:
    match name:
        case "overlap":
            return Overlap()
        case "branches":
            return Overlap(n_branches)
        case "auto":
            return Auto(apart=True, n_branches=n_branches)
    return Lockstep()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--cells", default=",".join(map(str, range(len(CELLS)))))
    parser.add_argument("--schedules", default="lockstep,overlap,branches,auto")
    parser.add_argument("--n-max", type=int, default=10)
    parser.add_argument("--n-branches", type=int, default=24)
    options = parser.parse_args()
    names = options.schedules.split(",")
    print("beta c alpha trip | published: lockstep chain branches | " + " ".join(names))
    for index in map(int, options.cells.split(",")):
        cell, sequential, gamma, chain, branches = CELLS[index]
        values = [
            speedup(
                cell,
                make_schedule(name, options.n_branches),
                gamma if name == "lockstep" else options.n_max,
                options.tokens,
                options.n_branches,
            )[0]
            for name in names
        ]
        shown = " ".join(f"{value:9.2f}" for value in values)
        costs = f"{cell.beta:4} {cell.c:4} {cell.alpha:4} {cell.trip:4}"
        print(f"{costs} | {sequential:4} {chain:4} {branches:4} | {shown}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
