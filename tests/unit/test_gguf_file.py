"""Tensors of a GGUF file as float32 arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from outrider.engine.gguf_file import GgufFile, open_gguf
from outrider.engine.gguf_header import TENSOR_TYPES
from outrider.errors import ModelFileError
from tests.gguf_bytes import ARCH, gguf, key, tensor

LLAMA = key(ARCH, "string", "llama")


def one_tensor(tmp_path: Path, dims: list[int], type_id: int, data: bytes) -> GgufFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([LLAMA], [tensor("t", dims, type_id)], data))
    return open_gguf(path)


def test_float32_is_a_read_only_view(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    file = one_tensor(tmp_path, [4, 3, 2], 0, values.tobytes())
    got = file.tensor("t")
    np.testing.assert_array_equal(got, values)
    assert (got.dtype, got.flags.writeable, got.base is not None) == (np.float32, False, True)
    file.close()
    file.close()
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize(
    "type_id", [i for i, (name, _, _) in TENSOR_TYPES.items() if name[0] not in "I" or name[1] == "Q"]
)
def test_every_float_type(type_id: int, tmp_path: Path) -> None:
    """What the decoder of the package gives for the same bytes, or a named error where it has none."""
    name, block, block_bytes = TENSOR_TYPES[type_id]
    n_rows, row = 5, 2 * block
    raw = np.random.default_rng(type_id).integers(0, 60, n_rows * row // block * block_bytes, dtype=np.uint8)
    file = one_tensor(tmp_path, [row, n_rows], type_id, raw.tobytes())
    try:
        expected = quants.dequantize(raw.reshape(n_rows, -1), GGMLQuantizationType(type_id))
    except NotImplementedError:
        with pytest.raises(ModelFileError, match=f"'t' has type id {type_id} \\({name}\\): unsupported quantisation"):
            file.tensor("t")
        return
    got = file.tensor("t")
    assert (got.shape, got.dtype) == ((n_rows, row), np.float32)
    np.testing.assert_array_equal(got, expected)


def test_decoding_in_pieces_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.random.default_rng(1).integers(0, 60, 50 * 4 * 34, dtype=np.uint8).tobytes()
    whole = one_tensor(tmp_path, [128, 10, 5], 8, raw).tensor("t")
    monkeypatch.setattr("outrider.engine.gguf_file._CHUNK", 300)
    np.testing.assert_array_equal(one_tensor(tmp_path, [128, 10, 5], 8, raw).tensor("t"), whole)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no tensor 'blk\.0\.attn_q\.weight'"):
        one_tensor(tmp_path, [4], 0, bytes(16)).tensor("blk.0.attn_q.weight")
    (tmp_path / "vocab.gguf").write_bytes(gguf([LLAMA]))
    with pytest.raises(ModelFileError, match="has no tensors: it is a vocabulary-only file"):
        open_gguf(tmp_path / "vocab.gguf").tensor("token_embd.weight")


def test_metadata_by_kind(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf([LLAMA, key("llama.block_count", "uint32", 4)]))
    file = open_gguf(tmp_path / "model.gguf")
    assert (file.architecture, file.get("llama.block_count", "uint32"), file.get("x", "uint32")) == ("llama", 4, None)
    with pytest.raises(ModelFileError, match=r"llama.block_count is of type uint32, not string"):
        file.get("llama.block_count", "string")
