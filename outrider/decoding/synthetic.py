"""Synthetic acceptance: draft tokens are accepted at chosen rates instead of by the target's samples.

A benchmark mode and the one exception to "only the target's own samples are committed": the text is **invalid**, and
whoever switches it on must say so loudly. Settings and draws are those of llama.cpp's `--spec-synth-rates` and
`--spec-synth-len`.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import accumulate, repeat
from operator import add, mul
from typing import TYPE_CHECKING, Literal

import numpy as np

from outrider.decoding.verify import Verified, logprobs_of
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.decoding.sampling import Sampler
    from outrider.decoding.verify import Rows

_BISECTIONS = 32

Check = Literal["both_given", "no_draft_tokens", "count", "range", "not_monotone", "length_range"]


class SyntheticAcceptanceError(ConfigError):
    """The settings are wrong; `check` is the first that failed."""

    def __init__(self, check: Check, message: str) -> None:
        super().__init__(message)
        self.check = check


def resolve_rates(n_max: int, length: float | None, rates: Sequence[float] | None) -> list[float]:
    """Probability that a draft is accepted up to and including position i, for each i < `n_max`; [] where neither
    `length` nor `rates` is given.

    n_max: the longest draft of the speculators in use. length: wanted mean acceptance length, 1 … n_max + 1; the rates
    then are p, p², … with the sum length - 1. rates: finite, in [0, 1], never rising, `n_max` of them.
    Raises SyntheticAcceptanceError; the order of the checks is llama.cpp's.
    """
    if length is None and not rates:
        return []
    if length is not None and rates:
        raise SyntheticAcceptanceError("both_given", "give either spec-synth-len or spec-synth-rates, not both")
    if n_max <= 0:
        raise SyntheticAcceptanceError(
            "no_draft_tokens", f"synthetic acceptance needs drafts of at least one token (longest draft: {n_max})"
        )
    if rates:
        return _checked_rates(n_max, rates)
    assert length is not None
    return _geometric_rates(n_max, length)


def _checked_rates(n_max: int, rates: Sequence[float]) -> list[float]:
    if len(rates) != n_max:
        raise SyntheticAcceptanceError(
            "count", f"spec-synth-rates: {len(rates)} values given, {n_max} needed (one for each token of a draft)"
        )
    for i, rate in enumerate(rates):
        if not (math.isfinite(rate) and 0 <= rate <= 1):
            raise SyntheticAcceptanceError("range", f"spec-synth-rates: value {i + 1} is {rate}, not within 0 … 1")
        if i and rate > rates[i - 1]:
            raise SyntheticAcceptanceError(
                "not_monotone", f"spec-synth-rates: value {i + 1} ({rate}) is above the one before it ({rates[i - 1]})"
            )
    return list(rates)


def _geometric_rates(n_max: int, length: float) -> list[float]:
    if not (math.isfinite(length) and 1 <= length <= n_max + 1):
        raise SyntheticAcceptanceError(
            "length_range", f"spec-synth-len: {length} is not within 1 … {n_max + 1} (longest draft + 1)"
        )
    p = _solve(n_max, length - 1)
    return list(accumulate(repeat(p, n_max), mul))


def _solve(n_max: int, total: float) -> float:
    """p with p + p² + … + p^n_max = total: the last midpoint of a bisection, which llama.cpp takes too."""
    if total == 0:
        return 0.0
    if total == n_max:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _power_sum(middle, n_max) < total else (low, middle)
    return 0.5 * (low + high)


def _power_sum(p: float, n: int) -> float:
    total: float = reduce(add, accumulate(repeat(p, n), mul))  # in this order, uncompensated: llama.cpp's bits
    return total


def conditional_rates(rates: Sequence[float]) -> list[float]:
    """Probability of accepting position i once i - 1 was accepted: rate / rate before it, 0 after a zero."""
    before = [1.0, *rates]
    return [rate / prev if prev > 0 else 0.0 for rate, prev in zip(rates, before, strict=False)]


def uniform_draws(seed: int) -> Iterator[float]:
    """The numbers in [0, 1) that a C++ `std::mt19937(seed)` gives to `std::uniform_real_distribution<double>`.

    seed: taken modulo 2^32. Each number is made of two 32-bit outputs, the low word first."""
    generator = np.random.RandomState(seed % 2**32)
    below_one = math.nextafter(1.0, 0.0)
    while True:
        yield min(int.from_bytes(generator.bytes(8), "little") / 2.0**64, below_one)


def accept_len(ends: Sequence[bool], conditional: Sequence[float], draws: Iterator[float]) -> int:
    """How many draft tokens are accepted. ends[i]: token i of the draft is an end-of-generation token, which is refused
    (its draw is used). One draw per token up to the first refusal. len(ends) ≤ len(conditional)."""
    assert len(ends) <= len(conditional)
    for i, end in enumerate(ends):
        if next(draws) >= conditional[i] or end:
            return i
    return len(ends)


def verify_synthetic(
    sampler: Sampler,
    rows: Rows,
    draft: Sequence[int],
    history: Sequence[int],
    n_generated: int,
    conditional: Sequence[float],
    draws: Iterator[float],
    *,
    max_tokens: int | None = None,
) -> Verified:
    """`verify` with a random number of accepted tokens: the draft up to it, then the target's own sample.

    Arguments as there; `draws` is the session's stream and moves on.
    """
    draft = list(draft if max_tokens is None else draft[: max_tokens - 1])
    n_accepted = accept_len([sampler.is_eog(token) for token in draft], conditional, draws)
    accepted = draft[:n_accepted]
    own = sampler.sample(rows[n_accepted], [*history, *accepted], n_generated + n_accepted)
    tokens = (*accepted, own)
    return Verified(tokens, n_accepted, sampler.is_eog(own), logprobs_of(sampler, rows, tokens))
