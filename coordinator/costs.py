"""What rounds cost, learned while they run: decode times by rows, draft steps, round trips, and how sure drafts are.

All times are seconds. Averages are exponential, so they follow a machine that changes its mind. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Weight of a new measurement.
RATE = 0.2
#: How much old outcomes count when a new one comes.
FORGET = 0.99
N_BINS = 10
#: Strength of the belief that a probability means what it says, in outcomes.
PRIOR = 4.0
#: The same for outcomes of one text.
FADE = 0.96
#: Acceptance of a drafted token before anything was seen.
PRIOR_ACCEPTANCE = 0.7
#: What an additional row costs, in one-row decodes, until it was measured.
DEFAULT_BETA = 0.1


class Average:
    """An exponential average; None before the first value."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + RATE * (value - self.value)


class Calibration:
    """How often a drafted token is accepted, by the probability that the draft model gave it."""

    def __init__(self) -> None:
        self._accepted = np.zeros(N_BINS)
        self._seen = np.zeros(N_BINS)

    def add(self, prob: float, accepted: bool) -> None:
        self._accepted *= FORGET
        self._seen *= FORGET
        self._accepted[_bin(prob)] += accepted
        self._seen[_bin(prob)] += 1

    def accept_prob(self, prob: float) -> float:
        """Probability in [0, 1] that a token of this probability is accepted, given that all before it were."""
        i = _bin(prob)
        return float((self._accepted[i] + PRIOR * prob) / (self._seen[i] + PRIOR))

    def survival(self, probs: Sequence[float]) -> list[float]:
        """Probability for each token that it and all before it are accepted."""
        product, values = 1.0, []
        for prob in probs:
            product *= self.accept_prob(prob)
            values.append(product)
        return values


def _bin(prob: float) -> int:
    return min(int(prob * N_BINS), N_BINS - 1)


class Acceptance:
    """How often a drafted token is accepted if those before it were; what was seen long ago fades."""

    def __init__(self) -> None:
        self._accepted, self._decided = PRIOR * PRIOR_ACCEPTANCE, PRIOR

    def add(self, n_accepted: int, n_drafted: int) -> None:
        """A round of `n_drafted` tokens was decided; behind the first mismatch nothing is."""
        for i in range(min(n_accepted + 1, n_drafted)):
            self._accepted = FADE * self._accepted + (i < n_accepted)
            self._decided = FADE * self._decided + 1

    @property
    def value(self) -> float:
        return self._accepted / self._decided


class Costs:
    """What is known of one pair of workers."""

    def __init__(self) -> None:
        self._verify: dict[int, Average] = {}  # by rows
        self.draft_step = Average()
        self.round_trip = Average()  # of a draft request, beside the drafting
        self.speed = Average()  # committed tokens per second
        self.calibration = Calibration()

    def verified(self, n_rows: int, decode_s: float) -> None:
        self._verify.setdefault(n_rows, Average()).add(decode_s)

    def verify_s(self, n_rows: int) -> float | None:
        """Seconds of a decode of `n_rows`: measured, or between and beyond what was. None if nothing was measured."""
        known = sorted((n, average.value) for n, average in self._verify.items() if average.value is not None)
        if not known:
            return None
        rows = [n for n, _ in known]
        times = [time for _, time in known]
        if n_rows > rows[-1]:
            return times[-1] + (n_rows - rows[-1]) * DEFAULT_BETA * times[0]
        if n_rows < rows[0]:
            return times[0] / (1 + DEFAULT_BETA * (rows[0] - n_rows))
        return float(np.interp(n_rows, rows, times))

    def submit_len(self, probs: Sequence[float]) -> int:
        """How many drafted tokens are worth verifying: token i if its survival exceeds its cost times our speed."""
        base = self.verify_s(1)
        survival = self.calibration.survival(probs)
        if base is None or self.speed.value is None:
            return len(probs)
        best, best_value = 0, 0.0
        value = 0.0
        for i, survives in enumerate(survival, start=1):
            cost = (self.verify_s(i + 1) or base) - (self.verify_s(i) or base)
            value += survives - max(cost, 0.0) * self.speed.value
            if value > best_value:
                best, best_value = i, value
        return best
