"""How much memory processes on this machine hold, where the system tells it (Linux)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Memory(NamedTuple):
    """Bytes."""

    resident: int
    peak: int


def memory_of(pid: int) -> Memory | None:
    """None for a process that is gone, and on systems without /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines)
        return Memory(_bytes(values["VmRSS"]), _bytes(values["VmHWM"]))
    except (OSError, KeyError, ValueError):  # a process that has ended and was not waited for has no memory
        return None


def _bytes(value: str) -> int:
    number, unit = value.split()
    assert unit == "kB"
    return int(number) * 1024
