"""What the rounds of a session teach: their costs, which all sessions share, and how often its drafts are right. Pure.

Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.costs import Acceptance, Costs
from outrider.averages import Average
from outrider.wire.messages import DraftTokens, Verdict


class Learning:
    """Told what happens, in order. costs: of the pair of workers."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.acceptance = Acceptance()
        self.foreseen = Average()  # how often a branch was there where the target left the chain
        self.round_since = 0.0
        self.asked_again = False  # the target, in this round
        self.n_begun_ahead = 0  # verifications that the target began by a push
        self._target_asked_at = 0.0
        self._draft_asked_at: dict[int, float] = {}  # by the committed length of the requests that ride
        self._idle_mark: int | None = None  # of the draft worker, when the target was asked
        self._read_mark: int | None = None  # of all prompts, when the round began
        self._is_live = self._is_reading = False  # our prompt

    # --- what happens --------------------------------------------------------------------------------------------

    def session_starts(self) -> None:
        self._is_live = self._is_reading = True
        self.costs.n_live += 1
        self.costs.reading.change(+1)

    def session_ends(self) -> None:
        self._has_read()
        self.costs.n_live -= self._is_live
        self._is_live = False

    def round_starts(self, now: float) -> None:
        self.round_since = now
        self.asked_again, self._read_mark = False, self.costs.reading.idle_mark()

    def target_asked(self, now: float) -> None:
        self._idle_mark, self._target_asked_at = self.costs.drafting.idle_mark(), now

    def draft_asked(self, committed_len: int, now: float) -> None:
        self._draft_asked_at[committed_len] = now

    def draft_restarts(self) -> None:
        """What it was asked for counts no longer."""
        self._draft_asked_at = {}

    def drafted(self, draft: DraftTokens, now: float, *, busy: bool) -> None:
        """Tokens came. busy: the target is at work."""
        decode_s = draft.decode_us / 1e6
        if draft.n_evaluated <= len(draft.tokens) + 1:
            self.costs.drafted(decode_s / len(draft.tokens), busy=busy)
        asked_at = self._draft_asked_at.get(draft.committed_len)
        if asked_at is not None and draft.start == draft.committed_len:
            self.costs.round_trip.add(max(now - asked_at - decode_s, 0.0))
        self._draft_asked_at = {n: at for n, at in self._draft_asked_at.items() if n > draft.committed_len}

    def decided(
        self, verdict: Verdict, n_tested: int, n_accepted: int, probs: Sequence[float] | None, now: float
    ) -> None:
        """A verdict on `n_tested` tokens. probs: those that the draft worker gave them; None if it did not make them."""
        costs = self.costs
        if verdict.ahead:
            self.n_begun_ahead += 1
        elif self.is_typical:
            costs.target_trip.add(max(now - self._target_asked_at - verdict.decode_us / 1e6, 0.0))
        if verdict.n_sessions and verdict.n_evaluated == n_tested + 1:
            costs.verified(verdict.n_rows, verdict.decode_us / 1e6, self.beside_draft, verdict.n_sessions)
        if now > self.round_since > 0 and self.is_typical:
            costs.speed.add(len(verdict.tokens), now - self.round_since)
        self._has_read()
        if probs is None:
            return
        self.acceptance.add(n_accepted, n_tested)
        for i, prob in enumerate(probs[:n_tested]):
            if i <= n_accepted:  # behind the first mismatch nothing was decided
                costs.calibration.add(prob, i < n_accepted)

    def _has_read(self) -> None:
        """The prompt is read, or nobody wants it any more."""
        self.costs.reading.change(-self._is_reading)
        self._is_reading = False

    # --- what it tells -------------------------------------------------------------------------------------------

    def draft_asked_at(self, committed_len: int) -> float | None:
        return self._draft_asked_at.get(committed_len)

    @property
    def beside_draft(self) -> bool:
        """Has the draft worker been at work, for whomever, since the target was asked?"""
        return not self.costs.drafting.idle_since(self._idle_mark)

    @property
    def is_typical(self) -> bool:
        """Does the time of this round tell of others? Not if a prompt was read, whosever, or the target was asked again."""
        return self.costs.reading.idle_since(self._read_mark) and not self.asked_again
