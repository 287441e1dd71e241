"""The `overlap` schedule: the draft rides on while the target verifies. A visible rearrangement of `session.py`.

    lockstep   draft ── verify ── draft ── verify
    overlap    draft ───────────────────── …            up to its credit, each token told as it comes
                 └─ verify ── verify ── verify …        with what has come, as far as it is worth a row

What was drafted ahead stays as long as the target samples the same; the first token that differs starts a new epoch: one
message rolls the draft back and restarts it from the target's own token, and what still comes of the old epoch is dropped.
"""

from __future__ import annotations

from coordinator.ahead import Ahead
from coordinator.costs import Acceptance, Costs
from coordinator.instructions import Command, Send, WakeAt
from coordinator.replies import answers, may_ask_again
from coordinator.request import Request
from coordinator.schedule import RoundPlan, Schedule, SpeculationSettings
from coordinator.session import MODEL, Phase, Session
from outrider.speculators.chain import Chain
from outrider.types import WorkerRole
from outrider.wire.messages import DraftRequest, DraftTokens, Failure, Message, SessionMessage, Verdict

#: The draft may be this many verifications ahead of the target.
LOOKAHEAD_ROUNDS = 3
#: Patience with a draft that is late, as a multiple of the time that it should need.
PATIENCE = 1.5
#: Patience while nothing is known of the draft.
FIRST_WAIT_S = 0.25


class Overlap:
    """Both sides work at the same time."""

    name = "overlap"

    def __init__(self) -> None:
        self.costs = Costs()

    def uses_draft(self, settings: SpeculationSettings) -> bool:
        return MODEL in settings.types and settings.n_max > 0

    def plan(self, settings: SpeculationSettings, budget: int) -> RoundPlan:
        return RoundPlan(min(settings.n_max, budget))


class OverlapSession(Session):
    """`phase` is DRAFTING while the target waits for drafts, VERIFYING while it works; the draft may be at work in both."""

    def __init__(self, request: Request, schedule: Schedule, chain: Chain | None, costs: Costs) -> None:
        super().__init__(request, schedule, chain)
        self.costs = costs
        self._ahead = Ahead(len(self.history))
        self._riding: DraftRequest | None = None  # the draft worker is at work on this
        self._riding_since = 0.0
        self._halted = False  # it stopped by itself (p_min); asked again it would stop there again
        self._round_since = 0.0
        self._wish = 0  # drafted tokens that the target waits for
        self._give_up_at = 0.0
        self.acceptance = Acceptance()
        n_max = request.speculation.n_max
        self._n = n_max  # the most drafted tokens that a round verifies
        self._reach = LOOKAHEAD_ROUNDS * (n_max + 1)  # how far ahead of the text the draft may be

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
            return same and isinstance(message, DraftTokens | Failure)
        waiting = self._waiting
        return waiting is not None and isinstance(message, Verdict | Failure) and answers(message, waiting)

    # --- a round -------------------------------------------------------------------------------------------------

    def _start_round(self, now: float) -> list[Command]:
        if len(self.history) >= self.target_facts.n_ctx:
            return self._finish("length", now)
        self.round += 1
        self._round_since = now
        self._draft = self._look_up()
        ride = self._ride(now)
        # The first token never waits for the draft; and a verification goes out before the draft's next credit.
        if self._draft or self.n_generated == 0:
            return self._verify() + ride
        if self._ahead.tokens:
            return self._verify_or_wait(now) + ride
        return ride + self._verify_or_wait(now)

    def _ride(self, now: float) -> list[Command]:
        """Renew the draft's credit, unless it has enough or nothing to do."""
        plan = self._plan()
        if plan.n_max <= 0 or self._reach <= 0 or (self._halted and self._ahead.tokens):
            return []
        if self._riding is not None and 2 * (self._riding.credit - self._drafted_to()) > self._reach:
            return []
        credit = self._credit()
        if credit <= self._drafted_to():
            return []
        begin = self._begin("draft")
        prefix = (*self._stamp("draft"), *self._prefix("draft"))
        request = DraftRequest(*prefix, plan.n_max, 0, self.request.speculation.p_min, credit)
        self._riding, self._riding_since, self._halted = request, now, False
        return [*begin, Send("draft", request)]

    def _restart_draft(self) -> None:
        """What was drafted under this epoch no longer counts."""
        self.epoch += 1
        self._riding, self._halted = None, False

    def _drafted_to(self) -> int:
        return max(self._ahead.end, len(self.history))

    def _credit(self) -> int:
        """Absolute position up to which the draft may ride now."""
        end = len(self.history) + min(self._reach, self._draft_budget())
        return min(end, self._peers["draft"].facts.n_ctx + 1)

    def _verify_or_wait(self, now: float) -> list[Command]:
        """Verify what has come, as far as it is worth its rows; or wait for a draft that has just been restarted."""
        n_max = min(self._n, self._room())
        n = min(self.costs.submit_len(self._ahead.probs), n_max)
        if n_max > 0 and self._riding is not None and self._waits(n, now):
            self.phase, self._waiting = Phase.DRAFTING, None
            return [WakeAt(self._give_up_at)]
        self._draft = self._ahead.tokens[:n]
        if n:
            self._speculators.drafted_outside(MODEL, n)
        return self._verify()

    def _waits(self, n: int, now: float) -> bool:
        """Shall the target wait although it could verify `n` drafted tokens now?"""
        if self.phase is Phase.DRAFTING:
            return n < self._wish and now < self._give_up_at
        if self._ahead.tokens:
            return False  # the draft is ahead: it comes further while these are verified
        self._wish, seconds = self._patience()
        self._give_up_at = now + seconds
        return self._wish > 0

    def _patience(self) -> tuple[int, float]:
        """How many tokens to wait for after a restart, and for how many seconds at most; (0, 0.0): not at all.

        The average-reward rule: waiting for m tokens must bring more tokens than our speed makes in that time.
        """
        costs = self.costs
        step, alone, speed = costs.draft_step.value, costs.verify_s(1), costs.speed.value
        if step is None or alone is None or speed is None:
            return 1, FIRST_WAIT_S  # nothing is known yet: look at one round
        rate = self.acceptance.value
        best, best_value, best_s = 0, 1.0 - speed * alone, 0.0
        expected, survives = 1.0, 1.0
        for m in range(1, self._n + 1):
            survives *= rate
            expected += survives
            wait_s = m * step + (costs.round_trip.value or 0.0)
            value = expected - speed * (wait_s + (costs.verify_s(m + 1) or alone))
            if value > best_value:
                best, best_value, best_s = m, value, wait_s
        return best, PATIENCE * best_s

    # --- events --------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> list[Command]:
        if self.phase is Phase.DRAFTING and now >= self._give_up_at:
            return self._verify_or_wait(now)
        return []

    def _on_draft(self, draft: DraftTokens, now: float) -> list[Command]:
        self._failures["draft"] = 0
        self.counts.draft_decode_us += draft.decode_us
        n_vocab = self.target_facts.n_vocab
        n_known = next((i for i, token in enumerate(draft.tokens) if token >= n_vocab), len(draft.tokens))
        if draft.n_evaluated and draft.tokens:
            self._learn_draft(draft, now)
        if not self._ahead.add(draft.start, draft.tokens[:n_known], draft.probs[:n_known]):
            self._restart_draft()  # a message was lost: in a new epoch all that is drafted comes again
            return self._ride(now)
        if draft.final or n_known < len(draft.tokens):
            assert self._riding is not None
            self._halted = self._ahead.end < self._riding.credit
            self._riding = None
        return self._verify_or_wait(now) if self.phase is Phase.DRAFTING else []

    def _learn_draft(self, draft: DraftTokens, now: float) -> None:
        decode_s = draft.decode_us / 1e6
        if draft.n_evaluated <= len(draft.tokens) + 1:
            self.costs.draft_step.add(decode_s / len(draft.tokens))
        riding = self._riding
        if riding is not None and draft.start == riding.committed_len and draft.round == self.round:
            self.costs.round_trip.add(max(now - self._riding_since - decode_s, 0.0))

    def _go_on(self, verdict: Verdict, n_accepted: int, now: float) -> list[Command]:
        self._learn_verdict(verdict, n_accepted, now)
        if not self._ahead.commit(verdict.tokens):
            self._restart_draft()
        self.phase = Phase.VERIFYING
        return self._start_round(now)

    def _learn_verdict(self, verdict: Verdict, n_accepted: int, now: float) -> None:
        costs = self.costs
        if verdict.n_evaluated == len(self._draft) + 1:
            costs.verified(verdict.n_evaluated, verdict.decode_us / 1e6)
        if now > self._round_since > 0 and self.counts.rounds > 1:
            costs.speed.add(len(verdict.tokens) / (now - self._round_since))
        if self.chain.last_type(0) != MODEL:
            return
        self.acceptance.add(n_accepted, len(self._draft))
        for i, prob in enumerate(self._ahead.probs[: len(self._draft)]):
            if i <= n_accepted:  # behind the first mismatch nothing was decided
                costs.calibration.add(prob, i < n_accepted)

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def worker_lost(self, role: WorkerRole, reason: str, now: float) -> list[Command]:
        if role == "draft":
            self._restart_draft()
            self._ahead.restart(len(self.history))
        return super().worker_lost(role, reason, now)

    def resend(self, role: WorkerRole) -> list[Command]:
        if role == "target":
            return super().resend(role)
        self.counts.n_resent += 1
        self._restart_draft()
        if "draft" in self._peers:
            self._peers["draft"].known_len = 0
        return self._ride(self._riding_since)

    def _on_failure(self, failure: Failure, now: float) -> list[Command]:
        riding = self._riding
        if riding is None or failure.incarnation != riding.incarnation:
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
