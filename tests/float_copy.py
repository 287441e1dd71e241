"""A copy of a GGUF model with float32 weights.

With quantised weights ggml quantises the activations too, so that the last bits in which batches of different shape
differ come out as whole steps of a quantiser (the mini draft: 0.1 in a logit). With float32 they stay last bits.
"""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFValueType, GGUFWriter

from outrider.engine.gguf_file import open_gguf


def write_float_copy(source: Path, path: Path) -> None:
    file = open_gguf(source)
    writer = GGUFWriter(path, file.architecture)
    for key, value in file.metadata.items():
        if key not in ("general.architecture", "general.file_type"):
            kind, _, item = file.header.kinds[key].partition("[")
            item_type = GGUFValueType[item.rstrip("]").upper()] if item else None
            writer.add_key_value(key, value, GGUFValueType[kind.upper()], item_type)
    for name in file.tensors:
        writer.add_tensor(name, file.tensor(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file.close()
