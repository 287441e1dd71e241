"""Dense llama-like models (llama, mistral, qwen2, qwen3) in numpy, float32: no compiler, no GPU, and exact.

A row's logits are the same bits in whatever batch it is evaluated, for any number of threads, and whether the rows
before it came by decode, prefill or replay (`numpy_kernels` says how). That makes this engine the oracle of
losslessness on real weights.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from outrider.engine.base import Engine, Output, Span, check_room
from outrider.engine.gguf_file import GgufFile, open_gguf
from outrider.engine.gguf_header import fail
from outrider.engine.kv_cache import KvCache
from outrider.engine.numpy_kernels import set_blas_threads
from outrider.engine.numpy_model import NumpyModel
from outrider.engine.numpy_params import ModelParams, context_length, read_params
from outrider.engine.numpy_weights import check_tensors, load_weights
from outrider.engine.tokenizer import GgufTokenizer
from outrider.engine.work_pool import WorkPool, usable_cpus
from outrider.errors import CacheError, ConfigError, EngineError
from outrider.types import ModelFacts

log = logging.getLogger(__name__)

#: Tokens of the self-test, spread over the vocabulary.
N_PROBES = 16


class NumpyEngine(Engine):
    """The model at `path` with `n_seq` + `n_branches` sequences of `n_ctx` positions (0: as many as it was trained for).

    n_threads: None = every core that this process may use. checkpoint_only: behave like a memory that can neither
    drop a suffix nor branch; what is left is to drop everything, `save` and `restore`.

    Raises ModelFileError if the file is damaged, not supported or computes nonsense; ConfigError if n_ctx is more than
    the model was trained for, or the caches do not fit.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n_ctx: int,
        n_batch: int = 512,
        n_seq: int = 1,
        n_branches: int = 0,
        n_threads: int | None = None,
        checkpoint_only: bool = False,
    ) -> None:
        if not set_blas_threads(1):
            log.warning("numpy's BLAS cannot be set to one thread; set its thread count to 1 in the environment")
        self.n_batch, self.n_seq, self.n_branches = n_batch, n_seq, n_branches
        self.memory = "checkpoint" if checkpoint_only else "truncate"
        file = open_gguf(path)
        self._pool = WorkPool(n_threads or usable_cpus())
        try:
            self._load(file, n_ctx)
            self._self_test(file)
        except BaseException:
            self.close()
            raise
        finally:
            file.close()

    def _load(self, file: GgufFile, n_ctx: int) -> None:
        params = read_params(file)
        self.n_ctx = context_length(params, n_ctx, file)
        check_tensors(file, params)
        self._cache: KvCache | None = _new_cache(params, self.n_seq + self.n_branches, self.n_ctx)
        self._model: NumpyModel | None = NumpyModel(params, load_weights(file, params), self.n_ctx, self._pool)
        self.n_vocab = self._model.n_vocab
        self.tokenizer = GgufTokenizer(file)
        if self.tokenizer.vocab.n_vocab != self.n_vocab:
            what = f"has {self.n_vocab} rows in token_embd.weight for {self.tokenizer.vocab.n_vocab} tokens"
            fail(file.path, what, "convert the model again")
        self.facts = ModelFacts(
            engine="numpy",
            architecture=file.architecture,
            name=str(file.metadata.get("general.name") or file.path.stem)[:256],
            n_vocab=self.n_vocab,
            n_ctx=self.n_ctx,
            n_batch=self.n_batch,
            n_seq=self.n_seq,
            memory=self.memory,
            memory_bytes=self._model.nbytes + self._cache.nbytes,
            has_chat_template=bool(file.metadata.get("tokenizer.chat_template")),
            vocab=self.tokenizer.vocab,
            row_times=[],
        )

    def _self_test(self, file: GgufFile) -> None:
        """A wrongly read model often gives logits that are all equal, or no numbers."""
        n_probes = min(N_PROBES, self.n_vocab, self.n_ctx, self.n_batch)
        tokens = np.linspace(0, self.n_vocab - 1, n_probes).astype(int).tolist()
        try:
            logits = self.decode([Span(0, 0, tokens, n_probes)]).logits
        except EngineError as error:
            fail(file.path, f"self-test: {error}", "the weights are damaged: fetch or convert the model again")
        if np.all(logits.max(axis=1) == logits.min(axis=1)):
            what = f"self-test: the logits are flat, all {logits[0, 0]:.4g}"
            fail(file.path, what, "the weights are damaged: fetch or convert the model again")
        self._kv.truncate(0, 0)

    @property
    def _kv(self) -> KvCache:
        assert self._cache is not None, "closed"
        return self._cache

    # --- decoding ------------------------------------------------------------------------------------------------

    def decode(self, spans: Sequence[Span]) -> Output:
        self._check(spans)
        assert self._model is not None, "closed"
        try:
            logits = self._model.forward(spans, self._kv)
        except Exception as error:
            raise EngineError(f"decode failed: {error!r}") from error
        if not np.isfinite(logits).all():
            raise EngineError("decode failed: the logits are not finite")
        for span in spans:
            self._kv.extend(span.seq, len(span.tokens))
        return Output(logits)

    def _check(self, spans: Sequence[Span]) -> None:
        if len({span.seq for span in spans}) != len(spans):
            raise EngineError("two spans of one decode name the same sequence")
        n_rows = sum(len(span.tokens) for span in spans)
        if n_rows > self.n_batch:
            raise EngineError(f"{n_rows} rows in one decode, and n_batch is {self.n_batch}")
        for span in spans:
            if span.start != self.length(span.seq):
                raise EngineError(f"sequence {span.seq}: row {span.start} given, {self.length(span.seq)} rows held")
            if not 0 <= span.n_outputs <= len(span.tokens):
                raise EngineError(f"sequence {span.seq}: {span.n_outputs} outputs of {len(span.tokens)} rows")
            for token in span.tokens:
                if not 0 <= token < self.n_vocab:
                    raise EngineError(f"sequence {span.seq}: token {token} is not in 0..{self.n_vocab - 1}")
        check_room(spans, self.n_ctx)

    # --- sequences -----------------------------------------------------------------------------------------------

    def length(self, seq: int) -> int:
        return self._kv.length(seq)

    def truncate(self, seq: int, length: int) -> None:
        if self.memory == "checkpoint" and length not in (0, self.length(seq)):
            raise CacheError(f"sequence {seq}: this memory cannot drop a suffix; restore a checkpoint")
        self._kv.truncate(seq, length)

    def copy(self, src: int, dst: int) -> None:
        if self.memory == "checkpoint":
            raise CacheError(f"sequence {src}: this memory has no branches")
        self._kv.copy(src, dst)

    def save(self, seq: int) -> object:
        return self._kv.save(seq)

    def restore(self, seq: int, checkpoint: object) -> None:
        self._kv.restore(seq, checkpoint)

    def close(self) -> None:
        self._pool.close()
        self._cache = self._model = None


def _new_cache(params: ModelParams, n_seq: int, n_ctx: int) -> KvCache:
    """Raises ConfigError if the caches do not fit."""
    try:
        return KvCache(n_seq, params.n_layer, params.n_kv, n_ctx, params.head)
    except (MemoryError, ValueError) as error:
        n_bytes = 8 * n_seq * params.n_layer * params.n_kv * n_ctx * params.head
        raise ConfigError(
            f"n_ctx = {n_ctx} and n_seq = {n_seq} need {n_bytes / 2**30:.1f} GiB of caches; lower them"
        ) from error
