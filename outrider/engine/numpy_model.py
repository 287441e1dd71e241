"""The forward pass of a dense llama-like model: rows of tokens through the layers, over the cached keys and values.

Every step is one of `numpy_kernels`, so that a row's result is the same bits in every batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.engine.base import Span
from outrider.engine.kv_cache import KvCache
from outrider.engine.numpy_kernels import Floats, attend, rms_norm, silu_product
from outrider.engine.numpy_params import ModelParams
from outrider.engine.numpy_weights import Layer, Weights
from outrider.engine.rope import Rope
from outrider.engine.work_pool import WorkPool

#: Positions from which attention is worth sharing out among threads, row by row.
LONG = 256


class NumpyModel:
    """Weights and angles for positions below `n_ctx`; the work is shared out over `pool`."""

    def __init__(self, params: ModelParams, weights: Weights, n_ctx: int, pool: WorkPool) -> None:
        self._params = params
        self._weights = weights
        self._pool = pool
        self._rope = Rope(params.rope, n_ctx, weights.rope_factors)
        self._eps = np.float32(params.eps)
        self._scale = np.float32(params.head**-0.5)
        self.n_vocab = weights.output.matrix.n_out
        self.nbytes = weights.nbytes + self._rope.nbytes

    @np.errstate(all="ignore")  # exp may overflow rightly; the caller checks the logits
    def forward(self, spans: Sequence[Span], cache: KvCache) -> Floats:
        """Logits [rows asked, n_vocab]. The rows of `spans` are written to `cache` past its lengths, which stay."""
        if not any(span.tokens for span in spans):
            return np.empty((0, self.n_vocab), np.float32)
        x: Floats = self._weights.embedding[np.concatenate([np.asarray(span.tokens, np.int64) for span in spans])]
        positions = np.concatenate([np.arange(span.start, span.start + len(span.tokens)) for span in spans])
        for i, layer in enumerate(self._weights.layers):
            q, k, v = self._project(layer, x, positions)
            mixed = self._mix(i, q, k, v, spans, cache)
            x = x + layer.attn_output(mixed, self._pool)
            x = x + self._feed_forward(layer, x)
        return self._logits(x[_output_rows(spans)])

    def _project(self, layer: Layer, x: Floats, positions: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """Queries [n, n_head, head], keys and values [n, n_kv, head] of the rows x [n, n_embd]."""
        p = self._params
        qkv = layer.qkv(rms_norm(x, layer.attn_norm, self._eps), self._pool).reshape(len(x), -1, p.head)
        q, k, v = qkv[:, : p.n_head], qkv[:, p.n_head : -p.n_kv], qkv[:, -p.n_kv :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, self._eps), rms_norm(k, layer.k_norm, self._eps)
        return self._rope(q, positions) * self._scale, self._rope(k, positions), v

    def _mix(self, layer: int, q: Floats, k: Floats, v: Floats, spans: Sequence[Span], cache: KvCache) -> Floats:
        """Attention of each row over the rows before it and itself: [n, n_head · head]."""
        mixed = np.empty(q.shape, np.float32)
        rows: list[tuple[int, int]] = []  # sequence and number of positions seen, row by row of the batch
        for span, at in zip(spans, _rows_of(spans), strict=True):
            cache.write(span.seq, layer, span.start, k[at], v[at])
            rows += [(span.seq, span.start + i) for i in range(1, len(span.tokens) + 1)]

        def piece(i: int) -> None:
            seq, n_positions = rows[i]
            mixed[i] = attend(q[i], *cache.read(seq, layer, n_positions))

        if max(n_positions for _, n_positions in rows) >= LONG:
            self._pool.run(piece, len(rows))
        else:
            for i in range(len(rows)):
                piece(i)
        return mixed.reshape(len(q), -1)

    def _feed_forward(self, layer: Layer, x: Floats) -> Floats:
        n_ff = self._params.n_ff
        gate_up = layer.gate_up(rms_norm(x, layer.ffn_norm, self._eps), self._pool)
        return layer.down(silu_product(gate_up[:, :n_ff], gate_up[:, n_ff:]), self._pool)

    def _logits(self, x: Floats) -> Floats:
        if not len(x):
            return np.empty((0, self.n_vocab), np.float32)
        return self._weights.output(rms_norm(x, self._weights.output_norm, self._eps), self._pool)


def _rows_of(spans: Sequence[Span]) -> Iterator[slice]:
    """Where the rows of each span lie in the batch."""
    end = 0
    for span in spans:
        start, end = end, end + len(span.tokens)
        yield slice(start, end)


def _output_rows(spans: Sequence[Span]) -> NDArray[np.int64]:
    """Rows of the batch whose logits are wanted."""
    ends = [rows.stop for rows in _rows_of(spans)]
    return np.concatenate([np.arange(end - span.n_outputs, end) for span, end in zip(spans, ends, strict=True)])
