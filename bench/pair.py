"""Tokens per second of real pairs under every schedule, beside plain decoding and llama.cpp's own, in interleaved runs.

    python bench/pair.py -m TARGET.gguf … -md DRAFT.gguf [--apart] [-n 120] [--repeat 3] [--prompts code,chat,edit]
                         [--spec-type draft-simple]
                         [--schedules plain,lockstep,overlap,auto] [--peer-binary llama-speculative-simple]
                         [--json FILE] [--check]

With `--peer-binary` (see `peer.py`) llama.cpp decodes plainly and with the draft model in the same turns, at the n_max of
2 to 8 that was best for the prompt in one run each; our lockstep, which is its order, has the same n_max. The other
schedules choose lengths of up to `--n-max`. `auto` also looks up what the text repeats, unless `--spec-type` is given.

`--apart` emulates two devices: target and draft are pinned to one processor each, with one thread each (the plain run too:
a target that has one processor). llama.cpp is one process with one thread, which drafts and verifies by turns: what it
does is the same wherever each half of it runs, so it is pinned to the target's processor. Without `--apart` every program
uses all processors.

The figures are medians of `--repeat` runs, and ratios to the plain run of the same target and prompt. Texts are compared
with its text; forks are counted (see `forks.py`). `--check` exits 1 where a figure is missed, 2 without a peer:

- apart: `auto` at least 0.97 of the best of all others on every prompt; on the code prompt 1.4 times llama.cpp's
  speculation with a Q4_0 target, 1.3 times with a BF16 one;
- otherwise: plain at least 0.97 of llama.cpp's plain, `auto` at least 0.97 of the best of plain and llama.cpp's speculation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.peer import PLAIN, add_peer_option, peer_answer
from bench.runs import CHAT_PROMPT, CODE_PROMPT, answer, best, interleaved, line, render_chat, speed, summaries, verdict
from outrider.config.schema import Schedule
from outrider.engine.gguf_file import open_gguf

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
APART = ("--cpus", "0", "--cpus-draft", "1", "-t", "1", "-td", "1")
PEER, PEER_PLAIN = "llama.cpp", "llama.cpp plain"
PEER_LENGTHS = range(2, 9)
LOCKSTEP_LENGTH = 3  # where no peer has shown a better one

MIN_SHARE = 0.97
#: general.file_type -> how many times as fast as llama.cpp's speculation, with two devices, on the code prompt.
MIN_SPEEDUP = {2: 1.4, 32: 1.3}

Case = Callable[[], dict[str, Any]]


def our_case(target: str, prompt: str, schedule: str, n_max: int, options: argparse.Namespace) -> Case:
    flags = ["--engine", options.engine, "-m", target, "-p", prompt, "-n", str(options.n), "--temp", "0"]
    if schedule == "plain":
        flags += ["--spec-type", "none", *(("--cpus", "0", "-t", "1") if options.apart else ())]
    else:
        flags += ["-md", options.md, "--schedule", schedule, "--spec-draft-n-max", str(n_max)]
        flags += APART if options.apart else ()
        flags += ["--spec-type", options.spec_type] if options.spec_type else ()
    return partial(answer, *flags)


def peer_case(target: str, prompt: str, n_max: int, options: argparse.Namespace) -> Case:
    """llama.cpp with drafts of up to `n_max` tokens; 0: plain."""
    drafting = ("--spec-type", "draft-simple", "-md", options.md, "--spec-draft-n-max", str(n_max))
    flags = ["-m", target, "-n", str(options.n), *(drafting if n_max else PLAIN)]
    pinned: dict[str, Any] = {"threads": 1, "cpus": "0"} if options.apart else {}
    return partial(peer_answer, options.peer_binary, prompt, *flags, **pinned)


def best_length(target: str, prompt: str, options: argparse.Namespace) -> int:
    return max(PEER_LENGTHS, key=lambda n_max: speed(peer_case(target, prompt, n_max, options)()))


def measure(target: str, prompt: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each program and schedule."""
    peer_length = best_length(target, prompt, options) if options.peer_binary else LOCKSTEP_LENGTH
    cases = {
        schedule: our_case(target, prompt, schedule, peer_length if schedule == "lockstep" else options.n_max, options)
        for schedule in options.schedules.split(",")
    }
    if options.peer_binary:
        cases |= {PEER_PLAIN: peer_case(target, prompt, 0, options)}
        cases |= {PEER: peer_case(target, prompt, peer_length, options)}
    rows = summaries(interleaved(cases, options.repeat), "plain")
    lengths = {"lockstep": peer_length, PEER: peer_length, "plain": 0, PEER_PLAIN: 0}
    return [{**row, "n_max": lengths.get(row["name"], options.n_max)} for row in rows]


def missed(rates: Mapping[str, float], prompt: str, file_type: object, apart: bool) -> list[str]:
    """The conditions of `--check` that these figures do not meet. rates: tokens per second by schedule or program."""
    others = [name for name in rates if name != "auto"] if apart else ["plain", PEER]
    limits = {"auto": (MIN_SHARE * best(rates, others), f"{MIN_SHARE} of the best of {', '.join(others)}")}
    if not apart:
        limits["plain"] = (MIN_SHARE * rates[PEER_PLAIN], f"{MIN_SHARE} of {PEER_PLAIN}")
    found = [(name, limit, what) for name, (limit, what) in limits.items() if rates[name] < limit]
    factor = MIN_SPEEDUP.get(file_type) if apart and prompt == "code" and isinstance(file_type, int) else None
    if factor and rates["auto"] < factor * rates[PEER]:
        found.append(("auto", factor * rates[PEER], f"{factor} x {PEER}"))
    return [f"{prompt}: {name} {rates[name]:.1f} tokens/s, {what} is {limit:.1f}" for name, limit, what in found]


def main() -> int:
    options = parsed_options()
    cells, failures = [], []
    for target in options.m:
        file_type = open_gguf(Path(target)).metadata.get("general.file_type")
        for prompt in options.prompts.split(","):
            rows = measure(target, render_chat(target, PROMPTS[prompt]), options)
            print(f"{Path(target).name}, {prompt}", *map(line, rows), sep="\n", flush=True)
            cells.append({"target": Path(target).name, "prompt": prompt, "apart": options.apart, "rows": rows})
            if options.check:
                rates = {row["name"]: row["per_second"] for row in rows}
                failures += missed(rates, prompt, file_type, options.apart)
    if options.json:
        options.json.write_text(json.dumps(cells, indent=2))
    return verdict(failures)


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True, nargs="+")
    parser.add_argument("-md", required=True)
    parser.add_argument("--engine", default="llama")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("-n", type=int, default=120)
    parser.add_argument("--n-max", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--schedules", default=",".join(["plain", *get_args(Schedule)]))
    parser.add_argument("--spec-type")
    parser.add_argument("--prompts", default="code,chat,edit")
    add_peer_option(parser)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check and not options.peer_binary:
        parser.error("--check compares with llama.cpp: give --peer-binary, or install xllamacpp")
    wanted = {"plain", "auto"} if options.check else {"plain"}
    if not wanted <= set(options.schedules.split(",")):
        parser.error(f"--schedules must name {' and '.join(sorted(wanted))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
