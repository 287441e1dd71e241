"""A worker process from its first line to its exit code. `python -m draft_worker` and `python -m target_worker` call `main`.

Nothing that computes is imported before the processors and thread counts of this process are set, since numpy and llama.cpp
read them once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from outrider.errors import OutriderError
from outrider.log import set_up_log
from outrider.types import WorkerRole
from outrider.worker.processors import pin, spin_little

if TYPE_CHECKING:
    from outrider.engine.base import Engine
    from outrider.worker.slots import SlotWorker

#: The launcher looks for this in front of the line that explains an end.
ERROR_PREFIX = "error: "
_PR_SET_PDEATHSIG = 1


def main(role: WorkerRole, make_worker: Callable[[Engine], SlotWorker[Any]]) -> int:
    """Run one worker; the exit code. Errors of a user are one line on standard error."""
    try:
        return _main(role, make_worker, sys.argv[1:])
    except OutriderError as error:
        print(f"{ERROR_PREFIX}{' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code


def _main(role: WorkerRole, make_worker: Callable[[Engine], SlotWorker[Any]], argv: Sequence[str]) -> int:
    from outrider.config import load_worker_config
    from outrider.config.sharing import share_processors

    config, launched = load_worker_config(argv, prog=f"python -m {role}_worker")
    worker = config.target if role == "target" else config.draft
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    if launched:
        _die_with_parent()
    set_up_log(config.log)
    pin(worker.cpus, worker.threads)
    if share_processors(config):
        spin_little()
    from outrider.worker.serve import serve

    return serve(role, config, make_worker)


def _end(signum: int, frame: object) -> None:
    # A worker owns nothing that outlives it, and an exception may not cross native code that called back.
    os._exit(128 + signum)


def _die_with_parent() -> None:
    """End when the launcher does, however it ends: by signal where the system offers it, and at the end of stdin.

    The signal is tied to the thread that started us, which is the launcher's main thread. Ctrl-C is for the launcher.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_stdin, name="lifeline", daemon=True).start()


def _watch_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
