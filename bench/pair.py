"""Tokens per second of a real pair under every schedule, beside plain decoding, in interleaved runs.

    python bench/pair.py -m TARGET.gguf -md DRAFT.gguf [--engine llama] [--apart] [-n 120] [--repeat 3]
                         [--schedules plain,lockstep,overlap,auto] [--prompts code,chat,edit] [--json FILE]

`--apart` emulates two devices: target and draft are pinned to one processor each, with one thread each (the plain run too:
a target that has one processor). Without it both use all processors. The figures are medians of `--repeat` runs, and ratios
to the plain run of the same prompt. The texts of all runs are compared; forks are counted (see `forks.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.runs import CHAT_PROMPT, CODE_PROMPT, acceptance, answer, fork, speed

EDIT_PROMPT = """Return this file with the function `area` renamed to `surface` and nothing else changed.

```python
import math


class Circle:
    def __init__(self, radius: float) -> None:
        self.radius = radius

    def area(self) -> float:
        return math.pi * self.radius**2


class Square:
    def __init__(self, side: float) -> None:
        self.side = side

    def area(self) -> float:
        return self.side**2


def total(shapes: list[Circle | Square]) -> float:
    return sum(shape.area() for shape in shapes)
```
"""
PROMPTS = {"code": CODE_PROMPT, "chat": CHAT_PROMPT, "edit": EDIT_PROMPT}
APART = ["--cpus", "0", "--cpus-draft", "1", "-t", "1", "-td", "1"]


def flags_of(schedule: str, options: argparse.Namespace) -> list[str]:
    if schedule == "plain":
        return ["--spec-type", "none", *(["--cpus", "0", "-t", "1"] if options.apart else [])]
    speculation = ["-md", options.md, "--schedule", schedule, "--spec-draft-n-max", str(options.n_max)]
    return [*speculation, *(APART if options.apart else [])]


def measure(prompt: str, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Runs by schedule, interleaved."""
    common = ["--engine", options.engine, "-m", options.m, "-p", PROMPTS[prompt], "--chat"]
    common += ["-n", str(options.n), "--temp", "0"]
    runs: dict[str, list[dict[str, Any]]] = {schedule: [] for schedule in options.schedules.split(",")}
    for _ in range(options.repeat):
        for schedule, done in runs.items():
            done.append(answer(*common, *flags_of(schedule, options)))
    return runs


def table(prompt: str, runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    reference = next(iter(runs.values()))
    base, text = statistics.median(map(speed, reference)), reference[0]["tokens"]
    rows = []
    for schedule, done in runs.items():
        value = statistics.median(map(speed, done))
        forks = sum(fork(text, run["tokens"]) is not None for run in done)
        row = {"prompt": prompt, "schedule": schedule, "per_second": value, "ratio": value / base}
        row |= {"acceptance": acceptance(done[0]), "rounds": done[0]["timings"]["rounds"], "forks": forks}
        rows.append(row)
        print(
            f"{prompt:5} {schedule:9} {value:6.1f} tokens/s {row['ratio']:5.2f} x plain"
            f"   {row['acceptance']:4.0%} accepted, {row['rounds']} rounds, {forks} forks",
            flush=True,
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True)
    parser.add_argument("-md", required=True)
    parser.add_argument("--engine", default="llama")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("-n", type=int, default=120)
    parser.add_argument("--n-max", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--schedules", default="plain,lockstep,overlap,auto")
    parser.add_argument("--prompts", default="code,chat,edit")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [row for prompt in options.prompts.split(",") for row in table(prompt, measure(prompt, options))]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
