"""Log-probabilities of committed tokens, as they travel in a Verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from outrider.decoding.sampling import Sampler
from outrider.decoding.verify import Verified
from outrider.types import MIN_LOGPROB, TokenLogprobs

if TYPE_CHECKING:
    from outrider.decoding.verify import Rows

Piece = Callable[[int], bytes]


def logprobs(
    sampler: Sampler, outcome: Verified, rows: Rows, history: Sequence[int], n_generated: int, piece: Piece
) -> list[TokenLogprobs]:
    """One entry per token of `outcome`, or none where the request asked for none. `history`: the text before them."""
    if not sampler.params.n_probs:
        return []
    if sampler.params.post_sampling_probs:
        return [
            _after_sampling(sampler, outcome.tokens, i, rows, history, n_generated, piece)
            for i in range(len(outcome.tokens))
        ]
    return [_entry(own.logprob, own.top, piece) for own in outcome.logprobs]


def _after_sampling(
    sampler: Sampler,
    tokens: Sequence[int],
    i: int,
    rows: Rows,
    history: Sequence[int],
    n_generated: int,
    piece: Piece,
) -> TokenLogprobs:
    drawn_from = sampler.drawn_from(rows[i], [*history, *tokens[:i]], n_generated + i)
    own = next((p for token, p in drawn_from if token == tokens[i]), 1.0)
    best = [(token, math.log(p)) for token, p in drawn_from[: sampler.params.n_probs]]
    return _entry(math.log(own), best, piece)


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
