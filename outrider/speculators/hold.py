"""A step that is better not begun: a verdict will probably find it wrong, and would have to wait for its end.

target   ─────── verify ───────┤ a mismatch
draft    ── step ── step ── ste│p   the draft begins anew only behind this step
                           ↑ held, it begins anew at once
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: How much more a step in vain costs than one that was held in vain: the target often goes on without the draft then.
REGRET = 1.5
#: A verdict may come so much later than expected, as a part of a step, before the draft goes on all the same. (Word of the
#: next one ends the wait too.)
OVERDUE = 0.5


@dataclass(frozen=True, slots=True)
class Due:
    """The verdict that is expected at `at` on `n_tested` tokens behind the first `committed_len`. Times are of one clock and
    unit, the draft worker's or, to foresee what it does, the coordinator's."""

    at: float
    committed_len: int
    n_tested: int

    def hold(self, now: float, step: float, start: int, probs: Sequence[float]) -> float:
        """How long to wait for the verdict instead of a step; 0.0: not at all.

        start, probs: of the chain, whose tokens at positions `start …` the draft thinks so probable. A step begun now ends
        `step - left` too late if the verdict contradicts the chain; one begun behind it ends `left` later if not.
        """
        left = self.at - now
        n_before = self.committed_len - start
        if n_before < 0 or not -OVERDUE * step < left < step:
            return 0.0
        left = max(left, 0.0)
        stays = math.prod(probs[n_before : n_before + self.n_tested + 1])  # with the target's own token
        worth_it = REGRET * (1 - stays) * (step - left) > stays * left
        return self.at + OVERDUE * step - now if worth_it else 0.0
