"""How many drafted tokens a verification takes: three rules behind one interface. Pure.

    FixedLength         the first n_max, as llama.cpp's draft-simple with p_min 0
    MinProbability      up to the first token that the draft itself finds improbable (llama.cpp's p_min)
    Survival            as long as a token's chance to be accepted is worth the time of its row

`bench/replay.py` runs them over recorded rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Protocol

from coordinator.costs import Costs


class LengthRule(Protocol):
    """probs: the draft model's probability of each token drafted so far, among its ten best, in (0, 1]."""

    @property
    def name(self) -> str:
        """With its settings, for tables."""
        ...

    def length(self, probs: Sequence[float]) -> int:
        """How many of these tokens to verify, in [0, len(probs)]."""
        ...

    def goes_on(self, probs: Sequence[float]) -> bool:
        """Is one more token worth drafting, where the target waits for it?"""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    n_max: int

    @property
    def name(self) -> str:
        return f"n_max {self.n_max}"

    def length(self, probs: Sequence[float]) -> int:
        return min(len(probs), self.n_max)

    def goes_on(self, probs: Sequence[float]) -> bool:
        return len(probs) < self.n_max


@dataclass(frozen=True, slots=True)
class MinProbability:
    p_min: float
    n_max: int

    @property
    def name(self) -> str:
        return f"p_min {self.p_min:g}, n_max {self.n_max}"

    def length(self, probs: Sequence[float]) -> int:
        return sum(1 for _ in takewhile(lambda prob: prob >= self.p_min, islice(probs, self.n_max)))

    def goes_on(self, probs: Sequence[float]) -> bool:
        return len(probs) < self.n_max and self.length(probs) == len(probs)


@dataclass(frozen=True, slots=True)
class Survival:
    """Token i is verified if its survival exceeds its marginal cost times the running speed: P_i > (v(i+1) - v(i)) · S.

    The gain is summed over whole lengths and the best of them is taken, for v(n) is a staircase: behind a dear row there
    may be cheap ones. `step_s`: seconds of a draft step where the target waits for each (lockstep); what was drafted while
    it verified costs nothing (0). Until costs are known all is verified, up to `n_max`.
    """

    costs: Costs
    n_max: int
    step_s: float = 0.0
    beside_draft: bool = True  # the draft worker is at work meanwhile

    @property
    def name(self) -> str:
        return f"survival, n_max {self.n_max}"

    def length(self, probs: Sequence[float]) -> int:
        return self.best(self.costs.calibration.survival(probs[: self.n_max]))

    def goes_on(self, probs: Sequence[float]) -> bool:
        """Tokens to come are taken to survive as those so far did, on average."""
        n = len(probs)
        if n >= self.n_max:
            return False
        if n == 0:
            return True
        survival = list(self.costs.calibration.survival(probs))
        typical = survival[-1] ** (1 / n)
        return self.best(survival + [typical**i for i in range(n + 1, self.n_max + 1)]) > n

    def best(self, survival: Sequence[float]) -> int:
        """The length with the largest gain: tokens that it brings, less what its time would bring at the running speed."""
        if not survival:
            return 0
        busy = self.beside_draft
        base, speed = self.costs.verify_s(1, busy), self.costs.worth()
        if base is None or speed is None:
            return len(survival)
        best, best_gain, tokens = 0, 0.0, 0.0
        for n, survives in enumerate(survival, start=1):
            tokens += survives
            added_s = max((self.costs.verify_s(n + 1, busy) or base) - base, 0.0) + n * self.step_s
            gain = tokens - speed * added_s
            if gain > best_gain:
                best, best_gain = n, gain
        return best
