"""`outrider keys DIR NAME…`: CURVE keys for connections over tcp."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider.wire.transport import generate_keys


def execute(folder: str, names: Sequence[str]) -> int:
    """Make a pair of keys for each name; the exit code. An existing file is never replaced."""
    for path in generate_keys(Path(folder), names):
        print(path)
    return 0
