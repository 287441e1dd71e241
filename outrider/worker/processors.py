"""Which processors a worker computes on, and how its threads wait. Set before numpy or llama.cpp is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence

from outrider.errors import ConfigError

#: Every library that numpy may have been built with asks for its own.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: What says how long a thread of llama.cpp spins while it waits for the others of its process (GNU's OpenMP).
_SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
#: Long enough for threads that end nearly together (2,000 cost a target alone 1 to 2 %, 1,000 cost 5 %), and short enough
#: where one waits for its processor, which the other worker has (20,000 cost both two thirds). Else it spins 300,000 times.
_SPINS_OF_SHARED = "5000"


def spin_little() -> None:
    """Threads of llama.cpp give their processor up soon, unless the user said how they wait."""
    if not any(variable in os.environ for variable in _SPIN_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = _SPINS_OF_SHARED


def pin(cpus: Sequence[int], threads: int) -> None:
    """Keep this process on `cpus` (all where empty) and tell libraries to use `threads` threads (0: as many as cpus)."""
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except (OSError, ValueError):
            available = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            raise ConfigError(
                f"cpus: {','.join(map(str, cpus))} are not all available to this process (it may use {available})"
            ) from None
        except AttributeError:
            raise ConfigError("cpus: this system cannot pin a process to processors; leave the key out") from None
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(threads or n_cpus())


def n_cpus() -> int:
    """Processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
