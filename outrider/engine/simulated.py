"""An engine that costs what it is told, so that schedules can be measured without models. For benchmarks and tests.

Its path says what it simulates. A target whose decode of one row takes 40 ms, and each further row 2 % of that; a draft of
it with a step of 8 ms, however many sequences it decodes together, whose tokens the target accepts four times in five:

    simulated:decode_ms=40,beta=0.02
    simulated:decode_ms=8,alpha=0.8,tau=0.7

The target's token is a hash of the text before it, as in the scripted engine. Where it stands among the draft's candidates
is drawn (by the same hash, so that every schedule meets the same draft) from the very probabilities that the draft gives
them: `alpha` for its best, `tau` of what is left for the next `N_NEXT`. These probabilities are therefore calibrated.

A decode waits, and computes next to nothing meanwhile: several pairs of workers can share one processor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

import msgspec
import numpy as np
from numpy.typing import NDArray

from outrider.engine.base import Output, Span
from outrider.engine.scripted import EOS, ScriptedEngine, mix
from outrider.errors import ConfigError

#: Candidates after the draft's best that may be the target's token, each half as probable as the one before.
N_NEXT = 2
#: Probability of what cannot be: logits are finite.
_FLOOR = 1e-9
#: A wait that ended late shortens the next one, by at most so many seconds.
_MAX_LATE_S = 1e-3
#: Allowed values, where not 0 to 1.
_RANGES = {
    "seed": (0, 2**32),
    "vocab": (EOS + 2 + N_NEXT, 2**20),
    "decode_ms": (0, 1e5),
    "alpha": (0.01, 1),
    "slow_from": (0, 2**31),
    "slow_to": (0, 2**31),
    "slowdown": (1, 1e4),
}


@dataclass(frozen=True, slots=True)
class Simulation:
    """What the path of a simulated model says.

    A decode takes `decode_ms` x (1 + `beta` x (n - 1)) for n rows with logits; rows without any (a prompt's) cost nothing
    more. While the text's end is at a position from `slow_from` to before `slow_to` it takes `slowdown` times as long.
    """

    seed: int = 0
    vocab: int = 512
    decode_ms: float = 0.0
    beta: float = 0.0
    alpha: float = 1.0
    tau: float = 0.7
    slow_from: int = 0
    slow_to: int = 0
    slowdown: float = 1.0

    @classmethod
    def parse(cls, path: str) -> Simulation:
        """Raises ConfigError naming the item that is unknown, no number, or out of range."""
        types = {field.name: int if isinstance(field.default, int) else float for field in fields(cls)}
        values: dict[str, float] = {}
        for item in filter(None, path.removeprefix("simulated").removeprefix(":").split(",")):
            key, _, text = item.partition("=")
            low, high = _RANGES.get(key, (0, 1))
            try:
                values[key] = types[key](text)
                good = low <= values[key] <= high
            except (KeyError, ValueError):
                raise ConfigError(
                    f"simulated model {path!r}: {item!r} is not KEY=NUMBER with one of {sorted(types)}"
                ) from None
            if not good:
                raise ConfigError(f"simulated model {path!r}: {item!r} is not in {low:g} to {high:g}")
        return cls(**values)  # type: ignore[arg-type]

    def decode_s(self, n_outputs: int, end: int) -> float:
        """Seconds of a decode that wants `n_outputs` rows of logits and after which the longest text has `end` rows."""
        slowdown = self.slowdown if self.slow_from <= end < self.slow_to else 1.0
        return slowdown * self.decode_ms / 1e3 * (1 + self.beta * max(n_outputs - 1, 0))

    def rank_probs(self) -> list[float]:
        """Probability of each of the 1 + N_NEXT candidates to be the target's token."""
        shares = [2.0**-k for k in range(N_NEXT)]
        left = self.tau * (1 - self.alpha)
        return [self.alpha, *(left * share / sum(shares) for share in shares)]


class SimulatedEngine(ScriptedEngine):
    """See the module's docstring. Arguments as of every engine; `path` is the simulation."""

    def __init__(self, path: str = "simulated:", **sizes: int) -> None:
        self.simulation = simulation = Simulation.parse(path)
        script = f"scripted:seed={simulation.seed},vocab={simulation.vocab}"
        super().__init__(script, **sizes)
        self.facts = msgspec.structs.replace(self.facts, engine="simulated", architecture="simulated", name=path)
        self._late_s = 0.0
        self._rank_probs = simulation.rank_probs()
        self._candidate_logits = self._logits_by_rank()
        rest = (1 - sum(self._rank_probs)) / (self.n_vocab - len(self._rank_probs))
        self._background = np.full(self.n_vocab, np.log(max(rest, _FLOOR)), np.float32)

    def _logits_by_rank(self) -> NDArray[np.float32]:
        """Falling, so that the best candidate of the poorest draft is its most probable token all the same."""
        falling = [min(prob, self.simulation.alpha * 0.9**k) for k, prob in enumerate(self._rank_probs)]
        return np.log(np.maximum(falling, _FLOOR)).astype(np.float32)

    def decode(self, spans: Sequence[Span]) -> Output:
        start = time.perf_counter()
        output = super().decode(spans)
        n_outputs = sum(span.n_outputs for span in spans)
        end = max((span.start + len(span.tokens) for span in spans), default=0)
        self._take_time(start, self.simulation.decode_s(n_outputs, end))
        return output

    def _take_time(self, start: float, seconds: float) -> None:
        """A system wakes us a little late each time; without amends a short step would cost some percent more."""
        due = start + seconds - self._late_s
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        self._late_s = min(-left, _MAX_LATE_S)

    def _fill(self, row: NDArray[np.float32], state: int) -> None:
        """Logits after the text of this hash: the candidates over an even background."""
        row[:] = self._background
        row[self._candidates(state)] = self._candidate_logits

    def _candidates(self, state: int) -> list[int]:
        """Distinct tokens, none of them the end of the text, with the target's at the rank that was drawn."""
        n = self.n_vocab - 1
        own, others = mix(state) % n, mix(state ^ 0xA17)
        candidates = [(own + 1 + (others + k) % (n - 1)) % n for k in range(len(self._rank_probs))]
        rank = self._rank(mix(state ^ 0x5EED) / 2**64)
        if rank is not None:
            candidates[rank] = own
        return [token + (token >= EOS) for token in candidates]

    def _rank(self, draw: float) -> int | None:
        """The rank for a number in [0, 1); None: the target's token is no candidate."""
        for rank, prob in enumerate(self._rank_probs):
            draw -= prob
            if draw < 0:
                return rank
        return None
