"""Gumbel noise keyed by (seed, choice, position, token id): one random stream per sampled position, without state.

The target samples argmax(logit / T + noise), which is a draw from softmax(logit / T) (Gumbel 1954; Maddison et al.
2014, "A* Sampling"). As the noise is a pure function of its key, neither batching, timing nor the length of a draft can
change a sampled text, and a draft that adds the same noise to its own logits often picks the same token.

The hash is SplitMix64 (Steele, Lea, Flood 2014): `mix` is its finaliser, and the noise of token id `t` comes from
output number `t + 1` of the generator whose state is the key of the position. The key itself chains the finaliser over
seed, choice and position. These constants are part of what makes a text reproducible: with others, other texts are
sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def mix(x: int) -> int:
    """SplitMix64's finaliser, a bijection of 64-bit integers. `mix_array` is the same for arrays."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def mix_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix` of each element."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
    return x ^ (x >> np.uint64(31))


def position_key(seed: int, choice: int, position: int) -> int:
    """The 64-bit generator state of one position; seed 0 … 2^64-1, choice and position ≥ 0."""
    key = 0
    for part in (seed, choice, position):
        key = mix((key + part + _GAMMA) & _MASK)
    return key


def uniforms(seed: int, choice: int, position: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """One number per token id, uniform on the odd multiples of 2^-53 in (0, 1): 0 and 1 never occur."""
    counters = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    bits = mix_array(counters + np.uint64(position_key(seed, choice, position)))
    odd: NDArray[np.float64] = ((bits >> np.uint64(11)) | np.uint64(1)).astype(np.float64)
    return odd * 2.0**-53


def gumbel_noise(seed: int, choice: int, position: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Standard Gumbel noise, float64 [len(ids)], between -3.61 and 36.75.

    seed: 0 … 2^64-1; choice: which of several answers to one prompt, ≥ 0; position: absolute position of the token that
    is being sampled, ≥ 0; ids: token ids ≥ 0, any integer type, any order.
    """
    noise: NDArray[np.float64] = -np.log(-np.log(uniforms(seed, choice, position, ids)))
    return noise
