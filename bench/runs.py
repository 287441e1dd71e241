"""What the benchmarks share: running the program, and comparing what it wrote."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from outrider.engine.gguf_file import open_gguf
from outrider.engine.tokenizer import GgufTokenizer

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


@cache
def render_chat(model: str, text: str) -> str:
    """The message as the model is to read it, for `-p` of programs that are to apply no template of their own."""
    return GgufTokenizer(open_gguf(Path(model))).render_chat([("user", text)])


def speed(run: dict[str, Any]) -> float:
    """Generated tokens per second, the first one left out."""
    return float(run["timings"]["predicted_per_second"])


def acceptance(run: dict[str, Any]) -> float:
    """Accepted / verified drafted tokens."""
    timings = run["timings"]
    return float(timings["draft_n_accepted"] / timings["draft_n"]) if timings["draft_n"] else 0.0


def fork(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    """Index of the first token, or character, that differs, where both have one."""
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)


def interleaved(cases: Mapping[str, Callable[[], dict[str, Any]]], repeat: int) -> dict[str, list[dict[str, Any]]]:
    """The runs of each case, made in turns, so that a slow minute of the machine meets all of them."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(repeat):
        for name, case in cases.items():
            runs[name].append(case())
            print(f"{name}: {speed(runs[name][-1]):.1f} tokens/s", file=sys.stderr, flush=True)
    return runs


def summaries(runs: Mapping[str, Sequence[dict[str, Any]]], reference: str) -> list[dict[str, Any]]:
    """A row of figures for each case: medians, ratios to the case `reference`, and how many texts are not its text.

    Ends the benchmark if not all cases were given the same prompt.
    """
    lengths = {name: done[0]["prompt_tokens"] for name, done in runs.items()}
    if len(set(lengths.values())) > 1:
        sys.exit(f"not the same prompt: {lengths} tokens")
    base, text = statistics.median(map(speed, runs[reference])), runs[reference][0]["text"]
    return [summary(name, done, base, text) for name, done in runs.items()]


def summary(name: str, runs: Sequence[dict[str, Any]], base: float, text: str) -> dict[str, Any]:
    speeds = [speed(run) for run in runs]
    value = statistics.median(speeds)
    forks = [fork(text, run["text"]) for run in runs]
    return {
        "name": name,
        "per_second": value,
        "speeds": speeds,
        "ratio": value / base,
        "acceptance": acceptance(runs[0]),
        "rounds": runs[0]["timings"]["rounds"],
        "tokens": runs[0]["timings"]["predicted_n"],
        "forks": [at for at in forks if at is not None],
    }


def line(row: Mapping[str, Any]) -> str:
    forks = f", {len(row['forks'])} forks, the first at character {min(row['forks'])}" if row["forks"] else ""
    return (
        f"{row['name']:36} {row['per_second']:6.1f} tokens/s {row['ratio']:5.2f} x plain"
        f"   {row['acceptance']:4.0%} accepted, {row['tokens']} tokens in {row['rounds']} rounds{forks}"
    )


def best(rows: Mapping[str, float], names: Sequence[str]) -> float:
    """The highest of these figures; 0 where there is none of them."""
    return max((rows[name] for name in names if name in rows), default=0.0)


def verdict(missed: Sequence[str]) -> int:
    """The exit code of `--check`, after a line for each condition that was missed."""
    for condition in missed:
        print(f"missed: {condition}")
    return int(bool(missed))
