"""Reads model files, or loads llama.cpp's library, and prints one JSON object.

    python -m outrider.inspection TARGET [DRAFT]   {"files": [facts or {"error": …}], "vocab": null or {…}}
    python -m outrider.inspection --llama          {"version": "0.3.36", "native": …, "devices": [[name, bytes free]]}

Exit code 0 even where a file is bad: the object says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from outrider.engine.factory import llama_version
from outrider.errors import ModelFileError
from outrider.inspection.facts import inspect_file
from outrider.inspection.pair import compare_vocabularies


def main(argv: Sequence[str]) -> int:
    print(json.dumps(llama() if list(argv) == ["--llama"] else files(argv)))
    return 0


def llama() -> dict[str, Any]:
    """The version of llama-cpp-python, null if it is not installed, and what its library says of itself."""
    version = llama_version()
    if version is None:
        return {"version": None, "native": "", "devices": []}
    from outrider.engine.llama_cpp import gpu_devices, native_version

    devices = [(device.name, device.free_bytes) for device in gpu_devices()]
    return {"version": version, "native": native_version(), "devices": devices}


def files(paths: Sequence[str]) -> dict[str, Any]:
    """Facts of each file, and of the vocabularies if there are two and both can be read."""
    found = [_one(path) for path in paths]
    both = len(found) == 2 and not any("error" in one for one in found)
    return {"files": found, "vocab": msgspec.to_builtins(compare_vocabularies(*paths)) if both else None}


def _one(path: str) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = msgspec.to_builtins(inspect_file(path))
    except ModelFileError as error:
        return {"error": str(error)}
    return facts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
