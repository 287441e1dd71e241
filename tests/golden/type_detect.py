"""The types that a model file is recognised as. The files are made from the recorded descriptions."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from outrider.engine.gguf_header import read_header
from outrider.errors import ModelFileError
from outrider.speculators.detect import detect_types
from tests.gguf_bytes import ARCH, float_tensors, gguf, key

_RAW = {"empty": b"", "garbage": b"not a model file at all....", "magic_only": b"GGUF"}
_KINDS = {"string": "string", "u32": "uint32", "u64": "uint64", "i32": "int32"}


def check(path: Path, data: dict[str, Any]) -> list[str]:
    """Differences between the recorded result and `detect_types`; empty = match."""
    recorded = "an error" if data["result"]["crashed"] else data["result"]["types"]
    ours = detect(data["spec"])
    return [] if ours == recorded else [f"{path.name}: ours {ours}, recorded {recorded}"]


def detect(spec: dict[str, Any]) -> list[str] | str:
    """The types of the described file; "an error" where we raise."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        content = file_bytes(spec)
        if content is not None:
            path.write_bytes(content)
        try:
            header = read_header(path)
        except ModelFileError:
            return []  # nothing is detected in a file that cannot be read
        try:
            return detect_types(header)
        except ModelFileError:
            return "an error"


def file_bytes(spec: dict[str, Any]) -> bytes | None:
    """The described file; None: there is none."""
    if "raw" in spec:
        return _RAW.get(spec["raw"])
    keys = []
    if spec["arch"] is not None:
        kind = _KINDS[spec.get("arch_type", "string")]
        keys.append(key(ARCH, kind, spec["arch"] if kind == "string" else int(spec["arch"])))
    if spec["block_count"] is not None:
        kind = _KINDS[spec.get("block_count_type", "u32")]
        keys.append(key(f"{spec['arch'] or 'x'}.block_count", kind, spec["block_count"]))
    return gguf(keys, *float_tensors(spec["tensors"]))
