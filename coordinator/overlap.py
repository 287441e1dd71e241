"""The `overlap` schedule: the draft rides on while the target verifies. A visible rearrangement of `session.py`.

    lockstep   draft ── verify ── draft ── verify
    overlap    draft ───────────────────── …            up to its credit, each token told as it comes
                 └─ verify ── verify ── verify …        with what has come, as far as it is worth a row

What was drafted ahead stays as long as the target samples the same; the first token that differs starts a new epoch: one
message rolls the draft back and restarts it from the target's own token, and what still comes of the old epoch is dropped.
"""

from __future__ import annotations

from coordinator.ahead import Ahead
from coordinator.costs import Costs
from coordinator.instructions import Command, FinishReason, Send, WakeAt
from coordinator.learning import Learning
from coordinator.lengths import Survival
from coordinator.replies import answers, may_ask_again
from coordinator.request import Request
from coordinator.schedule import RoundPlan, SpeculationSettings
from coordinator.session import Phase, Session
from coordinator.waiting import best_wait
from outrider.speculators.base import Worth
from outrider.speculators.chain import Chain
from outrider.speculators.hold import Due
from outrider.speculators.types import DRAFT_SIMPLE
from outrider.types import ModelFacts, WorkerRole
from outrider.wire.messages import (
    MAX_BRANCHES,
    MAX_DRAFT,
    Branch,
    DraftRequest,
    DraftTokens,
    Failure,
    FailureCode,
    Message,
    Push,
    SessionMessage,
    Verdict,
    Verifying,
)

#: The draft may be this many verifications ahead of the target.
LOOKAHEAD_ROUNDS = 3
#: Patience with a draft that is late, as a multiple of the time that it should need.
PATIENCE = 1.5
#: A target that answers sooner, beside its decode, is asked anew each time: pushing costs as much.
PUSH_FROM_S = 0.002
#: A draft is not told when a verdict is due if its steps are shorter, seconds: it loses less by them than by the word.
HOLD_FROM_S = 0.001
#: Patience while nothing is known of the draft.
FIRST_WAIT_S = 0.25


class Overlap:
    """Both sides work at the same time. With branches the draft also prepares for what else the target may sample."""

    name: str

    def __init__(self, n_branches: int = 0) -> None:
        self.costs = Costs()
        self.n_branches = n_branches
        self.name = "branches" if n_branches else "overlap"

    def plan(self, settings: SpeculationSettings, budget: int) -> RoundPlan:
        return RoundPlan(min(settings.n_max, budget))


class OverlapSession(Session):
    """`phase` is DRAFTING while the target waits for drafts, VERIFYING while it works; the draft may be at work in both."""

    def __init__(self, request: Request, schedule: Overlap, chain: Chain | None) -> None:
        super().__init__(request, schedule, chain)
        self.costs = schedule.costs
        self.learning = Learning(schedule.costs)
        self._n_branches = schedule.n_branches  # that the draft may follow
        self._ahead = Ahead(len(self.history))
        self._rides: DraftRequest | None = None
        self._step_since = 0.0  # when the draft began the step that makes the next token
        self._due: Due | None = None  # what it was told of the verdict that is expected
        self._is_held = False  # it begins no step before that
        self._right_from = 0  # what was drafted behind a shorter text is wrong
        self._halted = False  # it stopped by itself (p_min); asked again it would stop there again
        self._now = 0.0
        self._pushed: set[tuple[int, int]] = set()  # what the target has been told, by position and token before it
        self._wish = 0  # drafted tokens that the target waits for
        self._prepared_for = 0  # the round in which `prepare` had its turn
        self._wish_anew: int | None = None  # the same where the draft begins anew, worked out before it does
        self._give_up_at = 0.0
        self._gave_up = False  # the draft was waited for in vain; not again before it has told something
        n_max = request.speculation.n_max
        self._n = n_max  # the most drafted tokens that a round verifies
        self._reach = LOOKAHEAD_ROUNDS * (n_max + 1)  # how far ahead of the text the draft may be

    @property
    def _riding(self) -> DraftRequest | None:
        """The draft worker is at work on this. All sessions of the schedule know whether it is."""
        return self._rides

    @_riding.setter
    def _riding(self, request: DraftRequest | None) -> None:
        change = (request is not None) - (self._rides is not None)
        if change:
            self.costs.drafting.change(change)
        self._rides = request

    # --- replies -------------------------------------------------------------------------------------------------

    def expects(self, role: WorkerRole) -> bool:
        return self.phase is Phase.VERIFYING if role == "target" else self._riding is not None

    def _is_due(self, message: Message) -> bool:
        """A draft belongs to its epoch: within one, what was committed meanwhile does not make it wrong."""
        if not isinstance(message, SessionMessage):
            return False
        riding = self._riding
        if riding is not None and message.incarnation == riding.incarnation:
            same = (message.session, message.epoch) == (riding.session, riding.epoch)
            right = self._right_from <= message.committed_len <= riding.committed_len
            return same and right and isinstance(message, DraftTokens | Failure)
        waiting = self._waiting
        return waiting is not None and isinstance(message, Verdict | Failure) and answers(message, waiting)

    def start(self, now: float) -> list[Command]:
        self.learning.session_starts()
        return super().start(now)

    # --- a round -------------------------------------------------------------------------------------------------

    def _start_round(self, now: float) -> list[Command]:
        if len(self.history) >= self.target_facts.n_ctx:
            return self._finish("length", now)
        self.round += 1
        self._now = now
        self.learning.round_starts(now)
        self._look_up()
        ride = self._ride(now)
        # The first token never waits for the draft; and a verification goes out before the draft's next credit.
        if self._draft or self.n_generated == 0:
            return self._verify() + ride
        if self._ahead.tokens:
            return self._verify_or_wait(now) + ride
        return ride + self._verify_or_wait(now)

    def _ride(self, now: float, *, tell: bool = False) -> list[Command]:
        """Renew the draft's credit and tell it the text, unless it has enough and needs not know."""
        plan = self._plan()
        if plan.n_max <= 0 or self._reach <= 0 or (self._halted and self._ahead.tokens):
            return []
        credit, riding = self._credit(), self._riding
        if riding is not None and riding.committed_len == len(self.history):
            return []
        enough = riding is not None and 2 * (riding.credit - self._drafted_to()) > self._reach
        # Which branches may still be needed, and whether a draft that is behind is right, depends on the text.
        needs_text = tell or self._n_branches > 0 or bool(self._ahead.late)
        if not needs_text and (enough or credit <= self._drafted_to()):
            return []
        begin = self._begin("draft")
        prefix = (*self._stamp("draft"), *self._prefix("draft"))
        request = DraftRequest(*prefix, plan.n_max, 0, self._p_min(), credit, self._n_branches, with_probs=True)
        if riding is None or self._is_held:
            self._step_since = now + self._trip
        self._riding, self._halted, self._is_held = request, False, False
        self.learning.draft_asked(request.committed_len, now)
        return [*begin, Send("draft", request)]

    @property
    def _trip(self) -> float:
        """Seconds to the draft and back."""
        return self.costs.round_trip.value or 0.0

    def _p_min(self) -> float:
        """The draft stops before a token less probable than this."""
        return self.request.speculation.p_min

    def _verify(self) -> list[Command]:
        self.learning.target_asked(self._now)
        self._pushed = set()
        return [*super()._verify(), *self._push(), *self._tell_due()]

    def _worth(self) -> Worth | None:
        known = self.costs.worth() is not None
        return Survival(self.costs, MAX_DRAFT, beside_draft=self._riding is not None).best if known else None

    def _goes_on(self) -> bool:
        """Nor does a draft come from a worker that was waited for in vain before this round and has been silent since."""
        silent = self._gave_up and self._give_up_at <= self.learning.round_since
        return super()._goes_on() or (silent and self._finds_nothing)

    def _push(self) -> list[Command]:
        """Tell the target what it will be asked for next, where a round trip takes long enough to notice."""
        trip = self.costs.target_trip.value
        if trip is None or trip < PUSH_FROM_S or self.phase is not Phase.VERIFYING or "target" not in self._peers:
            return []
        news = []
        for branch in self._ahead.continuations(len(self._draft)):
            key = branch.start, branch.tokens[0]
            if key in self._pushed:
                continue
            n = Survival(self.costs, self._n).length(branch.probs[1:])
            if n >= self._n or n < len(branch.tokens) - 1:  # one that is still to grow would begin with too little
                self._pushed.add(key)
                news.append(Branch(branch.start, branch.tokens[: 1 + n], branch.probs[: 1 + n]))
        return [Send("target", Push(*self._stamp("target"), news[:MAX_BRANCHES]))] if news else []

    def _tell_due(self) -> list[Command]:
        """Tell a draft at work when this verification will probably be over. With branches a step is hardly ever in vain."""
        self._due = None
        if self._riding is None or self._n_branches or self.phase is not Phase.VERIFYING or "draft" not in self._peers:
            return []
        costs = self.costs
        step, verify = costs.step_s(busy=True), costs.verify_s(len(self._draft) + 1, busy=True)
        if verify is None or step is None or step < HOLD_FROM_S:
            return []
        due = self._now + verify + (costs.target_trip.value or 0.0)
        self._due = Due(due, len(self.history), len(self._draft))
        if self._is_held:
            self._step_since, self._is_held = self._now + self._trip, self._holds(self._now)
        return [Send("draft", Verifying(*self._stamp("draft"), len(self._draft), round(1e6 * due)))]

    def _holds(self, now: float) -> bool:
        """Does the draft begin no step now, but wait for the verdict? By the rule of the draft itself."""
        step = self.costs.step_s(busy=True)
        if self._due is None or step is None or self.phase is not Phase.VERIFYING:
            return False
        return self._due.hold(now, step, self._ahead.start, self._ahead.probs) > 0.0

    def _restart_draft(self) -> None:
        """What was drafted under this epoch no longer counts."""
        self.epoch += 1
        self._riding, self._halted, self._is_held = None, False, False
        self.learning.draft_restarts()
        self._right_from = 0

    def _wrong_from(self, position: int, now: float) -> list[Command]:
        """The draft contradicts the text at this position. It may have been told so already."""
        if self._riding is not None and self._riding.committed_len > position:
            self._ahead.restart(len(self.history))
            asked_at = self.learning.draft_asked_at(self._riding.committed_len)
            self._right_from, self._step_since = position + 1, (now if asked_at is None else asked_at) + self._trip
            return []
        return self._lost_touch(now)

    def _lost_touch(self, now: float) -> list[Command]:
        """What the draft takes for told is not what is here: let it tell all again."""
        self._ahead.restart(len(self.history))
        self._restart_draft()
        return self._ride(now)

    def _drafted_to(self) -> int:
        return max(self._ahead.end, len(self.history))

    def _credit(self) -> int:
        """Absolute position up to which the draft may ride now."""
        end = len(self.history) + min(self._reach, self._draft_budget())
        return min(end, self._peers["draft"].facts.n_ctx + 1)

    def _verify_or_wait(self, now: float) -> list[Command]:
        """Verify what has come, as far as it is worth its rows; or wait for a draft that has just been restarted."""
        self._now = now
        n_max = min(self._n, self._room())
        n = Survival(self.costs, n_max).length(self._ahead.probs)
        if n_max > len(self._ahead.tokens) and self._riding is not None and self._waits(now):
            self.phase, self._waiting = Phase.DRAFTING, None
            return [*(self._ride(now, tell=True) if self._is_held else []), WakeAt(self._give_up_at)]
        if self._halted and len(self._ahead.tokens) < self.request.speculation.n_min:
            n = 0  # it stopped by itself, and too soon
        self._draft = self._ahead.tokens[:n]
        if n:
            self._speculators.drafted_outside(DRAFT_SIMPLE, n)
        return self._verify()

    def _waits(self, now: float) -> bool:
        """Shall the target wait although it could verify what is there now?"""
        if self.phase is not Phase.DRAFTING:
            if self._gave_up:
                return False
            self._wish, seconds = self._patience(now)
            self._give_up_at = now + seconds
        return len(self._ahead.tokens) < self._wish and now < self._give_up_at

    def _patience(self, now: float) -> tuple[int, float]:
        """How many drafted tokens to wait for, and for how many seconds at most; (0, 0.0): not at all."""
        n_ready, step = len(self._ahead.tokens), self._step_s
        if step is None:
            return (0, 0.0) if n_ready else (1, FIRST_WAIT_S)  # nothing is known yet: look at one round
        # The next token comes at the end of the step at work; before it, what the target has sampled meanwhile is drafted.
        since = now + self._trip if self._is_held else self._step_since
        next_s = max(since + (len(self._ahead.late) + 1) * step - now, 0.0)
        begins_anew = not n_ready and not self._ahead.late and since == now + self._trip
        wish = self._wish_anew if begins_anew else None
        if wish is None:
            wish = self._best_wait(next_s, step, n_ready)
        return (0, 0.0) if wish <= n_ready else (wish, PATIENCE * (next_s + (wish - n_ready) * step))

    @property
    def _step_s(self) -> float | None:
        """Seconds of a drafted token beside the target; None while too little is known to weigh it."""
        return None if self.costs.verify_s(1) is None else self.costs.step_s(busy=True)

    def _best_wait(self, next_s: float, step: float, n_ready: int) -> int:
        """For how many drafted tokens to wait, where the next one comes in `next_s`."""
        waits = [next_s + (m - n_ready - 1) * step if m > n_ready else 0.0 for m in range(self._n + 1)]
        acceptance, foreseen = self.learning.acceptance.value, self.learning.foreseen.value or 0.0
        return best_wait(self.costs, acceptance, foreseen, waits, min(n_ready, self._n))

    def prepare(self) -> None:
        """How long to wait where the draft begins anew is worked out while the target is at work, once a round."""
        if self.phase is not Phase.VERIFYING or self._prepared_for == self.round:
            return
        self._prepared_for = self.round
        step = self._step_s
        self._wish_anew = None if step is None else self._best_wait(self._trip + step, step, 0)

    # --- events --------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> list[Command]:
        if self.phase is Phase.DRAFTING and now >= self._give_up_at:
            self._gave_up = True
            return self._verify_or_wait(now)
        return []

    def _on_draft(self, draft: DraftTokens, now: float) -> list[Command]:
        self._failures["draft"], self._gave_up = 0, False
        self.counts.draft_decode_us += draft.decode_us
        n_vocab = self.target_facts.n_vocab
        n_known = min(self._n_known(draft.tokens), len(draft.probs))
        if draft.n_evaluated and draft.tokens:
            self.learning.drafted(draft, now, busy=self.phase is Phase.VERIFYING)
        wrong_from, n_agreed = self._ahead.add(draft.start, draft.tokens[:n_known], draft.probs[:n_known])
        behind_gap = wrong_from is not None and draft.start > wrong_from
        contradicts = wrong_from is not None and not behind_gap
        self.learning.acceptance.add(n_agreed, n_agreed + (contradicts and bool(self._ahead.late)))
        if wrong_from is not None:
            return self._or_verify(self._lost_touch(now) if behind_gap else self._wrong_from(wrong_from, now), now)
        self._step_since, self._is_held = now, self._holds(now)
        self._ahead.add_branches([branch for branch in draft.branches if max(branch.tokens) < n_vocab])
        assert self._riding is not None
        if (draft.final and draft.committed_len == self._riding.committed_len) or n_known < len(draft.tokens):
            self._halted = self._ahead.end < self._riding.credit
            self._riding = None
        return self._verify_or_wait(now) if self.phase is Phase.DRAFTING else self._push()

    def _or_verify(self, commands: list[Command], now: float) -> list[Command]:
        """These, and where the target waits for a draft that is not made any more, its verification."""
        nobody_drafts = self.phase is Phase.DRAFTING and self._riding is None
        return commands + self._verify_or_wait(now) if nobody_drafts else commands

    def _go_on(self, verdict: Verdict, n_accepted: int, now: float) -> list[Command]:
        by_draft = self.chain.last_type(0) == DRAFT_SIMPLE
        # Of what was begun ahead the rest was not looked at; else a draft was cut at what the grammar forbids.
        n_tested = verdict.n_tested if verdict.ahead else len(self._draft)
        self.learning.decided(verdict, n_tested, n_accepted, self._ahead.probs if by_draft else None, now)
        followed = self._ahead.commit(verdict.tokens)
        if followed != "chain":
            if self._n_branches and self._draft:
                self.learning.foreseen.add(followed == "branch")
            self._restart_draft()
        self.phase = Phase.VERIFYING
        return self._start_round(now)

    def worker_ready(self, role: WorkerRole, incarnation: int, facts: ModelFacts) -> list[Command]:
        self.costs.expect(role, facts.row_times)
        self.learning.asked_again |= role == "target" and self.phase is Phase.VERIFYING
        return super().worker_ready(role, incarnation, facts)

    def _finish(
        self, reason: FinishReason, now: float, error: str | None = None, code: FailureCode | None = None
    ) -> list[Command]:
        self._riding = None
        self.learning.session_ends()
        return super()._finish(reason, now, error, code)

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def worker_lost(self, role: WorkerRole, reason: str, now: float, *, same_process: bool = False) -> list[Command]:
        if role == "draft":
            self._restart_draft()
            self._ahead.restart(len(self.history))
        return super().worker_lost(role, reason, now, same_process=same_process)

    def resend(self, role: WorkerRole) -> list[Command]:
        if role == "target":
            self.learning.asked_again = True
            return super().resend(role)
        self.counts.n_resent += 1
        self._restart_draft()
        if "draft" in self._peers:
            self._peers["draft"].known_len = 0
        return self._or_verify(self._ride(self.learning.round_since), self._now)

    def _on_failure(self, failure: Failure, now: float) -> list[Command]:
        riding = self._riding
        if riding is None or failure.incarnation != riding.incarnation:
            self.learning.asked_again = True
            return super()._on_failure(failure, now)
        return self._on_draft_failure(failure, now)

    def _on_draft_failure(self, failure: Failure, now: float) -> list[Command]:
        """The draft starts again from the committed text, or is left alone."""
        self._failures["draft"] += 1
        self._restart_draft()
        peer = self._peers["draft"]
        peer.known_len = 0
        peer.begun &= failure.code != "unknown_session"
        if not may_ask_again("draft", failure, self._failures["draft"]):
            self._draft_off = f"draft worker: {failure.reason}"
        ride = self._ride(now)
        return ride + self._verify_or_wait(now) if self.phase is Phase.DRAFTING else ride
