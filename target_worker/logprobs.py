"""Log-probabilities of committed tokens, as they travel in a Verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from outrider.decoding.sampling import Sampler
from outrider.decoding.verify import Verified
from outrider.types import MIN_LOGPROB, TokenLogprobs

if TYPE_CHECKING:
    from outrider.decoding.verify import Constraint, Rows

Piece = Callable[[int], bytes]


def logprobs(
    sampler: Sampler,
    outcome: Verified,
    rows: Rows,
    history: Sequence[int],
    n_generated: int,
    piece: Piece,
    constraint: Constraint | None = None,
) -> list[TokenLogprobs]:
    """One entry per token of `outcome`, or none where the request asked for none. `history`: the text before them;
    `constraint`: the grammar's state after it."""
    if not sampler.params.n_probs:
        return []
    if not sampler.params.post_sampling_probs:
        return [_entry(own.logprob, own.top, piece) for own in outcome.logprobs]
    entries: list[TokenLogprobs] = []
    text = list(history)
    for i, token in enumerate(outcome.tokens):
        drawn_from = sampler.drawn_from(rows[i], text, n_generated + i, constraint.mask() if constraint else None)
        own = next((p for other, p in drawn_from if other == token), 1.0)
        best = [(other, math.log(p)) for other, p in drawn_from[: sampler.params.n_probs]]
        entries.append(_entry(math.log(own), best, piece))
        text.append(token)
        if constraint and i + 1 < len(outcome.tokens):
            constraint = constraint.after(token)
    return entries


def _entry(logprob: float, best: Iterable[tuple[int, float]], piece: Piece) -> TokenLogprobs:
    best = list(best)
    return TokenLogprobs(
        logprob=_bounded(logprob),
        tokens=[token for token, _ in best],
        logprobs=[_bounded(value) for _, value in best],
        pieces=[piece(token) for token, _ in best],
    )


def _bounded(logprob: float) -> float:
    """Rounding can pass 0, and a logit can be -inf."""
    return min(max(logprob, MIN_LOGPROB), 0.0)
