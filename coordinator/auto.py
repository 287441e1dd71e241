"""The `auto` schedule: off, lockstep or overlap, and how long a draft, chosen round by round from what was measured.

The value of a choice is its *goodput*: committed tokens per second of wall time, never the acceptance alone. It is
predicted from the measured costs and corrected by what the mode really brought; a change must promise more than
`HYSTERESIS`. While drafting is off one short draft in `PROBE_EVERY` rounds shows whether it would pay again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from coordinator.costs import Average, Costs
from coordinator.instructions import Command
from coordinator.overlap import FIRST_WAIT_S, LOOKAHEAD_ROUNDS, Overlap, OverlapSession
from coordinator.request import Request
from coordinator.schedule import Schedule
from coordinator.session import Session
from outrider.speculators.chain import Chain
from outrider.wire.messages import Verdict

Mode = Literal["off", "lockstep", "overlap"]

#: A change must promise so much more than what there is.
HYSTERESIS = 1.05
#: Rounds without a draft between two that look whether drafting would pay.
PROBE_EVERY = 32
#: Rounds for which the measured goodput of a choice is believed after it was left.
BELIEVED_FOR = 64
#: How much both decodes slow down while the other worker computes: on processors of their own, and on shared ones.
SLOWDOWN_APART, SLOWDOWN_SHARED = 1.2, 2.0
#: Rounds of a mode that must speak for or against it to weigh as much as its prediction.
DOUBT = 3
#: Length of the very first draft, which shows what a step costs.
FIRST_DRAFT = 3
#: In lockstep a draft that takes so many times longer than it should is not waited for.
LATE = 4.0


@dataclass(frozen=True, slots=True)
class Choice:
    """`n` drafted tokens per round; 0 where drafting is off."""

    mode: Mode
    n: int


OFF = Choice("off", 0)


def expected_tokens(acceptance: float, n: int) -> float:
    """Tokens committed by a round that verifies `n`, each accepted with this probability if those before it were."""
    return sum(acceptance**i for i in range(n + 1))


def predict(choice: Choice, costs: Costs, acceptance: float, slowdown: float) -> float | None:
    """Tokens per second of a choice; None where a cost is not known yet.

    off 1/T; lockstep E(n) / (n·c + v(n+1) + L); overlap E(n) / (v + (1-h)(n·c + L)) with h = acceptance^(n+1) the chance
    that the draft is ahead, and both costs slowed down by the other worker.
    """
    verify, step = costs.verify_s(choice.n + 1), costs.draft_step.value
    if verify is None:
        return None
    if choice.mode == "off":
        return 1.0 / verify
    if step is None:
        return None
    trip = costs.round_trip.value or 0.0
    tokens = expected_tokens(acceptance, choice.n)
    if choice.mode == "lockstep":
        return tokens / (choice.n * step + verify + trip)
    ahead = acceptance ** (choice.n + 1)
    busy = slowdown * max(verify, (choice.n + 1) * step)
    return tokens / (busy + (1 - ahead) * (slowdown * choice.n * step + trip))


@dataclass(slots=True)
class Record:
    """What a mode brought, as a multiple of what was predicted for it."""

    ratio: Average = field(default_factory=Average)
    n_rounds: int = 0
    last_round: int = 0

    def correction(self, now: int) -> float:
        """Between 1 (nothing seen, or long ago) and the measured ratio."""
        if self.ratio.value is None or now - self.last_round >= BELIEVED_FOR:
            return 1.0
        return (self.n_rounds * self.ratio.value + DOUBT) / (self.n_rounds + DOUBT)


class Chooser:
    """What was chosen, what it brought, and what to choose next. Pure; one per coordinator, shared by its sessions."""

    def __init__(self, costs: Costs, slowdown: float) -> None:
        self.costs, self.slowdown = costs, slowdown
        self.choice: Choice = OFF
        self._records: dict[Mode, Record] = {"off": Record(), "lockstep": Record(), "overlap": Record()}
        self._round = 0

    @property
    def counts(self) -> dict[Mode, int]:
        """Rounds by mode."""
        return {mode: record.n_rounds for mode, record in self._records.items()}

    def next(self, n_max: int, acceptance: float) -> Choice:
        """The choice for the next round, with drafts of at most `n_max`."""
        self._round += 1
        self.choice = self._best(n_max, acceptance)
        record = self._records[self.choice.mode]
        record.n_rounds += 1
        record.last_round = self._round
        return self.choice

    def _best(self, n_max: int, acceptance: float) -> Choice:
        if n_max <= 0:
            return OFF
        if self.costs.draft_step.value is None:
            return Choice("lockstep", min(n_max, FIRST_DRAFT))
        if self._probe_is_due():
            return Choice("lockstep", 1)
        modes: tuple[Mode, ...] = ("lockstep", "overlap")
        choices = [OFF, *(Choice(mode, n) for mode in modes for n in range(1, n_max + 1))]
        values = {choice: self.value(choice, acceptance) for choice in choices}
        best = max(choices, key=lambda choice: values[choice])
        current = self.choice if self.choice in values else OFF
        return best if values[best] > HYSTERESIS * values[current] else current

    def _probe_is_due(self) -> bool:
        """Has nothing been drafted for so long that its worth is no longer known?"""
        return self._round - max(self._records[m].last_round for m in ("lockstep", "overlap")) >= PROBE_EVERY

    def value(self, choice: Choice, acceptance: float) -> float:
        """Tokens per second that may be expected; 0 where nothing is known."""
        predicted = predict(choice, self.costs, acceptance, self.slowdown) or 0.0
        return predicted * self._records[choice.mode].correction(self._round)

    def brought(self, choice: Choice, acceptance: float, n_tokens: int, seconds: float) -> None:
        """A round with this choice is over."""
        predicted = predict(choice, self.costs, acceptance, self.slowdown)
        if seconds > 0 and predicted:
            self._records[choice.mode].ratio.add(n_tokens / seconds / predicted)

    def explain(self, acceptance: float) -> dict[str, Any]:
        """What is known and what follows from it, for people: times in milliseconds, speeds in tokens per second."""
        costs, ms = self.costs, 1e3
        alone = predict(OFF, costs, acceptance, self.slowdown)
        return {
            "chosen": self.choice.mode,
            "n": self.choice.n,
            "rounds_by_mode": self.counts,
            "verify_ms": {n: ms * (costs.verify_s(n) or 0.0) for n in (1, 2, 4, 8)},
            "draft_step_ms": ms * (costs.draft_step.value or 0.0),
            "round_trip_ms": ms * (costs.round_trip.value or 0.0),
            "acceptance": acceptance,
            "predicted_per_second": {
                "off": alone,
                **{
                    mode: max((predict(Choice(mode, n), costs, acceptance, self.slowdown) or 0.0) for n in range(1, 9))
                    for mode in ("lockstep", "overlap")
                },
            },
        }


class Auto(Overlap):
    """`apart`: the workers compute on processors or devices of their own."""

    name = "auto"

    def __init__(self, apart: bool = False) -> None:
        super().__init__()
        self.chooser = Chooser(self.costs, SLOWDOWN_APART if apart else SLOWDOWN_SHARED)


class AutoSession(OverlapSession):
    """An overlap session that may also leave its draft alone, or wait for each draft as lockstep does."""

    def __init__(self, request: Request, schedule: Auto, chain: Chain | None) -> None:
        super().__init__(request, schedule, chain, schedule.costs)
        self._chooser = schedule.chooser
        self._choice = OFF

    def _start_round(self, now: float) -> list[Command]:
        n_max = self.request.speculation.n_max
        if self.n_generated == 0:
            self._n, self._reach = n_max, n_max  # the draft reads the prompt while the target does
        else:
            usable = "draft" in self._peers and self._draft_obstacle() is None
            budget = min(n_max, self._draft_budget()) if usable else 0
            self._choice = self._chooser.next(budget, self.acceptance.value)
            self._n = self._choice.n
            self._reach = LOOKAHEAD_ROUNDS * (self._n + 1) if self._choice.mode == "overlap" else self._n
        return super()._start_round(now)

    def _patience(self) -> tuple[int, float]:
        if self._choice.mode != "lockstep":
            return super()._patience()
        step = self.costs.draft_step.value
        needed = self._n * (step or FIRST_WAIT_S) + (self.costs.round_trip.value or 0.0)
        return self._n, LATE * needed

    def explain(self) -> dict[str, Any] | None:
        return self._chooser.explain(self.acceptance.value)

    def _go_on(self, verdict: Verdict, n_accepted: int, now: float) -> list[Command]:
        if self.counts.rounds > 1:
            seconds = now - self._round_since
            self._chooser.brought(self._choice, self.acceptance.value, len(verdict.tokens), seconds)
        return super()._go_on(verdict, n_accepted, now)


def make_session(request: Request, schedule: Schedule, chain: Chain | None = None) -> Session:
    """The kind of session that this schedule drives."""
    match schedule:
        case Auto():
            return AutoSession(request, schedule, chain)
        case Overlap():
            return OverlapSession(request, schedule, chain, schedule.costs)
    return Session(request, schedule, chain)
