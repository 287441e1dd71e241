"""Which kind of draft a model file is, from its header alone, as llama.cpp decides it.

Source: `common_speculative_types_from_gguf` in llama.cpp's `common/speculative.cpp`. Where llama.cpp aborts the
process, ModelFileError is raised. A file that cannot be read is no draft of any kind there; here `read_header` says
why it cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.errors import ModelFileError

if TYPE_CHECKING:
    from outrider.engine.gguf_header import Header


def detect_types(header: Header) -> list[str]:
    """The types of speculation that this file is made for; empty for an ordinary model.

    Any model can be the draft of draft-simple, so an ordinary file says nothing of it. An EAGLE-3 draft is not
    recognised either, as in llama.cpp: `is_eagle3` tells. Raises ModelFileError if the number of blocks, which decides
    where a multi-token-prediction head would be, is missing or no uint32.
    """
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        return []
    if architecture == "dflash":
        return ["draft-dspark" if "markov_w1.weight" in header.tensors else "draft-dflash"]
    last = (_block_count(header, architecture) - 1) % 2**32  # llama.cpp counts in 32 bits: 0 blocks wrap around
    return ["draft-mtp"] if f"blk.{last}.nextn.eh_proj.weight" in header.tensors else []


def is_eagle3(header: Header) -> bool:
    """A draft for draft-eagle3, by its architecture."""
    return header.metadata.get("general.architecture") == "eagle3"


def _block_count(header: Header, architecture: str) -> int:
    key = f"{architecture}.block_count"
    kind, count = header.kinds.get(key), header.metadata.get(key)
    if kind != "uint32" or not isinstance(count, int):
        what = "is missing" if kind is None else f"is of type {kind}, not uint32"
        raise ModelFileError(f"{header.path}: {key!a} {what}; convert the model again")
    return count
