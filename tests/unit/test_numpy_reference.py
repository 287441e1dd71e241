"""The numpy engine against a second implementation: float64, one token at a time, written from the definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.engine.base import Span
from outrider.engine.numpy_llama import NumpyEngine
from tests.tiny_gguf import Tensors, Tiny, lookup_tensors, random_tensors, write_lookup, write_tensors

POSITIONS = (0, 3, 100, 400)


def reference_logits(tiny: Tiny, tensors: Tensors, tokens: list[int]) -> np.ndarray:
    """float64 [len(tokens), n_vocab]"""
    weights = {name: values.astype(np.float64) for name, values in tensors.items()}
    x = weights["token_embd.weight"][tokens]
    for i in range(tiny.n_layer):
        block = {name.removeprefix(f"blk.{i}."): w for name, w in weights.items() if name.startswith(f"blk.{i}.")}
        x = x + attention(tiny, block, weights.get("rope_freqs.weight"), norm(tiny, x, block["attn_norm.weight"]))
        x = x + feed_forward(block, norm(tiny, x, block["ffn_norm.weight"]))
    output = weights.get("output.weight", weights["token_embd.weight"])
    return norm(tiny, x, weights["output_norm.weight"]) @ output.T + weights.get("output.bias", 0)


def norm(tiny: Tiny, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + np.float32(tiny.eps)) * weight


def project(block: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ block[f"{name}.weight"].T + block.get(f"{name}.bias", 0)


def feed_forward(block: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    gate = project(block, "ffn_gate", x)
    return project(block, "ffn_down", gate / (1 + np.exp(-gate)) * project(block, "ffn_up", x))


def attention(tiny: Tiny, block: dict[str, np.ndarray], factors: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    n = len(x)
    q = project(block, "attn_q", x).reshape(n, tiny.n_head, tiny.head)
    k = project(block, "attn_k", x).reshape(n, tiny.n_kv, tiny.head)
    v = project(block, "attn_v", x).reshape(n, tiny.n_kv, tiny.head)
    if "attn_q_norm.weight" in block:
        q, k = norm(tiny, q, block["attn_q_norm.weight"]), norm(tiny, k, block["attn_k_norm.weight"])
    q, k = rotate(tiny, factors, q), rotate(tiny, factors, k)
    heads = []
    for h in range(tiny.n_head):
        kv = h // (tiny.n_head // tiny.n_kv)
        scores = q[:, h] @ k[:, kv].T / np.sqrt(tiny.head)
        scores[np.triu_indices(n, 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, kv])
    return project(block, "attn_output", np.concatenate(heads, axis=1))


def rotate(tiny: Tiny, factors: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """Pairs as complex numbers, turned; x [n, heads, head]."""
    half = tiny.head // 2
    angle = np.arange(len(x))[:, None] * tiny.rope_base ** (-np.arange(half) / half)
    angle = angle / (tiny.rope_factor or 1) / (1 if factors is None else factors)
    turn = np.exp(1j * angle)[:, None]
    if tiny.architecture == "llama":  # neighbours
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    turned = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def engine_logits(path: Path, tokens: list[int]) -> np.ndarray:
    engine = NumpyEngine(path, n_ctx=0, n_threads=1)
    try:
        return engine.decode([Span(0, 0, tokens, len(tokens))]).logits
    finally:
        engine.close()


CASES = {
    "llama": Tiny(),
    "llama, tied": Tiny(tied=True),
    "llama, all biases": Tiny(bias=2.0),
    "llama, one head per key head": Tiny(n_kv=4),
    "llama, one key head": Tiny(n_kv=1, n_head=6),
    "llama, rope_freqs": Tiny(rope_factors=True, rope_base=500.0),
    "llama, linear scaling": Tiny(rope_factor=4.0, rope_base=500.0),
    "llama, both": Tiny(rope_factor=4.0, rope_factors=True, rope_base=500.0),
    "qwen2, large biases": Tiny(architecture="qwen2", bias=50.0),
    "qwen2, linear scaling": Tiny(architecture="qwen2", bias=1.0, rope_factor=4.0, tied=True),
    "qwen3": Tiny(architecture="qwen3"),
    "qwen3, biases, wide heads": Tiny(architecture="qwen3", bias=1.0, head=34, tied=True),
}


@pytest.mark.parametrize("tiny", CASES.values(), ids=CASES.keys())
def test_logits_equal_those_of_the_reference(tmp_path: Path, tiny: Tiny) -> None:
    tensors = random_tensors(tiny)
    tokens = np.random.default_rng(0).integers(0, tiny.n_vocab, max(POSITIONS) + 1).tolist()
    found = engine_logits(write_tensors(tmp_path / "tiny.gguf", tiny, tensors), tokens)
    wanted = reference_logits(tiny, tensors, tokens)
    for position in POSITIONS:
        spread = wanted[position].max() - wanted[position].min()
        assert np.abs(found[position] - wanted[position]).max() <= 1e-4 * spread, position


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Tiny(), Tiny(rope_factor=4.0)),
        (Tiny(), Tiny(rope_factors=True)),
        (Tiny(architecture="qwen2"), Tiny(architecture="qwen2", bias=0.5)),
    ],
    ids=["linear scaling", "rope_freqs", "biases"],
)
def test_what_the_cases_vary_does_change_the_reference(one: Tiny, other: Tiny) -> None:
    tokens = list(range(101))
    logits = [reference_logits(tiny, random_tensors(tiny), tokens)[100] for tiny in (one, other)]
    assert np.abs(logits[0] - logits[1]).max() > 0.01 * np.ptp(logits[0])


def test_the_same_numbers_mean_another_model_in_another_architecture(tmp_path: Path) -> None:
    """llama's rows of q and k are permuted in the file, qwen2's are not."""
    tensors = random_tensors(Tiny(architecture="qwen2", bias=1.0))
    tokens = list(range(30))
    logits = [
        engine_logits(write_tensors(tmp_path / f"{name}.gguf", Tiny(architecture=name), tensors), tokens)
        for name in ("llama", "qwen2")
    ]
    assert np.array_equal(logits[0][0], logits[1][0])  # nothing is turned at position 0
    assert np.abs(logits[0][29] - logits[1][29]).max() > 0.1


def test_quantised_tensors_are_decoded(tmp_path: Path) -> None:
    tiny = Tiny(n_embd=64, n_ff=64, head=16)
    tensors = random_tensors(tiny)
    types = {name: "Q8_0" for name, values in tensors.items() if values.ndim == 2}
    found = engine_logits(write_tensors(tmp_path / "tiny.gguf", tiny, tensors, types=types), [5, 6, 7])
    wanted = reference_logits(tiny, tensors, [5, 6, 7])
    assert np.abs(found - wanted).max() <= 0.05 * np.ptp(wanted)


def test_a_lookup_model_says_what_its_table_says(tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    found = engine_logits(write_lookup(tmp_path / "lookup.gguf", table), [5, 6, 5])
    assert np.allclose(found, table[[5, 6, 5]], atol=1e-5)


def test_the_lookup_model_is_a_model() -> None:
    tiny = Tiny(n_vocab=64, n_embd=64, n_layer=1, eps=1e-12)
    table = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    assert np.allclose(reference_logits(tiny, lookup_tensors(tiny, table), [3]), table[[3]], atol=1e-6)
