"""Branches: how the text may go on where the target leaves the chain, drafted beside it in sequences no session needs.

    chain       the ── quick ── brown ── fox ── …
    branches     │        └──── red ──── hen ── …    another token at position 2, and what would follow it
                 └──── old ─── brown ── …            another token at position 1

Whether a step goes into depth or into width is one question: which rows most probably become text (`n_worthwhile`)?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outrider.engine.base import BRANCH_ROWS
from outrider.engine.cached import CachedSequence
from outrider.speculators.model import Drafting
from outrider.wire import messages

#: Tokens beside the chain's that are looked at for one position.
FANOUT = 2
#: Tokens behind the one that differs, at most: engines keep no more rows for a branch.
MAX_DEPTH = BRANCH_ROWS - 1
#: A branch that the text takes less often than this is not opened.
MIN_REACH = 0.01


@dataclass(slots=True, eq=False)
class Branch:
    """`stem`: tokens from position `base` on: the chain's, and the one that is not. `drafting` goes on behind them.

    `prob`: of that token, among the ten best; `reach`: that the target samples the whole stem, as the draft sees it.
    """

    cache: CachedSequence
    base: int
    stem: list[int]
    prob: float
    reach: float
    drafting: Drafting
    n_told: int = 0  # drafted tokens that were reported

    @property
    def position(self) -> int:
        """Where it leaves the chain."""
        return self.base + len(self.stem) - 1

    @property
    def weight(self) -> float:
        """Probability that its next token is wanted."""
        return self.reach * math.prod(self.drafting.probs)

    @property
    def has_news(self) -> bool:
        return len(self.drafting.tokens) > self.n_told

    def n_taken(self, committed: Sequence[int]) -> int | None:
        """How many of the drafted tokens the text has come to hold; None if it does not go this way."""
        if list(committed[self.base : self.base + len(self.stem)]) != self.stem:
            return None
        return self.drafting.n_taken(committed)

    def told(self) -> messages.Branch:
        """All of it as a message."""
        self.n_told = len(self.drafting.tokens)
        tokens, probs = [self.stem[-1], *self.drafting.tokens], [self.prob, *self.drafting.probs]
        return messages.Branch(self.position, tokens, probs)


@dataclass(frozen=True, slots=True)
class Opening:
    """A branch that could be opened: at the chain's draw `index` it takes `token`."""

    index: int
    token: int
    prob: float
    reach: float


def openings(chain: Drafting) -> Iterator[Opening]:
    """The most probable other tokens at every draw of the chain."""
    reach = 1.0
    for index, (ids, probs) in enumerate(chain.draws):
        taken = chain.tokens[index] if index < len(chain.tokens) else None
        others = [(int(i), float(p)) for i, p in zip(ids[: FANOUT + 1], probs, strict=False) if i != taken]
        for token, prob in others[:FANOUT]:
            if reach * prob >= MIN_REACH:
                yield Opening(index, token, prob, reach * prob)
        if taken is not None:
            reach *= chain.probs[index]


def n_worthwhile(weights: Sequence[float], sure: Sequence[float], cost: Callable[[int], float]) -> int:
    """How many of the rows, given by falling weight, to add to those of weights `sure`: the most tokens for a step's time.

    cost: seconds of a step by its rows. At least one row is evaluated.
    """
    n_sure, total = len(sure), sum(sure)
    best, best_rate = 0, total / cost(n_sure) if n_sure else -1.0
    for n, weight in enumerate(weights, start=1):
        total += weight
        rate = total / cost(n_sure + n)
        if rate > best_rate:
            best, best_rate = n, rate
    return best
