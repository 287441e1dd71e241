"""What the benchmarks share: running the program, and comparing what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

CODE_PROMPT = (
    "Write a Python function that returns the n-th Fibonacci number, iteratively, with type hints and a docstring."
    " Then show three example calls."
)
CHAT_PROMPT = "Why do leaves change their colour in autumn? Answer in a few sentences."


def answer(*flags: str) -> dict[str, Any]:
    """The object of `outrider run --json` with these flags; a failure ends the benchmark with the program's own line."""
    command = [sys.executable, "-m", "coordinator.cli", "run", "--json", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return dict(json.loads(done.stdout))


def speed(run: dict[str, Any]) -> float:
    """Generated tokens per second, the first one left out."""
    return float(run["timings"]["predicted_per_second"])


def acceptance(run: dict[str, Any]) -> float:
    """Accepted / verified drafted tokens."""
    timings = run["timings"]
    return float(timings["draft_n_accepted"] / timings["draft_n"]) if timings["draft_n"] else 0.0


def fork(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """Index of the first token that differs, where both have one."""
    return next((i for i, (ours, theirs) in enumerate(zip(tokens, others, strict=False)) if ours != theirs), None)
