"""The `auto` schedule: off, lockstep or overlap, and how long a draft, chosen round by round from what was measured.

The value of a choice is its *goodput*: committed tokens per second of wall time, never the acceptance alone. It is
predicted from the measured costs and corrected by what the mode really brought; most changes must promise more than
`HYSTERESIS`. While drafting is off one short draft in `PROBE_EVERY` rounds shows whether it would pay again.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from coordinator.costs import Costs, Speed
from coordinator.instructions import Command
from coordinator.overlap import FIRST_WAIT_S, LOOKAHEAD_ROUNDS, Overlap, OverlapSession
from coordinator.request import Request
from coordinator.schedule import Schedule
from coordinator.session import Phase, Session
from coordinator.waiting import expected_tokens
from outrider.speculators.chain import Chain
from outrider.speculators.types import DRAFT_SIMPLE
from outrider.wire.messages import Verdict, VerifyRequest

Mode = Literal["off", "lockstep", "overlap"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: A change must promise so much more than what there is; but on processors of their own the workers go over from lockstep
#: to overlap for any gain: what they lose by it they get back at once.
HYSTERESIS = 1.03
#: Rounds without a draft between two that look whether drafting would pay.
PROBE_EVERY = 32
#: The same on shared processors: the draft first has to read what was written, and the target waits for it.
PROBE_EVERY_SHARED = 128
#: Up to so many times as long after it did not, again and again.
LONGEST_PROBE = 4
#: So many times as long where it would not even pay if nearly all drafted tokens were right.
RARELY, NEARLY_ALL = 8, 0.95
#: While drafting is off hardly anything is learned, so what is best is looked up once in so many rounds: on shared
#: processors the target waits for whoever computes beside it. Of several sessions each has its turn to look.
LOOK_EVERY = 5
#: Rounds of each session for which the measured goodput of a mode is believed after it was left.
BELIEVED_FOR = 64
#: The same for one that was tried in vain again and again.
LONGEST_BELIEF = 1024
#: How much both decodes are thought to slow down beside the other: on processors of their own, and on shared ones.
SLOWDOWN_APART, SLOWDOWN_SHARED = 1.0, 2.0
#: Tokens of a mode that must speak for or against it to weigh as much as its prediction.
DOUBT = 30.0
#: Chance of a mismatch to find a branch ready, before any was seen.
HOPE = 0.4
#: How many times as fast as plain decoding drafts must be in the best case, for one to be made to see what it is worth.
BEST_MUST_PAY = 1.15
#: Length of the very first draft, which shows what a step costs.
FIRST_DRAFT = 3
#: Even where a token must be nearly certain to be worth its time, probabilities are no better known than this.
HIGHEST_P_MIN = 0.9
#: Round trips that a break-even is looked for among.
LONGEST_TRIP_S, N_TRIPS = 60.0, 60_001
#: In lockstep a draft that takes so many times longer than it should is not waited for.
LATE = 4.0


@dataclass(frozen=True, slots=True)
class Choice:
    """`n` drafted tokens per round; 0 where drafting is off. probe: only to see what drafting would be worth."""

    mode: Mode
    n: int
    probe: bool = False


OFF = Choice("off", 0)
#: Two tokens are drafted while the target goes on: the first brings the draft up to the text, the second tells what a step
#: costs, and both whether they are right.
PROBE = Choice("overlap", 2, probe=True)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a session expects of its draft. acceptance: of a token; foreseen: of a mismatch, to have a branch ready."""

    acceptance: float
    foreseen: float = 0.0


def predict(
    choice: Choice, costs: Costs, outlook: Outlook, trip: float | None = None, *, hopeful: bool = False
) -> float | None:
    """Tokens per second of a choice; None where a cost is not known yet. trip: of the link, where not as measured. hopeful:
    with the quickest draft that was ever seen; before the first one, with one that costs nothing.

    off: 1/v(1). lockstep: E(n) / (n·c + v(n+1) + L), all of it alone; where several sessions run, though, one drafts while
    another is verified. overlap: see `_overlapped`, with the costs beside each other.
    """
    n, alone, beside_others = choice.n, costs.verify_s(1), costs.load > 1
    verify, step = costs.verify_s(n + 1, beside_others), costs.step_s(beside_others, hopeful=hopeful)
    if alone is None or verify is None:
        return None
    if choice.mode == "off":
        return 1.0 / alone
    if step is None:
        return None
    if trip is None:
        trip = costs.round_trip.value or 0.0
    if choice.mode == "lockstep":
        return expected_tokens(outlook.acceptance, n) / (n * step + verify + trip)
    beside, step_beside = costs.verify_s(n + 1, busy=True), costs.step_s(busy=True, hopeful=hopeful)
    return _overlapped(n, outlook, beside or verify, step_beside or step, trip)


def _overlapped(n: int, outlook: Outlook, verify: float, step: float, trip: float) -> float:
    """A run of rounds, each with its draft ready, ends with chance 1-h; then the target waits for n·c + L, or decodes alone
    until the draft has caught up: each time that it foresaw what is committed while its tokens are on their way."""
    acceptance = outlook.acceptance
    missed = (1 - acceptance ** (n + 1)) * (1 - outlook.foreseen)
    run_s, tokens = max(verify, (n + 1) * step), expected_tokens(acceptance, n)
    waiting = tokens / (run_s + missed * (n * step + trip))
    n_alone = math.ceil((trip + step) / verify)
    behind_s = verify * (n_alone - 1 + 1 / max(acceptance**n_alone, 0.01))
    going_on = (tokens + missed * behind_s / verify) / (run_s + missed * behind_s)
    return max(waiting, going_on)


def break_even_s(mode: Mode, n_max: int, costs: Costs, outlook: Outlook) -> float | None:
    """The longest round trip with which the mode's best choice is as fast as plain decoding; negative: none, and
    `LONGEST_TRIP_S` where a longer one would do. None where a cost is not known."""
    alone = predict(OFF, costs, outlook)
    if alone is None or costs.step_s() is None:
        return None

    def pays(trip: float) -> bool:
        choices = (Choice(mode, n) for n in range(1, n_max + 1))
        return any((predict(choice, costs, outlook, trip) or 0.0) >= alone for choice in choices)

    trips = np.linspace(0.0, LONGEST_TRIP_S, N_TRIPS)
    return float(trips[bisect(trips, False, key=lambda trip: not pays(float(trip))) - 1]) if pays(0.0) else -1.0


@dataclass(slots=True)
class Record:
    """What a mode brought in its last rounds, fading, and for how long that is believed after it was left."""

    speed: Speed = field(default_factory=Speed)
    n_rounds: int = 0
    last_round: int = 0
    since: int = 0  # the round in which it was taken up
    believed_for: int = BELIEVED_FOR  # of rounds of each session

    def value(self, predicted: float) -> float:
        """Tokens per second: as if it had brought what is predicted for `DOUBT` more tokens."""
        return (self.speed.tokens + DOUBT) / (self.speed.seconds + DOUBT / predicted) if predicted else 0.0

    def left(self, now: int, load: int) -> None:
        """Another mode is better. One that was tried in vain is tried again after a longer time each time."""
        in_vain = now - self.since < BELIEVED_FOR * load
        self.believed_for = min(2 * self.believed_for, LONGEST_BELIEF) if in_vain else BELIEVED_FOR

    def forget_if_old(self, now: int, load: int) -> None:
        if now - self.last_round >= self.believed_for * load:
            self.speed = Speed()


class Chooser:
    """What was chosen, what it brought, and what to choose next. Pure; one per coordinator, shared by its sessions."""

    def __init__(self, costs: Costs, apart: bool = False) -> None:
        self.costs, self._apart = costs, apart
        self.choice: Choice = OFF
        #: By load: what a mode brings to one session says little of what it brings to several.
        self._by_load: defaultdict[int, dict[Mode, Record]] = defaultdict(lambda: {mode: Record() for mode in MODES})
        self._round = self._probed_at = 0
        self._looked_at = self._looked_load = 0
        self._first_probe = self._probe_every = PROBE_EVERY if apart else PROBE_EVERY_SHARED

    @property
    def _records(self) -> dict[Mode, Record]:
        """Of the load at present."""
        return self._by_load[self.costs.load]

    @property
    def counts(self) -> dict[Mode, int]:
        """Rounds by mode."""
        return {mode: sum(records[mode].n_rounds for records in self._by_load.values()) for mode in MODES}

    def rests(self, n_max: int, outlook: Outlook) -> bool:
        """Is it best to draft nothing for a session that begins now?"""
        return self._best(n_max, outlook).mode == "off"

    def foresee(self, n_max: int, outlook: Outlook) -> Choice | None:
        """What `next` would choose now; None: it would not look."""
        return None if self._is_settled_in(self._round + 1) else self._best(n_max, outlook)

    def next(self, n_max: int, outlook: Outlook, foreseen: Choice | None = None) -> Choice:
        """The choice for the next round, with drafts of at most `n_max`. foreseen: what `foresee` said a moment ago."""
        self._round += 1
        for record in self._records.values():
            record.forget_if_old(self._round, self.costs.load)
        choice = OFF if self._is_settled_in(self._round) else self._look(n_max, outlook, foreseen)
        if choice.probe:
            self._probed_at = self._round
            self._probe_every = min(2 * self._probe_every, LONGEST_PROBE * self._first_probe)
            self.costs.draft_unheard()
            return choice
        record = self._records[choice.mode]
        if choice.mode != self.choice.mode:
            self._records[self.choice.mode].left(self._round, self.costs.load)
            record.since = self._round
            self._probe_every = self._first_probe
        self.choice = choice
        record.n_rounds += 1
        record.last_round = self._round
        return choice

    def _is_settled_in(self, round_: int) -> bool:
        """Off it was a moment ago, nothing has changed, and no probe is due."""
        is_new = round_ - self._looked_at < LOOK_EVERY and self.costs.load == self._looked_load
        return is_new and self.choice.mode == "off" and self._n_undrafted % self._probe_patience > 0

    def _look(self, n_max: int, outlook: Outlook, foreseen: Choice | None) -> Choice:
        self._looked_at, self._looked_load = self._round, self.costs.load
        return foreseen if foreseen is not None and foreseen.n <= n_max else self._best(n_max, outlook)

    def _best(self, n_max: int, outlook: Outlook) -> Choice:
        if n_max <= 0:
            return OFF
        if self.costs.step_s() is None and self._could_pay(n_max, outlook.acceptance):
            return Choice("lockstep", min(n_max, FIRST_DRAFT))
        if self._probe_is_due(n_max):
            return PROBE
        of_modes = {mode: self.best_of(mode, n_max, outlook) for mode in self._records}
        best, current = max(of_modes.values(), key=lambda found: found[1]), of_modes[self.choice.mode]
        return best[0] if best[1] > self._margin(best[0].mode) * current[1] else current[0]

    def _margin(self, mode: Mode) -> float:
        return 1.0 if self._apart and (self.choice.mode, mode) == ("lockstep", "overlap") else HYSTERESIS

    def best_of(self, mode: Mode, n_max: int, outlook: Outlook) -> tuple[Choice, float]:
        """The best choice of a mode, and its value."""
        choices = [OFF] if mode == "off" else [Choice(mode, n) for n in range(1, max(n_max, 1) + 1)]
        return max(((choice, self.value(choice, outlook)) for choice in choices), key=lambda found: found[1])

    def _probe_is_due(self, n_max: int) -> bool:
        """Has nothing been drafted for so long that its worth is no longer known?"""
        n_rounds, patience = self._n_undrafted, self._probe_patience
        return n_rounds >= patience and (n_rounds >= RARELY * patience or self._could_pay(n_max, NEARLY_ALL))

    @property
    def _n_undrafted(self) -> int:
        """Rounds since something was drafted."""
        return self._round - max(self._probed_at, *(self._records[m].last_round for m in ("lockstep", "overlap")))

    @property
    def _probe_patience(self) -> int:
        return self._probe_every * self.costs.load

    def _could_pay(self, n_max: int, acceptance: float) -> bool:
        """Would drafts pay with this acceptance, if each were made as quickly as any before (before the first, in no time)?
        Where further rows are dear they would not."""
        outlook = Outlook(acceptance, foreseen=1.0)
        choices = (Choice(mode, n) for mode in MODES if mode != "off" for n in range(1, n_max + 1))
        hopes = (predict(choice, self.costs, outlook, 0.0, hopeful=True) for choice in choices)
        return any(hope is None or hope > BEST_MUST_PAY * self._predict(OFF, outlook) for hope in hopes)

    def value(self, choice: Choice, outlook: Outlook) -> float:
        """Tokens per second that may be expected; 0 where nothing is known."""
        return self._records[choice.mode].value(self._predict(choice, outlook))

    def _predict(self, choice: Choice, outlook: Outlook) -> float:
        return predict(choice, self.costs, outlook) or 0.0

    def brought(self, choice: Choice, n_tokens: int, seconds: float) -> None:
        """A round with this choice is over."""
        if seconds > 0 and not choice.probe:
            self._records[choice.mode].speed.add(n_tokens, seconds)

    def explain(self, n_max: int, outlook: Outlook) -> dict[str, Any]:
        """What is known and what follows from it, for people: times in milliseconds, speeds in tokens per second."""
        costs, ms = self.costs, 1e3
        return {
            "chosen": self.choice.mode,
            "n": self.choice.n,
            "rounds_by_mode": self.counts,
            "verify_ms": {n: ms * (costs.verify_s(n) or 0.0) for n in (1, 2, 4, 8)},
            "draft_step_ms": ms * (costs.step_s() or 0.0),
            "round_trip_ms": ms * (costs.round_trip.value or 0.0),
            "slowdown": costs.slowdown,
            "acceptance": outlook.acceptance,
            "foreseen": outlook.foreseen,
            "predicted_per_second": {
                mode: self._predict(self.best_of(mode, n_max, outlook)[0], outlook) or None for mode in self._records
            },
            "break_even_ms": {
                mode: None if (trip := break_even_s(mode, n_max, costs, outlook)) is None else ms * trip
                for mode in self._records
                if mode != "off"
            },
        }


class Auto(Overlap):
    """`apart`: the workers compute on processors or devices of their own."""

    def __init__(self, apart: bool = False, n_branches: int = 0) -> None:
        super().__init__(n_branches)
        self.name, self.apart = "auto", apart
        self.costs = Costs(SLOWDOWN_APART if apart else SLOWDOWN_SHARED)
        self.chooser = Chooser(self.costs, apart)


class AutoSession(OverlapSession):
    """An overlap session that may also leave its draft alone, or wait for each draft as lockstep does."""

    def __init__(self, request: Request, schedule: Auto, chain: Chain | None) -> None:
        super().__init__(request, schedule, chain)
        self._chooser = schedule.chooser
        self._schedule_branches, self._apart = schedule.n_branches, schedule.apart
        self._lead = LOOKAHEAD_ROUNDS * (request.speculation.n_max + 1)
        self._choice, self._chose = OFF, False
        self._foreseen: Choice | None = None  # for the next round
        self._went_on = False  # the target was told not to wait for the next request: it has no draft

    def _start_round(self, now: float) -> list[Command]:
        n_max = self.request.speculation.n_max
        if self.n_generated == 0:
            # The draft reads the prompt while the target does. On processors of its own it goes on meanwhile; on shared ones
            # it would only be in the way where nothing is to be drafted.
            if self._apart:
                self._reach, self._n_branches = self._lead, self._schedule_branches
            else:
                self._reach, self._n_branches = 0 if self._chooser.rests(n_max, self._outlook) else n_max, 0
        else:
            budget = self._budget()
            # Who cannot draft says nothing of what drafting is worth.
            self._chose = budget > 0
            self._choice = self._chooser.next(budget, self._outlook, self._foreseen) if self._chose else OFF
            self._foreseen = None
            ahead = self._choice.mode == "overlap" and not self._choice.probe
            # Each round takes what is there and worth its rows; the choice is about what is drafted now.
            self._reach = self._lead if ahead else self._choice.n
            self._n_branches = self._schedule_branches if ahead else 0
        return super()._start_round(now)

    def prepare(self) -> None:
        """To look at all choices takes as long as some milliseconds of a quick pair are worth: the next is made ahead."""
        is_due = self.phase is Phase.VERIFYING and self._prepared_for != self.round
        super().prepare()
        budget = self._budget() if is_due and self.n_generated > 0 else 0
        if budget > 0:
            self._foreseen = self._chooser.foresee(budget, self._outlook)

    def _budget(self) -> int:
        return min(self.request.speculation.n_max, self._draft_budget()) if self._can_draft() else 0

    def _can_draft(self) -> bool:
        wanted = self.request.speculation.uses_draft
        return wanted and "draft" in self._peers and self._draft_obstacle() is None

    @property
    def _outlook(self) -> Outlook:
        known = self.learning.foreseen.value
        return Outlook(
            self.learning.acceptance.value, (known if known is not None else HOPE) if self._schedule_branches else 0.0
        )

    def _patience(self, now: float) -> tuple[int, float]:
        if self._choice.probe or self._choice.mode == "off" or self._went_on:
            return 0, 0.0
        if self._choice.mode != "lockstep":
            return super()._patience(now)
        n = self._choice.n
        return n, LATE * (n * (self.costs.step_s() or FIRST_WAIT_S) + (self.costs.round_trip.value or 0.0))

    def _p_min(self) -> float:
        """In lockstep the target waits for each token: it must bring more than its step and its row are worth."""
        asked = super()._p_min()
        if self._choice.mode != "lockstep":
            return asked
        n, costs = self._choice.n, self.costs
        alone, together, worth = costs.verify_s(1), costs.verify_s(n + 1), costs.worth()
        if alone is None or together is None or worth is None:
            return asked
        if any((costs.verify_s(k + 1) or 0.0) > together for k in range(1, n)):
            return asked  # a shorter draft would take longer to verify
        token_s = max(together - alone, 0.0) / n + (costs.step_s() or 0.0)
        return max(asked, min(worth * token_s, HIGHEST_P_MIN))

    def _goes_on(self) -> bool:
        nothing_left = self._riding is None and len(self._ahead.tokens) <= len(self._draft)
        undrafted = self.n_generated > 0 and self._choice.mode == "off" and nothing_left and self._finds_nothing
        return super()._goes_on() or undrafted

    def _verify(self) -> list[Command]:
        commands = super()._verify()
        self._went_on = isinstance(self._waiting, VerifyRequest) and self._waiting.goes_on
        return commands

    def explain(self) -> dict[str, Any] | None:
        return self._chooser.explain(self.request.speculation.n_max, self._outlook)

    def _go_on(self, verdict: Verdict, n_accepted: int, now: float) -> list[Command]:
        undisturbed = self._choice.mode != "off" or not self.learning.beside_draft
        looked_up = bool(self._draft) and self.chain.last_type(0) != DRAFT_SIMPLE  # whatever was chosen
        if self.learning.is_typical and self._chose and undisturbed and not looked_up:
            self._chooser.brought(self._choice, len(verdict.tokens), now - self.learning.round_since)
        return super()._go_on(verdict, n_accepted, now)


def make_session(request: Request, schedule: Schedule, chain: Chain | None = None) -> Session:
    """The kind of session that this schedule drives."""
    match schedule:
        case Auto():
            return AutoSession(request, schedule, chain)
        case Overlap():
            return OverlapSession(request, schedule, chain)
    return Session(request, schedule, chain)
