"""A GGUF model file: metadata as Python values, tensors as float32 arrays.

The header is read by `gguf_header` (bounded, and tens of times faster on large vocabularies than the reader of
the `gguf` package); the block formats are decoded by `gguf.quants`. This is the only module that imports `gguf`.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from outrider.engine.gguf_header import Header, TensorInfo, fail, map_gguf

__all__ = ["GgufFile", "TensorInfo", "open_gguf"]

#: Values decoded at a time: the decoder's temporaries stay in the cache, and memory at one tensor.
_CHUNK = 1 << 20


class GgufFile:
    """An open model file. Arrays that `tensor` returned stay valid after `close`."""

    def __init__(self, header: Header, data: mmap.mmap) -> None:
        self.header = header
        self.path: Path = header.path
        self.metadata: Mapping[str, object] = header.metadata
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        self._data: mmap.mmap | None = data
        self.architecture: str = _architecture(header)

    def get(self, key: str, kind: str) -> object | None:
        """The value of `key`, or None where it is absent. Raises ModelFileError if it is not of this `kind`.

        kind: as in `Header.kinds`, e.g. "uint32", "string", "array[string]".
        """
        found = self.header.kinds.get(key, kind)
        if found != kind:
            fail(self.path, f"{key} is of type {found}, not {kind}", "convert the model again")
        return self.metadata.get(key)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The values of a tensor, float32, in the shape of its TensorInfo; F32 is a read-only view of the file.

        Raises ModelFileError if the file has no such tensor, or its type cannot be decoded.
        """
        assert self._data is not None, "closed"
        info = self.tensors.get(name)
        if info is None:
            what = f"has no tensor {name!r}" if self.tensors else "has no tensors: it is a vocabulary-only file"
            fail(self.path, what, "use a complete model file")
        if info.type_name == "F32":
            return np.frombuffer(self._data, "<f4", info.n_bytes // 4, info.offset).reshape(info.shape)
        try:
            return _decoded(np.frombuffer(self._data, np.uint8, info.n_bytes, info.offset), info)
        except (NotImplementedError, KeyError):
            what = f"tensor {name!r} has type id {info.type_id} ({info.type_name}): unsupported quantisation"
            fail(self.path, what, "use another quantisation, or the llama engine")

    def close(self) -> None:
        """Let the file go; idempotent. Its memory is unmapped when the last array over it is gone."""
        self._data = None


def open_gguf(path: str | Path) -> GgufFile:
    """Open a complete, single-file model. Raises ModelFileError: one line with file, fault and what to do."""
    header, data = map_gguf(path)
    _refuse_shard(header)
    return GgufFile(header, data)


def _architecture(header: Header) -> str:
    value = header.metadata.get("general.architecture")
    if not isinstance(value, str) or not value:
        what = f"is {value!r}, a {header.kinds['general.architecture']}" if value is not None else "is missing"
        fail(header.path, f"general.architecture {what}; it must be the name of one", "convert the model again")
    return value


def _refuse_shard(header: Header) -> None:
    count, number = header.metadata.get("split.count", 0), header.metadata.get("split.no", 0)
    if not (isinstance(count, int) and isinstance(number, int)):
        fail(header.path, "split.count or split.no is not a number")
    if count > 1 and number < count:
        fail(
            header.path,
            f"is shard {number + 1} of {count} of a model",
            "merge the shards with `llama-gguf-split --merge FIRST_SHARD OUTPUT`",
        )
    if count > 1:
        fail(header.path, f"split.no is {number} although split.count is {count}")


def _decoded(raw: NDArray[np.uint8], info: TensorInfo) -> NDArray[np.float32]:
    """Decode whole rows, some at a time. Raises KeyError (type unknown to `gguf`) or NotImplementedError."""
    n_rows = int(np.prod(info.shape[:-1], dtype=np.int64))
    rows = raw.reshape(n_rows, -1)
    values = np.empty((n_rows, info.shape[-1]), np.float32)
    step = max(1, _CHUNK // info.shape[-1])
    for row in range(0, n_rows, step):
        values[row : row + step] = dequantize(rows[row : row + step], GGMLQuantizationType[info.type_name])
    return values.reshape(info.shape)
