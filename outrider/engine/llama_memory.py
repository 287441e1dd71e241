"""The sequences of a llama.cpp context: how many rows each holds, and every way back.

llama.cpp promises less than it seems to, so this is the one place that asks it to drop, copy or restore rows:

- *Sliding windows.* A cell of a row that is masked for its sequence counts as free, so another sequence may overwrite
  it, and after a rollback that row is in the window again: dropping "succeeds", and attention misses rows. Cells that
  belong to two sequences are never taken. Where several sequences share a cache with a window, each row therefore
  belongs to its sequence and to a mirror of it (ids `seq` and `seq + n_seq`), and stays. Only a restored sequence has
  lost the rows before its window; then `truncate` refuses to go there.
- *Recurrent states.* With `n_rs_seq` snapshots the last rows can be dropped once, but only those of the last batch:
  older snapshots are stale, and llama.cpp does not look. Nor do snapshots follow a state that moves in the cache.
- *Partial states.* A checkpoint of recurrent layers is small because the attention rows are not in it: they must still
  be in the cache when it is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from outrider.engine.base import Span
from outrider.engine.llama_cpp import LOG, NativeContext
from outrider.errors import CacheError
from outrider.types import MemoryKind


@dataclass(eq=False, slots=True, weakref_slot=True)
class Checkpoint:
    """State of a sequence with `length` rows. A partial one is usable while those rows are not cut."""

    memory: LlamaMemory
    seq: int
    length: int
    data: NDArray[np.uint8]
    partial: bool
    usable: bool = True


class LlamaMemory:
    """Sequences 0…n_seq-1. Numbers are checked: CacheError names what does not fit.

    n_swa: the model's window, 0 without; n_mirrors: 2 where rows are kept by a mirror, else 1.
    """

    def __init__(self, context: NativeContext, n_seq: int, n_swa: int, n_mirrors: int) -> None:
        self.kind: MemoryKind = "truncate"
        self._context = context
        self._n_seq, self._n_swa, self._n_mirrors = n_seq, n_swa, n_mirrors
        self._lengths = [0] * n_seq
        self._droppable: dict[int, int] = {}  # rows of a sequence that the snapshots of the last decode reach back
        self._partial = False
        self._checkpoints: WeakSet[Checkpoint] = WeakSet()

    def length(self, seq: int) -> int:
        self._check(seq)
        return self._lengths[seq]

    def appended(self, spans: Sequence[Span]) -> None:
        """The rows of `spans` were evaluated."""
        for span in spans:
            self._lengths[span.seq] += len(span.tokens)
        self._droppable = self._snapshots([(span.seq, len(span.tokens)) for span in spans])

    def _snapshots(self, rows: list[tuple[int, int]]) -> dict[int, int]:
        context, counts = self._context, {count for _, count in rows}
        one_step = len(rows) == 1 or (len(counts) == 1 and sum(count for _, count in rows) <= context.n_ubatch)
        if not one_step or not context.n_rs_seq:
            return {}
        return {seq: min(count - 1, context.n_rs_seq) for seq, count in rows}

    def cut_back(self, seq: int) -> None:
        """After a failed decode: back to the rows before it, or to none where they are lost."""
        length = self._lengths[seq]
        kept = self.kind == "truncate" and length > 0 and self._remove(seq, length)
        if not kept or not self._window_is_there(seq, length):
            self.clear(seq)

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` rows, or raise CacheError with nothing changed."""
        self._check(seq)
        held = self._lengths[seq]
        if not 0 <= length <= held:
            raise CacheError(f"sequence {seq}: cannot keep {length} rows of {held}")
        if length == 0:
            self.clear(seq)
        elif length < held:
            if not self._can_drop(seq, held - length) or not self._remove(seq, length):
                raise CacheError(f"sequence {seq}: this model's memory cannot go back from {held} rows to {length}")
            self._shrunk(seq, length)

    def _can_drop(self, seq: int, n_rows: int) -> bool:
        if self.kind == "truncate":
            return self._window_is_there(seq, self._lengths[seq] - n_rows)
        overwritten = self._n_swa > 0 and self._n_seq > 1  # perhaps: these rows have no mirror
        return n_rows <= self._droppable.get(seq, 0) and not overwritten

    def _window_is_there(self, seq: int, length: int) -> bool:
        """Are all rows in the cache that the row at position `length` attends to?"""
        if not self._n_swa or not length:
            return True
        return 0 <= self._context.first_position(seq) <= max(length + 1 - self._n_swa, 0)

    def _remove(self, seq: int, length: int) -> bool:
        """Drop rows of the sequence and its mirror; all or nothing, because only memories that always can are mirrored."""
        return all([self._context.remove(native, length) for native in self._mirrors(seq)])

    def _mirrors(self, seq: int) -> range:
        return range(seq, seq + self._n_seq * self._n_mirrors, self._n_seq)

    def _shrunk(self, seq: int, length: int) -> None:
        self._lengths[seq] = length
        for point in self._checkpoints:
            if point.seq == seq and point.length > length:
                point.usable = False

    def clear(self, seq: int) -> None:
        """Drop all rows; every memory can."""
        self._check(seq)
        self._remove(seq, 0)
        self._shrunk(seq, 0)

    def copy(self, src: int, dst: int) -> None:
        self._check(src)
        self._check(dst)
        if self.kind == "checkpoint":
            raise CacheError(f"sequence {src}: this model's memory has no branches to copy to")
        if src != dst:
            self.clear(dst)
            for native_src, native_dst in zip(self._mirrors(src), self._mirrors(dst), strict=True):
                self._context.copy(native_src, native_dst)
            self._lengths[dst] = self._lengths[src]

    def save(self, seq: int) -> Checkpoint:
        length = self.length(seq)
        data = self._context.state(seq, self._partial) if length else np.empty(0, np.uint8)
        if length and not data.size:
            raise CacheError(f"sequence {seq}: its state cannot be saved: {LOG.cause()}")
        point = Checkpoint(self, seq, length, data, self._partial)
        if self._partial:
            self._checkpoints.add(point)
        return point

    def restore(self, seq: int, checkpoint: object) -> None:
        """Raises CacheError: with nothing changed if the checkpoint does not fit, with an empty sequence if it fails."""
        self._check(seq)
        if not isinstance(checkpoint, Checkpoint) or checkpoint.memory is not self:
            raise CacheError(f"sequence {seq}: the checkpoint is not one of this engine")
        if checkpoint.partial and (checkpoint.seq != seq or not checkpoint.usable):
            raise CacheError(f"sequence {seq}: rows below the checkpoint of {checkpoint.length} were dropped since")
        if not checkpoint.partial or not checkpoint.length:
            self.clear(seq)
        if checkpoint.length and not self._load(seq, checkpoint):
            self.clear(seq)
            raise CacheError(f"sequence {seq}: its state cannot be restored: {LOG.cause()}")
        self._droppable = {}
        self._shrunk(seq, checkpoint.length)

    def _load(self, seq: int, point: Checkpoint) -> bool:
        LOG.forget()
        if not self._context.set_state(seq, point.data, point.partial):
            return False
        for mirror in self._mirrors(seq)[1:]:
            self._context.copy(seq, mirror)
        return self._context.remove(seq, point.length)  # the rows that a partial state leaves alone

    def _check(self, seq: int) -> None:
        if not 0 <= seq < self._n_seq:
            raise CacheError(f"sequence {seq} is not in 0..{self._n_seq - 1}")

    def probe(self, seq: int) -> None:
        """Find out what this memory can do, with the rows of `seq` (n_rs_seq + 2 or more), which are dropped."""
        whole, partial = (self._context.state_size(seq, partial) for partial in (False, True))
        can_drop = self._remove(seq, 1)
        self.kind = "truncate" if can_drop else "checkpoint"
        # Where the part is the whole, a checkpoint stands for itself.
        self._partial = not can_drop and partial < whole
        self.clear(seq)
