"""The configuration in the words of the parts that use it: parameters of the speculators, options of the engines."""

from __future__ import annotations

from outrider.config.schema import NgramSizes, Speculative, Worker
from outrider.engine.options import EngineOptions
from outrider.speculators.types import (
    ModelParams,
    NgramCacheParams,
    NgramModParams,
    NgramParams,
    NgramSuffixParams,
    SpeculatorParams,
)


def speculator_params(spec: Speculative) -> SpeculatorParams:
    """What the speculators read. The values are those asked for; `Speculative.draft_*` has what may travel."""
    return SpeculatorParams(
        ngram_simple=_ngram(spec.ngram_simple),
        ngram_map_k=_ngram(spec.ngram_map_k),
        ngram_map_k4v=_ngram(spec.ngram_map_k4v),
        ngram_mod=NgramModParams(
            n_match=spec.ngram_mod.n_match,
            n_min=spec.ngram_mod.n_min,
            n_max=spec.ngram_mod.n_max,
            shared_pool=spec.ngram_mod.pool == "shared",
        ),
        ngram_cache=NgramCacheParams(lookup_static=spec.ngram_cache.static, lookup_dynamic=spec.ngram_cache.dynamic),
        ngram_suffix=NgramSuffixParams(n_min=spec.ngram_suffix.n_min, n_max=spec.ngram_suffix.n_max),
        draft=ModelParams(n_max=spec.n_max, n_min=spec.n_min, p_min=spec.p_min),
    )


def _ngram(sizes: NgramSizes) -> NgramParams:
    return NgramParams(size_n=sizes.size_n, size_m=sizes.size_m, min_hits=sizes.effective_min_hits)


#: auto: what fits a GPU, if there is one; all: every layer, and an error where there is no GPU.
_GPU_LAYERS = {-1: None, -2: 2**31 - 1}


def engine_options(worker: Worker, n_seq: int, n_branches: int = 0) -> EngineOptions:
    """What the worker's engine is created with, for `n_seq` sequences and copies of them.

    Raises ConfigError where options exclude one another."""
    return EngineOptions(
        n_ctx=worker.ctx_size,
        n_batch=worker.batch_size,
        n_seq=n_seq,
        n_branches=n_branches,
        n_threads=worker.threads or None,
        n_gpu_layers=_GPU_LAYERS.get(worker.n_gpu_layers, worker.n_gpu_layers),
        devices=",".join(worker.devices) or None,
        cache_type_k=worker.cache_type_k,
        cache_type_v=worker.cache_type_v,
        flash_attn=worker.flash_attn,
    )
