"""Recognising drafts by their headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.engine.gguf_header import read_header
from outrider.errors import ModelFileError
from outrider.speculators.detect import detect_types, is_eagle3
from tests.gguf_bytes import ARCH, float_tensors, gguf, key
from tests.golden.type_detect import check

FILES = sorted((Path(__file__).parents[1] / "data/golden/type_detect").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_files(path: Path) -> None:
    assert check(path, json.loads(path.read_text())) == []


def test_there_are_recorded_files() -> None:
    assert len(FILES) > 15


def detect(tmp_path: Path, *keys: bytes, tensors: tuple[str, ...] = ()) -> list[str]:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(keys, *float_tensors(tensors)))
    return detect_types(read_header(path))


def test_a_head_in_the_last_block_alone_makes_an_mtp_draft(tmp_path: Path) -> None:
    keys = key(ARCH, "string", "qwen35"), key("qwen35.block_count", "uint32", 4)
    assert detect(tmp_path, *keys, tensors=("blk.3.nextn.eh_proj.weight",)) == ["draft-mtp"]
    assert detect(tmp_path, *keys, tensors=("blk.2.nextn.eh_proj.weight", "blk.4.nextn.eh_proj.weight")) == []


@pytest.mark.parametrize(
    ("kind", "words"), [("uint64", "of type uint64"), ("string", "of type string"), (None, "is missing")]
)
def test_where_llama_cpp_aborts_there_is_a_named_error(kind: str | None, words: str, tmp_path: Path) -> None:
    count = [key("llama.block_count", kind, "2" if kind == "string" else 2)] if kind else []
    with pytest.raises(ModelFileError, match=f"model.gguf: 'llama.block_count' .*{words}"):
        detect(tmp_path, key(ARCH, "string", "llama"), *count)


def test_eagle3_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([key(ARCH, "string", "eagle3"), key("eagle3.block_count", "uint32", 1)]))
    header = read_header(path)
    assert (detect_types(header), is_eagle3(header)) == ([], True)
