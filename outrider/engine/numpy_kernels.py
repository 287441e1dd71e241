"""Transformer arithmetic in numpy whose result for a row is the same bits in every batch.

How that is done:
- A matrix times a row is always the same call: `BLOCK` weight rows times one vector, by the BLAS matrix-vector kernel.
  How many rows there are, and which thread takes which block, only changes the order of these calls. (BLAS's
  matrix-matrix kernel sums in an order that depends on the shape, and repacks the weights at every call.) All rows of
  a batch pass one block while it is in the cache, so a further row costs arithmetic but no memory traffic.
- Attention looks at one row at a time, over exactly that row's positions.
- Everything else is element by element, or a reduction of one row in an array of its own shape.

All arrays are float32. The operands of matrix products start at multiples of 64 bytes, as some BLAS kernels depend on
that; nothing else here does.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.engine.work_pool import WorkPool

Floats = NDArray[np.float32]

#: Weight rows per product. A multiple of the 4 rows that BLAS kernels handle together; small enough for the nearest
#: caches at any width; the per-call cost is then about 1/16 of the work.
BLOCK = 16

#: Bytes of weights that are worth handing to another thread.
MIN_PIECE_BYTES = 1 << 18
#: Pieces per thread: what a late thread can delay is one of them.
PIECES_PER_THREAD = 6
#: Rows of a batch that pass a block before the next; more of them would not fit the cache themselves.
TILE = 64

_ALIGN = 16  # floats in 64 bytes


def set_blas_threads(n_threads: int) -> bool:
    """How many threads numpy's OpenBLAS uses, in this whole process. False if it cannot be told.

    With more than one it splits our small products at odd rows (other bits), and its threads spin against ours.
    """
    names = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
    for module in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):
        try:
            library = ctypes.CDLL(importlib.import_module(module).__file__)
        except (ImportError, OSError):
            continue
        for name in names:
            if hasattr(library, name):
                getattr(library, name)(n_threads)
                return True
    return False


def aligned_zeros(*shape: int) -> Floats:
    """Zeros at a multiple of 64 bytes. The system maps large ones only as they are used."""
    return _aligned(np.zeros(math.prod(shape) + _ALIGN, np.float32), shape)


def aligned_rows(x: Floats) -> Floats:
    """A copy of x [n, width] whose rows all start at a multiple of 64 bytes."""
    n, width = x.shape
    pitch = -(-width // _ALIGN) * _ALIGN
    rows = _aligned(np.empty(n * pitch + _ALIGN, np.float32), (n, pitch))[:, :width]
    rows[:] = x
    return rows


def _aligned(buffer: Floats, shape: tuple[int, ...]) -> Floats:
    """The part of `buffer`, `_ALIGN` floats longer than needed, that starts at a multiple of 64 bytes."""
    address: int = buffer.__array_interface__["data"][0]  # the attribute `ctypes` takes ten times as long
    start = -address // 4 % _ALIGN
    return buffer[start : start + math.prod(shape)].reshape(shape)


class Arena:
    """Memory for the matrices of a model, in one piece: the system then gives it in large pages, which are faster to
    read. Raises MemoryError if there is not so much."""

    def __init__(self, shapes: Iterable[tuple[int, int]]) -> None:
        """shapes: of the matrices, or of the parts that they are made of."""
        self._free: Floats = np.empty(sum(-(-n // BLOCK) * BLOCK * n_in + _ALIGN for n, n_in in shapes), np.float32)

    def blocks(self, n_out: int, n_in: int) -> Floats:
        """Uninitialised blocks [n, BLOCK, n_in] for `n_out` rows."""
        shape = (-(-n_out // BLOCK), BLOCK, n_in)
        size = math.prod(shape) + _ALIGN
        taken, self._free = self._free[:size], self._free[size:]
        assert len(taken) == size, "more matrices than were announced"
        return _aligned(taken, shape)


class Matrix:
    """Weights [n_out, n_in], kept as blocks of `BLOCK` rows; the last is filled up with zeros."""

    def __init__(self, parts: Sequence[Floats], arena: Arena | None = None) -> None:
        """parts: matrices [n, n_in] whose outputs are wanted one after the other."""
        self.n_out = sum(len(part) for part in parts)
        self.n_in: int = parts[0].shape[1]
        self.blocks = (arena or Arena([(self.n_out, self.n_in)])).blocks(self.n_out, self.n_in)
        rows = self.blocks.reshape(-1, self.n_in)
        self.rows = rows[: self.n_out]
        np.concatenate(parts, out=self.rows)
        rows[self.n_out :] = 0

    @property
    def nbytes(self) -> int:
        return int(self.blocks.nbytes)

    def __call__(self, x: Floats, pool: WorkPool) -> Floats:
        """x [n, n_in] -> [n, n_out]."""
        n, n_blocks = len(x), len(self.blocks)
        x = aligned_rows(x)[None, :, :, None]
        blocks = self.blocks[:, None]
        # Blocks outermost, here and in the result: numpy loops in the order of the result's strides.
        y = np.empty((n_blocks, n, BLOCK, 1), np.float32)
        step = self._blocks_per_piece(pool.n_threads)

        def piece(i: int) -> None:
            some = slice(i * step, (i + 1) * step)
            for row in range(0, n, TILE):
                tile = slice(row, row + TILE)
                np.matmul(blocks[some], x[:, tile], out=y[some, tile])

        pool.run(piece, -(-n_blocks // step))
        rows: Floats = y.swapaxes(0, 1).reshape(n, n_blocks * BLOCK)
        return rows[:, : self.n_out]

    def _blocks_per_piece(self, n_threads: int) -> int:
        if n_threads == 1:
            return len(self.blocks)
        smallest = MIN_PIECE_BYTES // (BLOCK * self.n_in * 4)
        shared_out: int = -(-len(self.blocks) // (n_threads * PIECES_PER_THREAD))
        return max(1, smallest, shared_out)


@dataclass(frozen=True, slots=True)
class Linear:
    """x -> matrix x + bias."""

    matrix: Matrix
    bias: Floats | None = None

    def __call__(self, x: Floats, pool: WorkPool) -> Floats:
        y = self.matrix(x, pool)
        return y if self.bias is None else y + self.bias


def rms_norm(x: Floats, weight: Floats, eps: np.float32) -> Floats:
    """x [..., width] divided by the root mean square of each vector, times weight [width]."""
    squares: Floats = np.matmul(x[..., None, :], x[..., :, None])[..., 0]
    scaled: Floats = x / np.sqrt(squares / np.float32(x.shape[-1]) + eps) * weight
    return scaled


def silu_product(gate: Floats, up: Floats) -> Floats:
    """gate · sigmoid(gate) · up, element by element. exp(-gate) may overflow; the result is then the right -0."""
    product: Floats = gate / (1 + np.exp(-gate)) * up
    return product


def softmax(x: Floats) -> Floats:
    """Along the last axis. x must not depend on a batch in its shape."""
    e: Floats = np.exp(x - x.max(axis=-1, keepdims=True))
    e /= e.sum(axis=-1, keepdims=True)
    return e


def attend(query: Floats, keys: Floats, values: Floats) -> Floats:
    """Attention of one row: query [n_head, head], scaled, over keys and values [n_kv, positions, head].

    Returns [n_head, head]. Query heads are shared out evenly over the n_kv key heads, neighbours together.
    """
    n_kv, _, head = keys.shape
    scores: Floats = np.matmul(keys[:, None], query.reshape(n_kv, -1, head, 1))[..., 0]
    mixed: Floats = np.matmul(softmax(scores)[..., None, :], values[:, None])
    return mixed.reshape(query.shape)
