"""The header of a GGUF file, read with a bound on everything that the file claims.

Layout (GGUF 2 and 3, little-endian): magic, version, tensor count, key count; the keys with typed values; one record
per tensor (name, dimensions, type, offset); padding to `general.alignment`; the tensors' bytes.

Every count and length is held against the bytes that are left before anything is allocated or looped over, so a
damaged or hostile file costs one clear ModelFileError, never memory or time. Nothing but the standard library is used.
"""

from __future__ import annotations

import math
import mmap
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from outrider.errors import ModelFileError

#: Limits far above any real model: ids need at most 2**21 entries, real files have some hundred keys.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ITEMS = 1 << 21  # per array
MAX_STRINGS = 1 << 22  # in all arrays together
MAX_NUMBERS = 1 << 23  # likewise
MAX_STRING = 1 << 24  # bytes
MAX_NAME = 63  # bytes of a tensor's name (ggml's own limit)
MAX_ALIGNMENT = 1 << 20

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: ("uint8", "B"),
    1: ("int8", "b"),
    2: ("uint16", "H"),
    3: ("int16", "h"),
    4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"),
    7: ("bool", "?"),
    10: ("uint64", "Q"),
    11: ("int64", "q"),
    12: ("float64", "d"),
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

#: Tensor types of the format: id -> (name, values per block, bytes per block).
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

#: Other things that people call model.gguf: first bytes, what it is, what to do.
_IMPOSTORS = [
    (b"version https://git-lfs", "a Git LFS pointer instead of the file", "fetch it with `git lfs pull`"),
    (b"<", "an HTML or XML page", "a download went wrong: fetch the file itself, not its web page"),
    (b'{"', "JSON text", "a download went wrong: fetch the file itself"),
    (b"PK\x03\x04", "a zip archive, as PyTorch checkpoints are", "convert the model to GGUF"),
    (b"lmgg", "a GGML file from before GGUF", "convert the model to GGUF again"),
    (b"fmgg", "a GGML file from before GGUF", "convert the model to GGUF again"),
    (b"tjgg", "a GGML file from before GGUF", "convert the model to GGUF again"),
]
_REFETCH = "the file is damaged or cut short: fetch it again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` in numpy order (rows first), `offset` of its bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    n_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says of itself.

    metadata: key -> int, float, bool, str or a list of them. Strings of arrays keep bytes that are no UTF-8 as
    surrogate escapes (vocabularies need them); other strings replace them.
    kinds: key -> "uint32", "string", "array[string]", …
    """

    path: Path
    version: int
    n_bytes: int
    metadata: Mapping[str, object]
    kinds: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]


def read_header(path: str | Path) -> Header:
    """The header of the GGUF file at `path`. Raises ModelFileError."""
    return map_gguf(path)[0]


def map_gguf(path: str | Path) -> tuple[Header, mmap.mmap]:
    """The header, and the whole file as a read-only memory map. Raises ModelFileError."""
    path = Path(path)
    data = _map(path)
    return _Reader(path, data).header(), data


def fail(path: Path, what: str, advice: str = _REFETCH) -> NoReturn:
    """Raise the ModelFileError of this file, with a word on pieces that were never joined."""
    piece = re.search(r"\.part(\d+)of(\d+)$", path.name)
    if piece:
        advice = f"this is piece {piece[1]} of {piece[2]}: join the pieces, in order, into one file"
    raise ModelFileError(f"{path}: {what}; {advice}")


def _map(path: Path) -> mmap.mmap:
    try:
        mode = path.stat().st_mode  # before open(), which would wait at a FIFO
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            fail(path, f"is {kind}", "name the GGUF file itself")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                fail(path, "is empty", "fetch it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelFileError(f"{path}: cannot be opened ({reason}); check the path") from error


class _Reader:
    """A cursor over the file; every method moves it, and fails before it would pass the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size = path, data, len(data)
        self.at = 0
        self.n_strings = 0
        self.n_numbers = 0

    def header(self) -> Header:
        version, n_tensors, n_keys = self.preamble()
        metadata: dict[str, object] = {}
        kinds: dict[str, str] = {}
        for i in range(n_keys):
            key = self.string(f"the name of key {i}", MAX_STRING)
            if not key or key in metadata:
                fail(self.path, f"key {i} is {'a second ' + _shown(key) if key else 'nameless'}")
            kinds[key], metadata[key] = self.value(f"the value of {_shown(key)}")
        alignment = self.alignment(metadata, kinds)
        records = [self.tensor(i) for i in range(n_tensors)]
        tensors = self.place(records, _align(self.at, alignment), alignment)
        return Header(self.path, version, self.size, metadata, kinds, tensors)

    def preamble(self) -> tuple[int, int, int]:
        """Version, number of tensors, number of keys."""
        if self.data[:4] != b"GGUF":
            self.not_gguf()
        self.at = 4
        version = self.integer(_U32, "the version")
        if version and version & 0xFFFF == 0:
            fail(self.path, "is a big-endian GGUF file", "convert it for little-endian machines")
        if version not in (2, 3):
            fail(self.path, f"has GGUF version {version}; versions 2 and 3 can be read", "convert the model again")
        n_tensors = self.count("tensor count", MAX_TENSORS, 8 + 1 + 4 + 8 + 4 + 8, after=8)
        n_keys = self.count("key count", MAX_KEYS, 8 + 1 + 4 + 1)
        return version, n_tensors, n_keys

    def not_gguf(self) -> NoReturn:
        head = self.data[:64]
        for prefix, what, advice in _IMPOSTORS:
            if head.lstrip().startswith(prefix):
                fail(self.path, f"is {what} (it begins with {head[:16]!r})", advice)
        if not any(head):
            fail(self.path, "begins with zero bytes, not with b'GGUF'", "a download was interrupted: fetch it again")
        fail(self.path, f"is no GGUF file: it begins with {head[:16]!r}, not with b'GGUF'", "check the path")

    def integer(self, form: struct.Struct, what: str) -> int:
        self.need(form.size, what)
        value: int = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.size - self.at:
            fail(self.path, f"ends at byte {self.size}, inside {what}, which needs {n_bytes} bytes from byte {self.at}")

    def count(self, what: str, limit: int, item_bytes: int, after: int = 0) -> int:
        """A count of items of at least `item_bytes` each, `after` bytes of something else standing before them."""
        value = self.integer(_U64, f"the {what}")
        left = self.size - self.at - after
        if value > limit:
            fail(self.path, f"{what} {value} is above the limit of {limit}")
        if value * item_bytes > left:
            fail(self.path, f"{what} {value} needs at least {value * item_bytes} bytes, {max(left, 0)} are left")
        return value

    def string(self, what: str, limit: int) -> str:
        n_bytes = self.integer(_U64, what)
        if n_bytes > limit:
            fail(self.path, f"{what} has a length of {n_bytes} bytes, above the limit of {limit}")
        self.need(n_bytes, what)
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at].decode("utf-8", "replace")

    def value(self, what: str) -> tuple[str, object]:
        """Kind and value of one key."""
        type_id = self.integer(_U32, what)
        if type_id == _STRING:
            return "string", self.string(what, MAX_STRING)
        if type_id == _ARRAY:
            return self.array(what)
        kind, code = self.scalar(type_id, what)
        return kind, self.numbers(code, 1, what)[0]

    def scalar(self, type_id: int, what: str) -> tuple[str, str]:
        if type_id not in _SCALARS:
            fail(self.path, f"{what} has the unknown value type {type_id}")
        return _SCALARS[type_id]

    def numbers(self, code: str, count: int, what: str) -> list[object]:
        form = struct.Struct(f"<{count}{code}")
        self.need(form.size, what)
        self.at += form.size
        return list(form.unpack_from(self.data, self.at - form.size))

    def array(self, what: str) -> tuple[str, list[object]]:
        type_id = self.integer(_U32, what)
        if type_id == _ARRAY:
            fail(self.path, f"{what} is an array of arrays, which no model needs")
        if type_id == _STRING:
            count = self.count(f"array length of {what}", MAX_ITEMS, 8)
            return "array[string]", self.strings(count, what)
        kind, code = self.scalar(type_id, what)
        count = self.count(f"array length of {what}", MAX_ITEMS, struct.calcsize(code))
        self.n_numbers += count
        if self.n_numbers > MAX_NUMBERS:
            fail(self.path, f"{what} brings the number of numbers in arrays above the limit of {MAX_NUMBERS}")
        return f"array[{kind}]", self.numbers(code, count, what)

    def strings(self, count: int, what: str) -> list[object]:
        """`count` strings; a tight loop, because vocabularies have hundreds of thousands."""
        self.n_strings += count
        if self.n_strings > MAX_STRINGS:
            fail(self.path, f"{what} brings the number of strings in arrays above the limit of {MAX_STRINGS}")
        data, at, last, length_at = self.data, self.at, self.size - 8, _U64.unpack_from
        texts: list[object] = []
        for i in range(count):
            start = at + 8
            if at > last or (at := start + length_at(data, at)[0]) > self.size:
                fail(self.path, f"ends at byte {self.size}, inside entry {i} of {what}")
            texts.append(data[start:at].decode("utf-8", "surrogateescape"))
        self.at = at
        return texts

    def alignment(self, metadata: Mapping[str, object], kinds: Mapping[str, str]) -> int:
        value = metadata.get("general.alignment", 32)
        if kinds.get("general.alignment", "uint32") != "uint32" or not isinstance(value, int):
            fail(self.path, f"general.alignment is a {kinds['general.alignment']}, not a uint32")
        if value.bit_count() != 1 or value > MAX_ALIGNMENT:
            fail(self.path, f"general.alignment is {value}, not a power of two up to {MAX_ALIGNMENT}")
        return value

    def tensor(self, index: int) -> TensorInfo:
        """One tensor record, its offset still relative to the data section."""
        name = self.string(f"the name of tensor {index}", MAX_NAME)
        what = f"tensor {_shown(name)}" if name else f"tensor {index}"
        n_dims = self.integer(_U32, what)
        if not 1 <= n_dims <= 4:
            fail(self.path, f"{what} has {n_dims} dimensions, not 1 to 4")
        dims = [self.integer(_U64, what) for _ in range(n_dims)]
        type_id = self.integer(_U32, what)
        offset = self.integer(_U64, what)
        if type_id not in TENSOR_TYPES:
            fail(self.path, f"{what} has type id {type_id}: unsupported quantisation", "use another quantisation")
        type_name, block, block_bytes = TENSOR_TYPES[type_id]
        if min(dims) < 1 or dims[0] % block:
            fail(self.path, f"{what} has the dimensions {dims}; {type_name} needs positive ones, in blocks of {block}")
        n_bytes = math.prod(dims) // block * block_bytes
        return TensorInfo(name, tuple(reversed(dims)), type_id, type_name, n_bytes, offset)

    def place(self, records: list[TensorInfo], data_at: int, alignment: int) -> dict[str, TensorInfo]:
        """The tensors by name, in file order, with absolute offsets that are aligned, apart and inside the file."""
        tensors: dict[str, TensorInfo] = {}
        for info in records:
            start, what = data_at + info.offset, f"tensor {_shown(info.name)}"
            if info.name in tensors or not info.name:
                fail(self.path, f"{what} is there twice" if info.name else "a tensor has no name")
            if info.offset % alignment:
                fail(self.path, f"{what} has offset {info.offset}, no multiple of the alignment {alignment}")
            if start + info.n_bytes > self.size:
                fail(self.path, f"{what} needs the bytes {start} to {start + info.n_bytes}, the file has {self.size}")
            tensors[info.name] = TensorInfo(info.name, info.shape, info.type_id, info.type_name, info.n_bytes, start)
        self.check_layout(sorted(tensors.values(), key=lambda info: info.offset), alignment)
        return tensors

    def check_layout(self, in_order: list[TensorInfo], alignment: int) -> None:
        end = 0
        for info in in_order:
            if info.offset < end:
                fail(self.path, f"tensor {_shown(info.name)} overlaps the one before it")
            end = info.offset + info.n_bytes
        for at in {end, _align(end, alignment)} if in_order else ():
            if self.data[at : at + 4] == b"GGUF":
                fail(self.path, f"holds another GGUF file from byte {at} on", "merge shards with llama-gguf-split")


def _align(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def _shown(name: str) -> str:
    """A name from the file as it can stand in a message."""
    return ascii(name if len(name) <= 64 else name[:64] + "…")
