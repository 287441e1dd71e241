"""Verification of a draft: the target samples row by row and keeps going while it agrees with the draft.

A draft token is only ever compared, never injected: each token returned is the target's own sample, and is the token
that plain decoding would have sampled at that position. (Equality with the target's sample is llama.cpp's rule. It
needs no probabilities of the draft and is exact for every sampler.)
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from outrider.decoding.sampling import TokenLogprobs, token_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from outrider.decoding.sampling import Mask, Sampler

    #: An array [rows, n_vocab], or rows that come from several decodes.
    Rows = NDArray[np.float32] | Sequence[NDArray[np.float32]]


class Constraint(Protocol):
    """What a grammar allows next. A value: `after` makes a new one, so a rejected token leaves no trace."""

    @property
    def ended(self) -> bool:
        """Is the text complete, with no possible continuation?"""
        ...

    def mask(self) -> Mask:
        """bool [n_vocab]: the tokens allowed next. Asked only while not `ended`."""
        ...

    def after(self, token: int) -> Constraint:
        """The constraint once `token`, allowed by `mask`, is added to the text."""
        ...


@dataclass(frozen=True, slots=True)
class Verified:
    """What one verification commits.

    tokens: the target's samples in order, at least one.
    accepted: how many of them equal the draft at their place. Normally len(tokens) - 1: the last token is the
        replacement after a mismatch, or the bonus after full acceptance. len(tokens) where a token of the draft was
        accepted and ended the text: nothing is sampled after it. (llama.cpp does not count an end token that matches in
        the middle of the draft, and counts it at the end but then samples one more token.)
    end_of_text: the last token is an end-of-generation token, or completes the grammar.
    logprobs: one entry per token where `n_probs` > 0, else empty.
    constraint: the grammar's state after `tokens`; an end-of-generation token is not part of the grammar's text.
    """

    tokens: tuple[int, ...]
    accepted: int
    end_of_text: bool
    logprobs: tuple[TokenLogprobs, ...] = ()
    constraint: Constraint | None = None


def verify(
    sampler: Sampler,
    rows: Rows,
    draft: Sequence[int],
    history: Sequence[int],
    n_generated: int,
    *,
    max_tokens: int | None = None,
    constraint: Constraint | None = None,
) -> Verified:
    """Sample at the positions after `history` while the samples equal the draft.

    rows: float32 [≥ len(draft) + 1, n_vocab]; row i predicts position len(history) + i, given history + draft[:i].
    history: the committed text, pending token included. n_generated: how many of its tokens were generated.
    max_tokens: at most that many tokens (≥ 1) are sampled; the draft counts only up to one less, so that the last one
        is a bonus.
    constraint: the grammar's state after `history`, not ended.
    Raises EngineError as `Sampler.sample` does.
    """
    draft = draft if max_tokens is None else draft[: max_tokens - 1]
    assert max_tokens is None or max_tokens >= 1
    assert len(rows) > len(draft)
    assert constraint is None or not constraint.ended
    window = sampler.window(history)
    tokens: list[int] = []
    end = False
    for i, row in enumerate(rows[: len(draft) + 1]):
        mask = constraint.mask() if constraint else None
        token = sampler.pick(row, window.counts, len(history) + i, n_generated + i, mask)
        tokens.append(token)
        window.push(token)
        end = sampler.is_eog(token)
        if constraint and not end:
            constraint = constraint.after(token)
            end = constraint.ended
        if end or i == len(draft) or token != draft[i]:
            break
    n = len(tokens)
    accepted = n if tokens == list(draft[:n]) else n - 1
    return Verified(tuple(tokens), accepted, end, logprobs_of(sampler, rows, tokens), constraint)


def logprobs_of(sampler: Sampler, rows: Rows, tokens: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    n_probs = sampler.params.n_probs
    if not n_probs:
        return ()
    return tuple(token_logprobs(row, token, n_probs) for row, token in zip(rows, tokens, strict=False))


def row_hash(row: NDArray[np.float32]) -> int:
    """64-bit hash of the bytes of one row of logits, to compare runs bit by bit."""
    return int.from_bytes(blake2b(row.tobytes(), digest_size=8).digest(), "little")
