"""Keys and values of the positions that each sequence holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.engine.numpy_kernels import aligned_zeros
from outrider.errors import CacheError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class KvCheckpoint:
    """keys, values: float32 [n_layer, n_kv, rows, head], copies."""

    keys: Floats
    values: Floats


class KvCache:
    """`n_seq` sequences of at most `n_ctx` rows. Rows at and past a sequence's length are scratch space.

    Each sequence has arrays of its own, laid out alike, so that copies behave like their originals to the last bit.
    Raises MemoryError if they do not fit the address space.
    """

    def __init__(self, n_seq: int, n_layer: int, n_kv: int, n_ctx: int, head: int) -> None:
        shape = (n_layer, n_kv, n_ctx, head)
        self._keys = [aligned_zeros(*shape) for _ in range(n_seq)]
        self._values = [aligned_zeros(*shape) for _ in range(n_seq)]
        self._lengths = [0] * n_seq

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._keys + self._values)

    def length(self, seq: int) -> int:
        return self._lengths[self._known(seq)]

    def write(self, seq: int, layer: int, start: int, keys: Floats, values: Floats) -> None:
        """Put rows [n, n_kv, head] at positions from `start` on, which is at least the length; that stays as it is."""
        rows = slice(start, start + len(keys))
        self._keys[seq][layer, :, rows] = keys.swapaxes(0, 1)
        self._values[seq][layer, :, rows] = values.swapaxes(0, 1)

    def read(self, seq: int, layer: int, n_rows: int) -> tuple[Floats, Floats]:
        """Views of the first `n_rows` keys and values, [n_kv, n_rows, head]."""
        return self._keys[seq][layer, :, :n_rows], self._values[seq][layer, :, :n_rows]

    def extend(self, seq: int, n_rows: int) -> None:
        """The next `n_rows` rows have been written in every layer."""
        self._lengths[seq] += n_rows

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` rows. Raises CacheError if there are fewer."""
        if not 0 <= length <= self.length(seq):
            raise CacheError(f"sequence {seq}: cannot keep {length} of {self.length(seq)} rows")
        self._lengths[seq] = length

    def copy(self, src: int, dst: int) -> None:
        if self._known(src) != self._known(dst):
            self.restore(dst, self._view(src))

    def save(self, seq: int) -> KvCheckpoint:
        view = self._view(seq)
        return KvCheckpoint(view.keys.copy(), view.values.copy())

    def restore(self, seq: int, checkpoint: object) -> None:
        """Raises CacheError if this is no checkpoint of a cache like this one."""
        n_layer, n_kv, n_ctx, head = self._keys[self._known(seq)].shape
        if not isinstance(checkpoint, KvCheckpoint):
            raise CacheError(f"sequence {seq}: a {type(checkpoint).__name__} is no checkpoint")
        length = checkpoint.keys.shape[2]
        if checkpoint.keys.shape != (n_layer, n_kv, length, head) or length > n_ctx:
            raise CacheError(f"sequence {seq}: the checkpoint is of another engine; restore it where it was saved")
        self._keys[seq][:, :, :length] = checkpoint.keys
        self._values[seq][:, :, :length] = checkpoint.values
        self._lengths[seq] = length

    def _view(self, seq: int) -> KvCheckpoint:
        length = self.length(seq)
        return KvCheckpoint(self._keys[seq][:, :, :length], self._values[seq][:, :, :length])

    def _known(self, seq: int) -> int:
        if not 0 <= seq < len(self._lengths):
            raise CacheError(f"sequence {seq} is not in 0..{len(self._lengths) - 1}")
        return seq
