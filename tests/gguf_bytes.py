"""GGUF files as bytes, right ones and wrong ones, for the tests."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

_KINDS = {
    "uint8": (0, "B"),
    "int8": (1, "b"),
    "uint16": (2, "H"),
    "int16": (3, "h"),
    "uint32": (4, "I"),
    "int32": (5, "i"),
    "float32": (6, "f"),
    "bool": (7, "?"),
    "string": (8, ""),
    "uint64": (10, "Q"),
    "int64": (11, "q"),
    "float64": (12, "d"),
}
ARCH = "general.architecture"


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: str, value: object) -> bytes:
    if kind == "string":
        return string(value)  # type: ignore[arg-type]
    return struct.pack("<" + _KINDS[kind][1], value)


def key(name: str, kind: str, value: object) -> bytes:
    """One key with its value; kind "array[…]" takes a sequence."""
    head = string(name)
    if kind.startswith("array["):
        item = kind[6:-1]
        items = list(value)  # type: ignore[call-overload]
        body = b"".join(_value(item, x) for x in items)
        return head + struct.pack("<IIQ", 9, _KINDS[item][0], len(items)) + body
    return head + struct.pack("<I", _KINDS[kind][0]) + _value(kind, value)


def tensor(name: str, dims: Sequence[int], type_id: int = 0, offset: int = 0) -> bytes:
    """One tensor record; dims in ggml's order (row length first)."""
    dims_bytes = b"".join(struct.pack("<Q", dim % 2**64) for dim in dims)
    return string(name) + struct.pack("<I", len(dims)) + dims_bytes + struct.pack("<IQ", type_id, offset)


def gguf(
    keys: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; the counts can lie."""
    keys, tensors = list(keys), list(tensors)
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    padding = b"\0" * (-len(head) % alignment) if tensors else b""
    return head + padding + data


def float_tensors(names: Iterable[str], dims: Sequence[int] = (4, 4)) -> tuple[list[bytes], bytes]:
    """Records and data of float32 tensors of zeros, one after the other."""
    size = 4
    for dim in dims:
        size *= dim
    size = -(-size // 32) * 32
    names = list(names)
    return [tensor(name, dims, 0, i * size) for i, name in enumerate(names)], b"\0" * (size * len(names))


def byte_letters() -> list[str]:
    """The 256 letters that stand for bytes in GPT-2's vocabulary, by byte."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(moved)) for byte in range(256)]
