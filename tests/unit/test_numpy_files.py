"""Model files that the numpy engine must refuse: by name, before it computes anything with them."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.engine.numpy_llama import NumpyEngine
from outrider.errors import ModelFileError
from tests import gguf_bytes
from tests.tiny_gguf import Tensors, Tiny, random_tensors, write_random, write_tensors


def refusal(path: Path) -> str:
    """The message; it must name the file, and no thread or line may be left over."""
    threads, start = threading.active_count(), time.monotonic()
    with pytest.raises(ModelFileError) as caught:
        NumpyEngine(path, n_ctx=16)
    assert threading.active_count() == threads
    assert time.monotonic() - start < 60  # of 5 s; slow machines
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def written(tmp_path: Path, tiny: Tiny, tensors: Tensors | None = None) -> Path:
    return write_tensors(tmp_path / "tiny.gguf", tiny, random_tensors(tiny) if tensors is None else tensors)


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"<html>"])
def test_what_is_no_model_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tiny.gguf"
    if content is not None:
        path.write_bytes(content)
    refusal(path)


# --- tensors --------------------------------------------------------------------------------------------------------

EVERY = {
    "llama": Tiny(bias=1.0, rope_factors=True, n_layer=1),
    "qwen2": Tiny(architecture="qwen2", bias=1.0, n_layer=1),
    "qwen3": Tiny(architecture="qwen3", n_layer=1),
}
OPTIONAL = {
    "llama": {"output.weight", "rope_freqs.weight"} | {f"blk.0.{name}.bias" for name in EVERY["llama"].biases},
    "qwen2": {"output.weight"},
    "qwen3": {"output.weight"},
}
TENSORS = [(family, name) for family, tiny in EVERY.items() for name in random_tensors(tiny)]


@pytest.mark.parametrize(("family", "name"), TENSORS)
def test_each_tensor_counts(tmp_path: Path, family: str, name: str) -> None:
    """Left out it is an error or changes the model; of another shape it is an error."""
    tiny = EVERY[family]
    tensors = random_tensors(tiny)
    wrong = tensors | {name: tensors[name][:-1].copy()}
    message = refusal(written(tmp_path, tiny, wrong))
    assert "shape" in message or "rows in token_embd.weight" in message
    del wrong[name]
    path = written(tmp_path, tiny, wrong)
    if name in OPTIONAL[family]:
        NumpyEngine(path, n_ctx=16).close()
    else:
        assert f"tensor '{name}' is missing" in refusal(path)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "blk.0.attn_q_norm.weight"),
        ("llama", "blk.0.attn_qkv.weight"),
        ("llama", "blk.0.ffn_gate_inp.weight"),
        ("llama", "blk.0.attn_q.scale"),
        ("llama", "blk.1.attn_norm.weight"),
        ("llama", "rope_factors_long.weight"),
        ("llama", "output.bias"),
        ("llama", "anything"),
        ("qwen2", "rope_freqs.weight"),
        ("qwen2", "blk.0.attn_output.bias"),
        ("qwen3", "blk.0.ffn_down.bias"),
        ("qwen3", "cls.output.weight"),
    ],
)
def test_unknown_tensors_are_refused(tmp_path: Path, family: str, name: str) -> None:
    tiny = EVERY[family]
    message = refusal(written(tmp_path, tiny, random_tensors(tiny) | {name: np.ones(9, np.float32)}))
    assert f"tensor '{name}' is unknown for architecture '{family}'" in message


def test_several_unknown_tensors_are_counted(tmp_path: Path) -> None:
    more = {name: np.ones(9, np.float32) for name in ("zz", "aa", "mm")}
    assert "'aa' is unknown" in (message := refusal(written(tmp_path, Tiny(), random_tensors(Tiny()) | more)))
    assert "(and 2 more)" in message


def test_a_transposed_matrix_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(Tiny())
    tensors["blk.0.ffn_down.weight"] = tensors["blk.0.ffn_down.weight"].T.copy()
    assert "'blk.0.ffn_down.weight' has shape [71, 50], the metadata say [50, 71]" in refusal(
        written(tmp_path, Tiny(), tensors)
    )


def test_types_that_cannot_be_decoded_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_random(path)
    raw = path.read_bytes()
    record = gguf_bytes.tensor("blk.0.attn_norm.weight", [50])
    at = raw.index(record[:-8])
    path.write_bytes(raw[:at] + record[:-12] + (26).to_bytes(4, "little") + raw[at + len(record) - 8 :])  # I32
    assert re.search(r"'blk.0.attn_norm.weight'.*(I32|26)", refusal(path))


def test_the_vocabulary_must_fit_the_embedding(tmp_path: Path) -> None:
    tensors = random_tensors(Tiny(n_vocab=320))
    assert "320 rows in token_embd.weight for 325 tokens" in refusal(written(tmp_path, Tiny(), tensors))


def test_a_vocabulary_only_file_is_called_one(tmp_path: Path) -> None:
    assert "vocabulary-only" in refusal(written(tmp_path, Tiny(), {}))


# --- weights that compute nonsense ----------------------------------------------------------------------------------


def test_flat_logits_are_refused(tmp_path: Path) -> None:
    tensors = random_tensors(Tiny())
    tensors["output.weight"][:] = 0
    assert "self-test: the logits are flat" in refusal(written(tmp_path, Tiny(), tensors))


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.1.ffn_down.weight", "token_embd.weight"])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, name: str) -> None:
    tensors = random_tensors(Tiny())
    tensors[name].flat[0] = np.nan
    assert "self-test: decode failed: the logits are not finite" in refusal(written(tmp_path, Tiny(), tensors))


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_rotary_factors_that_are_no_factors_are_refused(tmp_path: Path, factor: float) -> None:
    tiny = Tiny(rope_factors=True)
    tensors = random_tensors(tiny)
    tensors["rope_freqs.weight"][3] = factor
    assert "self-test: decode failed: the logits are not finite" in refusal(written(tmp_path, tiny, tensors))


# --- metadata -------------------------------------------------------------------------------------------------------


def test_unknown_architectures_are_refused(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, Tiny(architecture="gemma")))
    assert "'gemma' is not one of llama, qwen2, qwen3" in message


UNSUPPORTED: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.attn_factor": 1.5,
    "rope.dimension_sections": [4, 4, 4, 4],
    "attention.sliding_window": 4,
    "attention.causal": False,
    "attention.clamp_kqv": 8.0,
    "attention.max_alibi_bias": 8.0,
    "attention.scale": 0.1,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "logit_scale": 0.5,
    "embedding_scale": 12.0,
    "residual_scale": 0.2,
    "expert_count": 8,
    "use_parallel_residual": True,
    "hidden_activation": "gelu",
}


@pytest.mark.parametrize(("key", "value"), UNSUPPORTED.items())
def test_what_would_change_the_result_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    message = refusal(written(tmp_path, Tiny(more={key: value})))
    assert f"llama.{key}" in message
    assert str(value) in message


@pytest.mark.parametrize(
    ("key", "value"),
    [("rope.scaling.type", "none"), ("attention.causal", True), ("logit_scale", 1.0), ("expert_count", 0)],
)
def test_what_does_nothing_is_let_through(tmp_path: Path, key: str, value: object) -> None:
    NumpyEngine(written(tmp_path, Tiny(more={key: value})), n_ctx=16).close()


def patched(path: Path, key: str, kind: str, old: object, new: object) -> Path:
    """Another value of the same size for a key that is in the file."""
    raw = path.read_bytes()
    was = gguf_bytes.key(key, kind, old)
    assert raw.count(was) == 1
    path.write_bytes(raw.replace(was, gguf_bytes.key(key, kind, new)))
    return path


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("block_count", 2, 0),
        ("block_count", 2, 3),
        ("block_count", 2, 1),
        ("block_count", 2, 2**31 - 1),
        ("embedding_length", 50, 0),
        ("embedding_length", 50, 48),
        ("feed_forward_length", 71, 0),
        ("attention.head_count", 4, 0),
        ("attention.head_count", 4, 3),
        ("attention.head_count", 4, 2**31 - 1),
        ("attention.head_count_kv", 2, 0),
        ("attention.head_count_kv", 2, 4),
        ("attention.key_length", 18, 16),
        ("attention.value_length", 18, 20),
        ("rope.dimension_count", 18, 17),
        ("rope.dimension_count", 18, 20),
        ("context_length", 512, 0),
    ],
)
def test_wrong_sizes_are_refused(tmp_path: Path, name: str, old: int, new: int) -> None:
    refusal(patched(written(tmp_path, Tiny()), f"llama.{name}", "uint32", old, new))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_numbers_are_refused(tmp_path: Path, value: float) -> None:
    path = patched(written(tmp_path, Tiny()), "llama.rope.freq_base", "float32", 10000.0, value)
    assert "llama.rope.freq_base" in refusal(path)


def renamed(path: Path, key: str) -> Path:
    """As if the file did not have `key`."""
    raw = path.read_bytes()
    was = gguf_bytes.string(f"llama.{key}")
    assert raw.count(was) == 1
    path.write_bytes(raw.replace(was, gguf_bytes.string(f"other.{key}")))
    return path


@pytest.mark.parametrize(
    "key",
    [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_keys_are_named(tmp_path: Path, key: str) -> None:
    assert f"llama.{key} is missing" in refusal(renamed(written(tmp_path, Tiny()), key))


def test_defaults_of_keys_that_may_be_missing(tmp_path: Path) -> None:
    tiny = Tiny(n_embd=64, n_head=4, n_kv=4, head=16)
    path = written(tmp_path, tiny)
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base"):
        renamed(path, key)
    renamed(path, "attention.head_count_kv")
    NumpyEngine(path, n_ctx=16).close()


def test_values_for_each_layer_are_refused(tmp_path: Path) -> None:
    path = renamed(written(tmp_path, replace(Tiny(), more={"x": [4, 2]})), "attention.head_count")
    raw = path.read_bytes()
    name = "llama.attention.head_count"
    path.write_bytes(
        raw.replace(gguf_bytes.key("llama.x", "array[int32]", [4, 2]), gguf_bytes.key(name, "array[int32]", [4, 2]))
    )
    assert "head_count is given for each layer" in refusal(path)
