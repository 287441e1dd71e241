"""How many prompt rows go into one decode: enough to be efficient, few enough to be interrupted after about a second."""

from __future__ import annotations

START_ROWS = 128
MIN_ROWS = 16
SLOW_US = 2_000_000
FAST_US = 300_000


class ChunkSize:
    """Starts at 128 rows and moves in powers of two, and only when far from a second per decode.

    On most machines it therefore never moves, which keeps the batches of two runs alike: llama.cpp's last bits depend
    on their shape.
    """

    def __init__(self, n_batch: int) -> None:
        self._n_batch = n_batch
        self.rows = min(START_ROWS, n_batch)

    def observe(self, n_rows: int, elapsed_us: int) -> None:
        """A decode of `n_rows` took `elapsed_us`; only whole chunks tell something."""
        if n_rows < self.rows:
            return
        if elapsed_us > SLOW_US and self.rows > MIN_ROWS:
            self.rows = max(self.rows // 2, MIN_ROWS)
        elif elapsed_us < FAST_US:
            self.rows = min(self.rows * 2, self._n_batch)
