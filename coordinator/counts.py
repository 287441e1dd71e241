"""What happened in a session, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.decoding.stats import SpecStats


@dataclass(slots=True)
class Counts:
    """What happened so far. `draft_n` counts drafted tokens that the target really tested, committed or not."""

    rounds: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    drafted_per_pos: list[int] = field(default_factory=list)
    accepted_per_pos: list[int] = field(default_factory=list)
    n_verified: int = 0  # draft tokens that the target sampled too, those behind a stop included
    n_dropped: int = 0  # drafted and withheld by the draft worker (n_min)
    n_stale: int = 0  # replies that did not belong to the request at hand
    n_resent: int = 0
    n_cached: int = 0  # prompt rows that the target's cache held already
    draft_decode_us: int = 0
    target_decode_us: int = 0

    def add_round(self, n_drafted: int, n_accepted: int) -> None:
        self.rounds += 1
        self.draft_n += n_drafted
        self.draft_n_accepted += n_accepted
        for per_pos, n in ((self.drafted_per_pos, n_drafted), (self.accepted_per_pos, n_accepted)):
            per_pos.extend([0] * (n_drafted - len(per_pos)))
            for position in range(n):
                per_pos[position] += 1

    def tested(self) -> SpecStats:
        """The target's part of a speculator's statistics, from the rounds that were added here."""
        return SpecStats(
            n_tested_tokens=self.draft_n,
            n_tested_tokens_per_pos=tuple(self.drafted_per_pos),
            n_committed_tokens=self.draft_n_accepted,
        )
