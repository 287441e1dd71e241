"""The header check: whatever a file claims, the answer is one clear line, at once."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from outrider.engine import gguf_header
from outrider.engine.gguf_file import open_gguf
from outrider.engine.gguf_header import read_header
from outrider.errors import ModelFileError
from tests.gguf_bytes import ARCH, gguf, key, string, tensor

LLAMA = key(ARCH, "string", "llama")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_bytes(data: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write_bytes


def array_claim(type_id: int, count: int) -> bytes:
    return string("a") + struct.pack("<IIQ", 9, type_id, count)


def one_tensor(dims: list[int], type_id: int = 0, offset: int = 0, data: bytes = b"\0" * 64) -> bytes:
    return gguf([LLAMA], [tensor("t", dims, type_id, offset)], data)


#: name -> (bytes, a part of the message). Nothing here is a file that can be read.
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "magic only": (b"GGUF", "inside the version"),
    "wrong magic": (gguf(magic=b"XXXX"), "begins with b'XXXX"),
    "zeros": (bytes(4096), "begins with zero bytes"),
    "html": (b"\n <!DOCTYPE html><html><body>404</body></html>", "an HTML or XML page"),
    "json": (b'{"error": "not found"}', "JSON text"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
    "zip": (b"PK\x03\x04" + bytes(60), "a zip archive"),
    "old ggml": (b"tjgg" + bytes(60), "from before GGUF"),
    "version 0": (gguf(version=0), "GGUF version 0"),
    "version 1": (gguf(version=1), "GGUF version 1"),
    "version 99": (gguf(version=99), "GGUF version 99"),
    "big-endian": (gguf(version=3 << 24), "big-endian"),
    "counts cut off": (gguf()[:12], "inside the tensor count"),
    "key count 2^63-1": (gguf(n_keys=2**63 - 1), "key count 9223372036854775807"),
    "key count -1": (gguf(n_keys=2**64 - 1), "key count 18446744073709551615"),
    "key count beyond the file": (gguf(n_keys=9), "key count 9 needs at least"),
    "tensor count 2^60": (gguf(n_tensors=2**60), "tensor count 1152921504606846976"),
    "tensor count beyond the file": (gguf([LLAMA], n_tensors=100), "tensor count 100 needs at least"),
    "key length 2^62": (gguf(n_keys=1) + struct.pack("<Q", 2**62) + bytes(20), "the name of key 0 has a length"),
    "string length 2^40": (
        gguf(n_keys=1) + string("general.name") + struct.pack("<IQ", 8, 2**40),
        "'general.name' has a length of 1099511627776",
    ),
    "string beyond the file": (
        gguf(n_keys=1) + string("general.name") + struct.pack("<IQ", 8, 100) + b"short",
        "inside the value of 'general.name'",
    ),
    "array length 2^61": (gguf([array_claim(4, 2**61)]), "array length of the value of 'a' 2305843009213693952"),
    "array length 2^63 of strings": (gguf([array_claim(8, 2**63)]), "array length of the value of 'a'"),
    "array of 1e9 bools": (gguf([array_claim(7, 10**9)]), "array length of the value of 'a' 1000000000"),
    "array beyond the file": (gguf([array_claim(4, 1000)]), "needs at least 4000 bytes"),
    "string array beyond the file": (
        gguf([array_claim(8, 2) + string("x") + struct.pack("<Q", 2**62)]),
        "inside entry 1 of the value of 'a'",
    ),
    "nested array": (gguf([array_claim(9, 1)]), "array of arrays"),
    "value type 200": (gguf([string("a") + struct.pack("<I", 200) + bytes(8)]), "unknown value type 200"),
    "array item type 200": (gguf([array_claim(200, 1) + bytes(8)]), "unknown value type 200"),
    "duplicate key": (gguf([key("a", "uint32", 1), key("a", "uint32", 2)]), "a second 'a'"),
    "nameless key": (gguf([key("", "uint32", 1)]), "nameless"),
    "alignment 0": (gguf([key("general.alignment", "uint32", 0)]), "general.alignment is 0"),
    "alignment 33": (gguf([key("general.alignment", "uint32", 33)]), "general.alignment is 33"),
    "alignment 2^31": (gguf([key("general.alignment", "uint32", 2**31)]), "general.alignment is 2147483648"),
    "alignment 2^31 with a tensor": (
        gguf([LLAMA, key("general.alignment", "uint32", 2**31)], [tensor("t", [4])], bytes(64)),
        "general.alignment is 2147483648",
    ),
    "alignment as text": (gguf([key("general.alignment", "string", "32")]), "general.alignment is a string"),
    "dimension -1": (one_tensor([-1]), "needs the bytes"),
    "dimension 0": (one_tensor([0, 4]), "the dimensions [0, 4]"),
    "product over 2^64": (one_tensor([2**40, 2**40]), "needs the bytes"),
    "product wraps to 0": (one_tensor([2**33, 2**33]), "needs the bytes"),
    "padding wraps": (one_tensor([2**62 - 1]), "needs the bytes"),
    "no dimensions": (one_tensor([]), "has 0 dimensions"),
    "five dimensions": (one_tensor([1] * 5), "has 5 dimensions"),
    "nine dimensions": (one_tensor([1] * 9), "has 9 dimensions"),
    "2^32-1 dimensions": (
        gguf([LLAMA], n_tensors=1) + string("t") + struct.pack("<I", 2**32 - 1) + bytes(64),
        "has 4294967295 dimensions",
    ),
    "tensor type 200": (one_tensor([4], 200), "tensor 't' has type id 200: unsupported quantisation"),
    "tensor type 156": (one_tensor([4], 156), "tensor 't' has type id 156: unsupported quantisation"),
    "removed type 4": (one_tensor([32], 4), "tensor 't' has type id 4: unsupported quantisation"),
    "half a block": (one_tensor([1], 2), "Q4_0 needs positive ones, in blocks of 32"),
    "offset outside": (one_tensor([4], offset=999_968), "the file has"),
    "offset not aligned": (one_tensor([4], offset=4), "no multiple of the alignment 32"),
    "offset 2^64-32": (one_tensor([4], offset=2**64 - 32), "needs the bytes"),
    "tensor name of 200 bytes": (gguf([LLAMA], [tensor("t" * 200, [4])], bytes(64)), "above the limit of 63"),
    "tensor without a name": (gguf([LLAMA], [tensor("", [4])], bytes(64)), "a tensor has no name"),
    "tensor twice": (gguf([LLAMA], [tensor("t", [4]), tensor("t", [4], 0, 32)], bytes(64)), "'t' is there twice"),
    "tensors overlap": (gguf([LLAMA], [tensor("t", [16]), tensor("u", [4], 0, 32)], bytes(64)), "'u' overlaps"),
    "data cut short": (one_tensor([1_000_000]), "needs the bytes"),
    "second file glued on": (one_tensor([16]) + gguf(), "holds another GGUF file"),
    "second file glued on, unpadded": (one_tensor([4], data=b"\0" * 16) + gguf(), "holds another GGUF file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file(name: str, write: Write) -> None:
    data, words = BAD[name]
    with pytest.raises(ModelFileError) as caught:
        read_header(write(data))
    message = str(caught.value)
    assert "model.gguf" in message
    assert words in message
    assert "\n" not in message
    assert len(message) < 400
    with pytest.raises(ModelFileError):
        open_gguf(write(data))


#: Readable headers that no engine may run.
UNUSABLE: dict[str, tuple[bytes, str]] = {
    "header only": (gguf(), "general.architecture is missing"),
    "no architecture": (gguf([key("general.name", "string", "x")]), "general.architecture is missing"),
    "architecture is a number": (gguf([key(ARCH, "uint32", 7)]), "general.architecture is 7, a uint32"),
    "architecture is empty": (gguf([key(ARCH, "string", "")]), "general.architecture is ''"),
    "first shard": (gguf([LLAMA, key("split.count", "uint16", 3), key("split.no", "uint16", 0)]), "shard 1 of 3"),
    "second shard": (gguf([LLAMA, key("split.count", "uint16", 3), key("split.no", "uint16", 1)]), "shard 2 of 3"),
    "wrong shard number": (
        gguf([LLAMA, key("split.count", "uint16", 2), key("split.no", "uint16", 5)]),
        "split.no is 5",
    ),
    "shard count as text": (gguf([LLAMA, key("split.count", "string", "2")]), "is not a number"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_file(name: str, write: Write) -> None:
    data, words = UNUSABLE[name]
    path = write(data)
    read_header(path)
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    assert words in str(caught.value)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.gguf")
    for path, words in [
        (tmp_path, "is a directory"),
        (tmp_path / "fifo.gguf", "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / "missing.gguf", "No such file"),
        (tmp_path / "nul\0.gguf", "cannot be opened"),
    ]:
        with pytest.raises(ModelFileError, match=words):
            read_header(path)


def test_unjoined_pieces_are_named(write: Write) -> None:
    whole = one_tensor([16])
    for number, data in enumerate([whole[:-40], whole[-40:]], 1):
        with pytest.raises(ModelFileError, match=f"piece {number} of 2: join the pieces"):
            read_header(write(data, f"model.gguf.part{number}of2"))


def test_every_cut_is_refused(write: Write) -> None:
    whole = gguf(
        [LLAMA, key("tokenizer.ggml.tokens", "array[string]", ["a", "bc"]), key("x", "array[float32]", [1.0, 2.0])],
        [tensor("t", [16]), tensor("u", [8, 2], 0, 64)],
        bytes(128),
    )
    read_header(write(whole))
    for length in range(len(whole)):
        with pytest.raises(ModelFileError):
            read_header(write(whole[:length]))


def test_hostile_strings_cannot_eat_time(write: Write) -> None:
    """Arrays of empty strings fill the file honestly, and are still bounded in number."""
    count = gguf_header.MAX_ITEMS
    arrays = [array_claim(8, count)[:8] + b"%c" % (97 + i) + array_claim(8, count)[9:] for i in range(3)]
    with pytest.raises(ModelFileError, match="number of strings in arrays"):
        read_header(write(gguf([head + bytes(8 * count) for head in arrays])))


def test_hostile_numbers_cannot_eat_memory(write: Write) -> None:
    count = gguf_header.MAX_ITEMS
    arrays = [array_claim(0, count)[:8] + b"%c" % (97 + i) + array_claim(0, count)[9:] for i in range(5)]
    with pytest.raises(ModelFileError, match="number of numbers in arrays"):
        read_header(write(gguf([head + bytes(count) for head in arrays])))


def test_values_of_every_kind(write: Write) -> None:
    values: dict[str, object] = {
        "uint8": 200,
        "int8": -3,
        "uint16": 65535,
        "int16": -300,
        "uint32": 2**32 - 1,
        "int32": -(2**31),
        "float32": 0.5,
        "bool": True,
        "string": "é▁",
        "uint64": 2**64 - 1,
        "int64": -(2**63),
        "float64": 1e-300,
        "array[int32]": [1, -2, 3],
        "array[bool]": [True, False],
        "array[string]": ["a", "", "\udcff b"],
    }
    header = read_header(write(gguf([key(f"k.{kind}", kind, value) for kind, value in values.items()])))
    assert header.metadata == {f"k.{kind}": value for kind, value in values.items()}
    assert header.kinds == {f"k.{kind}": kind for kind in values}


def test_tensor_infos(write: Write) -> None:
    raw = gguf([LLAMA], [tensor("a", [32, 3, 2], 2), tensor("b", [4], 1, 128)], bytes(136), version=2)
    header = read_header(write(raw))
    a, b = header.tensors["a"], header.tensors["b"]
    assert (a.shape, a.type_name, a.n_bytes) == ((2, 3, 32), "Q4_0", 6 * 18)
    assert (b.shape, b.type_name, b.n_bytes) == ((4,), "F16", 8)
    assert (a.offset, b.offset) == (len(raw) - 136, len(raw) - 8)
    assert (header.version, header.n_bytes) == (2, len(raw))


def test_the_type_table_is_that_of_the_gguf_package() -> None:
    theirs = {t.value: (t.name, *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType}
    ours = gguf_header.TENSOR_TYPES
    assert {k: v for k, v in theirs.items() if k in ours} == ours
    assert theirs.keys() - ours.keys() <= set(range(42, 200)), "a type that the package knows is missing here"
