"""What rounds cost, learned while they run: decode times by rows, draft steps, round trips, and how sure drafts are.

All times are seconds. Averages are exponential, so they follow a machine that changes its mind. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coordinator.busy import Busy
from outrider.averages import Average, Lowest
from outrider.decoding.row_costs import MAX_PADDING, RowCosts
from outrider.types import RowTime, WorkerRole

#: How much old outcomes count when a new one comes.
FORGET = 0.99
#: Sums grow up to here before they are scaled down.
LARGEST_UNIT = 1e9
N_BINS = 10
#: Strength of the belief that a probability means what it says, in outcomes.
PRIOR = 4.0
#: The same for outcomes of one text.
FADE = 0.98
#: Acceptance of a drafted token before anything was seen.
PRIOR_ACCEPTANCE = 0.8


class Calibration:
    """How often a drafted token is accepted, by the probability that the draft model gave it."""

    def __init__(self) -> None:
        self._accepted, self._seen = [0.0] * N_BINS, [0.0] * N_BINS
        self._unit = 1.0  # what an outcome of now weighs: instead of the old ones fading, the new ones grow

    def add(self, prob: float, accepted: bool) -> None:
        i = _bin(prob)
        self._unit /= FORGET
        self._seen[i] += self._unit
        self._accepted[i] += self._unit * accepted
        if self._unit > LARGEST_UNIT:
            self._accepted, self._seen = ([n / self._unit for n in bins] for bins in (self._accepted, self._seen))
            self._unit = 1.0

    def accept_prob(self, prob: float) -> float:
        """Probability in [0, 1] that a token of this probability is accepted, given that all before it were."""
        i, prior = _bin(prob), PRIOR * self._unit
        return (self._accepted[i] + prior * prob) / (self._seen[i] + prior)

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


class Speed:
    """Committed tokens per second over the last rounds; older ones fade."""

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0

    def add(self, n_tokens: int, seconds: float) -> None:
        """A round brought so many tokens in so many seconds."""
        self.tokens = FADE * self.tokens + n_tokens
        self.seconds = FADE * self.seconds + seconds

    @property
    def value(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None


class Costs:
    """What is known of one pair of workers. Each works alone, or beside the other (busy), which may slow both down.

    expected_slowdown: how much, until it was measured.
    """

    def __init__(self, expected_slowdown: float = 1.0) -> None:
        self._verify = {False: RowCosts(), True: RowCosts()}  # by busy
        self._n_sessions = Average()  # that share a decode
        self._step = {False: Average(), True: Average()}
        self._quickest_step: float | None = None
        self._expected_slowdown = expected_slowdown
        self.round_trip = Average()  # of a draft request, beside the drafting
        self.target_trip = Lowest()  # of a verification, beside the decode
        self.n_live = 0  # sessions that run
        self.drafting = Busy()  # sessions for which the draft worker is at work
        self.reading = Busy()  # sessions whose prompt the target reads
        self.speed = Speed()
        self.calibration = Calibration()

    def verified(self, n_rows: int, decode_s: float, busy: bool = False, n_sessions: int = 1) -> None:
        """A decode of `n_rows`, of so many sessions together."""
        self._verify[busy].add(n_rows, decode_s)
        self._n_sessions.add(n_sessions)

    def drafted(self, step_s: float, busy: bool = False) -> None:
        """A token was drafted."""
        self._step[busy].add(step_s)
        self._quickest_step = min(step_s, self._quickest_step or step_s)

    @property
    def load(self) -> int:
        """How many sessions run, as a power of two."""
        return int(2 ** round(math.log2(max(self.n_live, 1))))

    @property
    def _n_sharing(self) -> float:
        """Sessions that share a decode: as many as did, and where more run than did, they will soon."""
        return max(self._n_sessions.value or 1.0, self.n_live / 2)

    def verify_s(self, n_rows: int, busy: bool = False) -> float | None:
        """Of a decode on the target in which a session has `n_rows`, and others that share it as many each; None if nothing
        was measured. From what was measured this way, or the other way where that comes nearer."""
        n_rows = round(n_rows * self._n_sharing)
        own, other = self._verify[busy], self._verify[not busy]
        gap = own.gap(n_rows)
        far = gap > 0 and other.gap(n_rows) < gap
        return self._other_way(other.seconds(n_rows), busy) if far else own.seconds(n_rows)

    def step_s(self, busy: bool = False, *, hopeful: bool = False) -> float | None:
        """Of a drafted token, likewise; hopeful: as quick as it ever was, 0.0 before the first."""
        if hopeful:
            quickest = self._quickest_step or 0.0
            return self._other_way(quickest, busy) if busy else quickest
        value = self._step[busy].value
        return value if value is not None else self._other_way(self._step[not busy].value, busy)

    def _other_way(self, seconds: float | None, busy: bool) -> float | None:
        """What took so long alone, beside the other worker; or the other way round."""
        slowdown = self.slowdown or self._expected_slowdown
        return None if seconds is None else seconds * (slowdown if busy else 1 / slowdown)

    @property
    def slowdown(self) -> float | None:
        """How much longer verifications take beside a draft at work; None until one was measured, and alone some with fewer
        rows and some with more."""
        alone, beside = self._verify[False], self._verify[True]
        pairs = [(beside.seconds(n), alone.seconds(n)) for n in beside.rows if not alone.gap(n)]
        ratios = [busy_s / alone_s for busy_s, alone_s in pairs if busy_s and alone_s]
        return sum(ratios) / len(ratios) if ratios else None

    def worth(self) -> float | None:
        """Tokens that a second is worth: what we make of it, and never less than plain decoding would."""
        alone, speed = self.verify_s(1), self.speed.value
        return None if alone is None else max(speed or 0.0, 1.0 / alone)

    def expect(self, role: WorkerRole, times: Sequence[RowTime]) -> None:
        """What a worker measured when it started: believed until more is known."""
        for time in times:
            if role == "target" and time.n_rows not in self._verify[False].rows:
                # The target makes a decode larger where that makes it shorter.
                self.verified(time.n_rows, min(t.us for t in times if 0 <= t.n_rows - time.n_rows <= MAX_PADDING) / 1e6)
            if role == "draft" and time.n_rows == 1 and self.step_s() is None:
                self.drafted(time.us / 1e6)

    def draft_unheard(self) -> None:
        """Nothing was drafted for long: what was known of it may no longer be so."""
        for average in (*self._step.values(), self.round_trip):
            average.age()
