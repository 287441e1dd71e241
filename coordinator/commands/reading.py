"""Asking a process of its own to read model files: the coordinator opens none, and no file can harm or hold it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from outrider.errors import EngineError, ModelFileError, OutriderError

#: A header with a large vocabulary takes about a second.
TIMEOUT_S = 60.0


def read_files(paths: Sequence[str], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """What `python -m outrider.inspection` says of the files. Raises ModelFileError if it dies or takes too long."""
    return _ask(paths, " and ".join(paths), ModelFileError, timeout_s)


def load_llama(timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """What llama.cpp's library says of itself. Raises EngineError if loading it fails, dies or takes too long."""
    return _ask(["--llama"], "llama.cpp's library", EngineError, timeout_s)


def _ask(arguments: Sequence[str], subject: str, error: type[OutriderError], timeout_s: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "outrider.inspection", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise error(
            f"{subject}: reading took more than {timeout_s:g} s and was ended; is the disk answering?"
        ) from None
    if done.returncode:
        raise error(f"{subject}: the process that read it {_how(done)}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _how(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no word")
    if done.returncode < 0:
        return f"was killed by {signal.Signals(-done.returncode).name}: {last}"
    return f"failed: {last}"
