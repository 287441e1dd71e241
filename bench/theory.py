"""Closed forms for the speed of a schedule, and texts on which a draft is as good as it is said to be.

Times are in decodes of one row by the target (T). n drafted tokens per round, each right with probability alpha if those
before it were; a target decode of n rows takes v(n) = 1 + beta (n-1), a draft step c, a message to the draft worker and back
`trip`; where the draft's best is wrong, one of its next two is right with probability tau.

    E(n)      = (1 - alpha^(n+1)) / (1 - alpha)               tokens per round
    plain     = 1
    lockstep  = E / (n c + v(n+1) + trip)                     nothing is hidden
    overlap   = E / (v(n+1) + (1-h) (n c + trip))             h = alpha^(n+1): the draft is ahead
    branches  = E / (v(n+1) + (1-h) (n c + trip))             h = tau + (1-tau) alpha^(n+1): or has a branch for it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.engine.base import Span
from outrider.engine.simulated import SimulatedEngine

LONGEST = 16
N_SEEDS = 32


@dataclass(frozen=True, slots=True)
class Costs:
    beta: float
    c: float
    alpha: float
    trip: float = 0.0
    tau: float = 0.7

    def verify(self, n_rows: int) -> float:
        return 1 + self.beta * (n_rows - 1)


def expected_tokens(alpha: float, n: int) -> float:
    """Tokens that a round commits."""
    return sum(alpha**i for i in range(n + 1))


def speed(costs: Costs, schedule: str, n: int) -> float:
    """Tokens per T with drafts of n."""
    verify, exposed = costs.verify(n + 1), n * costs.c + costs.trip
    ahead = costs.alpha ** (n + 1)
    match schedule:
        case "plain":
            return 1.0
        case "lockstep":
            return expected_tokens(costs.alpha, n) / (verify + exposed)
        case "overlap":
            # A draft that is slower than the verification is what the round waits for.
            return expected_tokens(costs.alpha, n) / (max(verify, (n + 1) * costs.c) + (1 - ahead) * exposed)
        case "branches":
            hit = costs.tau + (1 - costs.tau) * ahead
            return expected_tokens(costs.alpha, n) / (verify + (1 - hit) * exposed)
    raise ValueError(schedule)


def best_n(costs: Costs, schedule: str) -> int:
    """The draft length of the best speed; for branches among those whose drafting fits into the verification."""
    lengths = range(1, LONGEST + 1)
    if schedule == "branches":
        lengths = range(1, max((n for n in lengths if (n + 1) * costs.c <= costs.verify(n + 1)), default=1) + 1)
    return max(lengths, key=lambda n: speed(costs, schedule, n))


def branches_hide(costs: Costs) -> bool:
    """Can branches of the best length be drafted and on their way while the target verifies?"""
    n = best_n(costs, "branches")
    return (n + 1) * costs.c + costs.trip / 2 <= costs.verify(n + 1)


# --- texts -------------------------------------------------------------------------------------------------------


def typical_seed(alpha: float, tau: float, n_tokens: int, prompt: Sequence[int]) -> int:
    """The seed of the simulated engine, among `N_SEEDS`, whose text has the most ordinary luck.

    A text of 1,500 tokens has as many right drafts as `alpha` says to within 0.01, and at alpha = 0.8 that alone moves a
    speed by several percent: what is compared should be schedules, not luck.
    """
    return min(range(N_SEEDS), key=lambda seed: _luck(ranks(seed, alpha, tau, n_tokens, prompt), alpha, tau))


def _luck(found: Sequence[int], alpha: float, tau: float) -> float:
    """How far rounds of some lengths, and the next candidates, are from what is to be expected; relative."""
    misses = [rank for rank in found if rank > 0]
    among_next = sum(rank <= 2 for rank in misses) / max(len(misses), 1)
    lengths = (1, 3, 6, 10)
    off = [len(found) / n_rounds(found, n) / expected_tokens(alpha, n) - 1 for n in lengths]
    return max([abs(among_next - tau), *map(abs, off)])


def n_rounds(found: Sequence[int], n: int) -> int:
    """Rounds that drafts of n take through a text, given the ranks of its tokens among the draft's candidates."""
    position, rounds = 0, 0
    while position < len(found):
        accepted = next((i for i, rank in enumerate(found[position : position + n]) if rank > 0), n)
        position += accepted + 1
        rounds += 1
    return rounds


def ranks(seed: int, alpha: float, tau: float, n_tokens: int, prompt: Sequence[int]) -> list[int]:
    """For each token of the greedy text after `prompt`: how many of the draft's candidates are more probable."""
    text, n_rows = greedy_text(seed, n_tokens, prompt), len(prompt) + n_tokens
    draft = SimulatedEngine(f"simulated:seed={seed},alpha={alpha},tau={tau}", n_ctx=n_rows, n_batch=n_rows)
    rows = draft.decode([Span(0, 0, [*prompt, *text[:-1]], n_tokens)]).logits
    own = rows[np.arange(n_tokens), text]
    return [int(rank) for rank in (rows > own[:, None]).sum(axis=1)]


def greedy_text(seed: int, n_tokens: int, prompt: Sequence[int]) -> list[int]:
    """What a simulated target of this seed writes, alone and without a cost."""
    target = SimulatedEngine(f"simulated:seed={seed}", n_ctx=len(prompt) + n_tokens)
    text, pending = list[int](), list(prompt)
    while len(text) < n_tokens:
        logits = target.decode([Span(0, target.length(0), pending, 1)]).logits
        pending = [int(logits[0].argmax())]
        text += pending
    return text
