"""Rotary positions (Su et al. 2021): pairs of a head's values are turned by angles that grow with the position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeParams:
    """
    n_rot: leading values of a head that are turned; even.
    base, scale: the angle of pair i at position p is p · scale · base^(-2i/n_rot), over the pair's factor if it has one.
    neox: pairs are (i, i + n_rot/2), as Qwen's files have them; else (2i, 2i + 1), as llama's.
    """

    n_rot: int
    base: float
    scale: float
    neox: bool


class Rope:
    """Angles of the positions 0..n_ctx-1, computed once in float64.

    factors: float32 [n_rot/2], the tensor rope_freqs.weight, or None.
    """

    @np.errstate(all="ignore")  # wrong factors show in the logits
    def __init__(self, params: RopeParams, n_ctx: int, factors: Floats | None = None) -> None:
        half = params.n_rot // 2
        frequencies = params.base ** (-np.arange(half, dtype=np.float64) / half) * params.scale
        if factors is not None:
            frequencies /= factors
        angles = np.arange(n_ctx, dtype=np.float64)[:, None] * frequencies
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)
        if params.neox:
            self._first, self._second = slice(0, half), slice(half, 2 * half)
        else:
            self._first, self._second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)

    @property
    def nbytes(self) -> int:
        return self._cos.nbytes + self._sin.nbytes

    def __call__(self, x: Floats, positions: NDArray[np.int64]) -> Floats:
        """x [n, heads, head], turned row by row by the angles of positions [n]."""
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        a, b = x[..., self._first], x[..., self._second]
        turned = x.copy()
        turned[..., self._first] = a * cos - b * sin
        turned[..., self._second] = a * sin + b * cos
        return turned
