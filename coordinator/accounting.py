"""Where the time and the tokens of one session went, from the messages alone. Pure.

A worker computes for `decode_us` up to the moment its reply arrives. So the decodes of both workers are known as
intervals, and what of the draft's lies within the target's was *hidden* by it; the rest was *exposed*. Times and bytes
count from the first verdict on: the prompt is left out, as it is from the rate of generation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.observer import Direction
from outrider.types import WorkerRole
from outrider.wire.messages import DraftTokens, SessionMessage, Verdict, VerifyRequest

#: Decodes of the target that one decode of the draft may span.
MAX_SPANNED = 256


class Timeline:
    """How much of the draft's decodes lay within the target's. Intervals come in the order in which they end."""

    def __init__(self) -> None:
        self.start: float | None = None  # nothing before this time counts
        self.busy_s = self.draft_s = self.hidden_s = 0.0
        self._busy: deque[tuple[float, float]] = deque(maxlen=MAX_SPANNED)  # what a draft's decode may still lie within
        self._open: list[tuple[float, float]] = []  # parts of drafts behind the target's last decode
        self._busy_to = self._draft_to = 0.0

    def target(self, end: float, seconds: float) -> None:
        """The target has computed for so long, up to `end`."""
        if self.start is None:
            self.start = self._busy_to = self._draft_to = end
            return
        begin = max(end - seconds, self._busy_to)
        self.busy_s += end - begin
        self.hidden_s += sum(_shared(begin, end, *part) for part in self._open)
        self._open.clear()
        self._busy_to = end
        self._busy.append((begin, end))

    def draft(self, end: float, seconds: float) -> None:
        """The draft has computed for so long, up to `end`."""
        if self.start is None:
            return
        begin = max(end - seconds, self._draft_to)
        self.draft_s += end - begin
        self.hidden_s += sum(_shared(begin, end, *busy) for busy in self._busy)
        self._busy.clear()  # the next decode of the draft begins here at the earliest
        self._draft_to = end
        if end > self._busy_to:
            self._open.append((max(begin, self._busy_to), end))


def _shared(start: float, end: float, other_start: float, other_end: float) -> float:
    return max(min(end, other_end) - max(start, other_start), 0.0)


class Drafted:
    """What the draft worker has told: a chain behind the committed text, and other ways on from places of it."""

    def __init__(self) -> None:
        self._start = 0
        self._chain: list[int] = []
        self._branches: dict[tuple[int, int], Sequence[int]] = {}  # by position and first token

    def add(self, start: int, tokens: Sequence[int]) -> int:
        """How many of these tokens are news: what is told again is not."""
        n_kept = start - self._start
        if not 0 <= n_kept <= len(self._chain):
            self._start, self._chain, n_kept = start, [], 0
        n_known = _n_common(self._chain[n_kept:], tokens)
        if n_known < len(tokens):
            self._chain[n_kept:] = tokens
        return len(tokens) - n_known

    def add_branch(self, start: int, tokens: Sequence[int]) -> int:
        """The same for a branch, which is told whole whenever it has grown."""
        key = (start, tokens[0])
        known = self._branches.get(key, ())
        self._branches[key] = tokens
        return len(tokens) - _n_common(known, tokens)

    def holds(self, start: int, tokens: Sequence[int]) -> bool:
        """Did the draft worker propose these as the chain?"""
        at = start - self._start
        return at >= 0 and self._chain[at : at + len(tokens)] == list(tokens)

    def commit(self, start: int, tokens: Sequence[int]) -> None:
        """These tokens are text now: the chain goes on behind them, or a branch does, or nothing is left."""
        end = start + len(tokens)
        if self.holds(start, tokens):
            self._chain = self._chain[end - self._start :]
        else:
            self._chain = self._branch_from(start, tokens)
        self._start = end
        self._branches = {key: branch for key, branch in self._branches.items() if key[0] >= end}

    def _branch_from(self, start: int, tokens: Sequence[int]) -> list[int]:
        """What a branch that begins within `tokens` has behind them."""
        for (at, _), branch in self._branches.items():
            n_before = at - start
            if 0 <= n_before < len(tokens) and self.holds(start, tokens[:n_before]):
                rest = tokens[n_before:]
                if list(branch[: len(rest)]) == list(rest):
                    return list(branch[len(rest) :])
        return []


def _n_common(left: Sequence[int], right: Sequence[int]) -> int:
    n = 0
    for ours, theirs in zip(left, right, strict=False):
        if ours != theirs:
            break
        n += 1
    return n


class Accounting:
    """Keeps `coordinator.observer.Observer` for one session."""

    def __init__(self) -> None:
        self.time = Timeline()
        self.n_drafted = 0  # tokens that the draft worker made, those that it withheld included
        self.n_branched = 0  # … those of them off the chain
        self.n_submitted = 0  # tokens that the target tested, whoever drafted them
        self.n_of_worker = 0  # … those of them that the draft worker made
        self.n_accepted = 0
        self.n_round_trips = 0
        self.n_rounds = 0
        self.n_bytes = 0
        self.coordinator_s = 0.0
        self._told = Drafted()
        self._epoch = 0
        self._request: VerifyRequest | None = None  # the verification at hand
        self._by_worker = False  # its draft is the draft worker's
        self._waited = False  # a message of the draft came while nothing was verified
        self._last = -1  # round of the last verdict

    # --- Observer ------------------------------------------------------------------------------------------------

    def saw(self, time: float, direction: Direction, role: WorkerRole, message: SessionMessage, n_bytes: int) -> None:
        if self.n_rounds:
            self.n_bytes += n_bytes
        kind = type(message)
        if direction == "to":
            self._epoch = message.epoch
            if kind is VerifyRequest:
                self._on_request(message)  # type: ignore[arg-type]
        elif kind is DraftTokens:
            self._on_draft(message, time)  # type: ignore[arg-type]
        elif kind is Verdict:
            self._on_verdict(message, time)  # type: ignore[arg-type]

    def worked(self, session: int, start: float, end: float) -> None:
        if self.n_rounds:
            self.coordinator_s += end - start

    # --- messages ------------------------------------------------------------------------------------------------

    def _on_draft(self, draft: DraftTokens, time: float) -> None:
        self.time.draft(time, draft.decode_us / 1e6)
        self.n_drafted += draft.n_dropped
        if draft.epoch < self._epoch:  # too late to be of use
            self.n_drafted += len(draft.tokens)
            return
        self.n_drafted += self._told.add(draft.start, draft.tokens)
        n_branched = sum(self._told.add_branch(branch.start, branch.tokens) for branch in draft.branches)
        self.n_branched += n_branched
        self.n_drafted += n_branched
        self._waited |= self._request is None

    def _on_request(self, request: VerifyRequest) -> None:
        if self._waited and request.draft:
            self.n_round_trips += 1
        self._request, self._waited = request, False
        self._by_worker = bool(request.draft) and self._told.holds(request.committed_len, request.draft)

    def _on_verdict(self, verdict: Verdict, time: float) -> None:
        if verdict.round <= self._last:
            return  # doubled on the way
        self._last = verdict.round
        self.n_rounds += 1
        self.time.target(time, verdict.decode_us / 1e6)
        self.n_submitted += verdict.n_tested
        self.n_accepted += verdict.accepted
        if self._by_worker:
            self.n_of_worker += verdict.n_tested
        self._told.commit(verdict.committed_len, verdict.tokens)
        self._request = None

    # --- what came of it -----------------------------------------------------------------------------------------

    def report(self, now: float) -> dict[str, Any]:
        """The figures up to `now`: token counts, milliseconds, and averages over the `rounds` after the first, which took
        `ms`."""
        times, n_rounds = self.time, max(self.n_rounds - 1, 0)
        seconds = 0.0 if times.start is None else now - times.start
        return {
            "drafted": self.n_drafted,
            "branched": self.n_branched,
            "submitted": self.n_submitted,
            "accepted": self.n_accepted,
            "stale": max(self.n_drafted - self.n_of_worker, 0),
            "draft_hidden_ms": 1e3 * times.hidden_s,
            "draft_exposed_ms": 1e3 * max(times.draft_s - times.hidden_s, 0.0),
            "target_idle_share": 1.0 - min(times.busy_s / seconds, 1.0) if seconds > 0 else 0.0,
            "round_trips": self.n_round_trips,
            "bytes_per_round": self.n_bytes / n_rounds if n_rounds else 0.0,
            "coordinator_us_per_round": 1e6 * self.coordinator_s / n_rounds if n_rounds else 0.0,
            "rounds": n_rounds,
            "ms": 1e3 * seconds,
        }


_SUMS = (
    *("drafted", "branched", "submitted", "accepted", "stale", "round_trips"),
    *("draft_hidden_ms", "draft_exposed_ms", "rounds", "ms"),
)
#: Average -> what it is an average over.
_AVERAGES = {"target_idle_share": "ms", "bytes_per_round": "rounds", "coordinator_us_per_round": "rounds"}


def combined(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reports of sessions that followed one another as one."""
    total = {name: sum(report[name] for report in reports) for name in _SUMS}
    for name, over in _AVERAGES.items():
        weighted = sum(report[name] * report[over] for report in reports)
        total[name] = weighted / total[over] if total[over] else 0.0
    return total
