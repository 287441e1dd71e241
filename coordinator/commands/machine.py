"""What this machine has to give: memory and processors, as far as this process may use them."""

from __future__ import annotations

import os
from pathlib import Path

#: cgroup v2, then v1: limit and use of memory.
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that could be taken now: what the system calls available, within this process's own limit. None where
    the system does not say."""
    system = _meminfo(meminfo)
    rooms = [_room(Path(limit), Path(used)) for limit, used in _CGROUPS]
    return min((value for value in (system, *rooms) if value is not None), default=None)


def _meminfo(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _room(limit: Path, used: Path) -> int | None:
    """The cache of files counts as used there, although it gives way; so this is a lower bound."""
    try:
        return max(int(limit.read_text()) - int(used.read_text()), 0)
    except (OSError, ValueError):  # no such group, or no limit ("max")
        return None


def usable_cpus() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        return list(range(os.cpu_count() or 1))
