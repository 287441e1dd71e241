"""Tokens per second of the look-up speculators on a real target that copies a file with edits, beside llama.cpp's own.

    python bench/ngram_pair.py -m TARGET.gguf [-md DRAFT.gguf] [--types ngram-simple,…,ngram-simple+draft-simple]
                               [-n 600] [--repeat 5] [--peer-binary llama-server] [--json FILE] [--check]

The prompt (`prompts/rename.txt`) is a Python file of 113 lines that is to be returned with two names replaced. Plain
decoding and each of the types run in turns; with `--peer-binary` (see `peer.py`) so do llama.cpp's plain decoding and its
types of the same names, with as many threads. `A+B` is the chain of A and B; chains with draft-simple need `-md`. The
figures are medians. The order is `lockstep`, llama.cpp's own, unless `--schedule` says otherwise.

`--check` exits 1 unless each type reaches 0.97 of llama.cpp's same type, our best type llama.cpp's best, and is faster
than plain decoding; 2 where there is no `--peer-binary` to compare with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.peer import add_peer_option, peer_answer, speculation
from bench.runs import answer, best, interleaved, line, render_chat, summaries, verdict
from outrider.config.schema import Schedule
from outrider.speculators.types import LOOKUP_TYPES

PROMPT = Path(__file__).parent / "prompts" / "rename.txt"
CHAINS = ("ngram-simple+draft-simple", "ngram-suffix+draft-simple")
OURS_ALONE = "ngram-suffix"
PEER = "llama.cpp "
MIN_SHARE = 0.97


def cases_of(options: argparse.Namespace, types: list[str]) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is to be run, by name: ours, and llama.cpp's behind each of them."""
    prompt = render_chat(options.m, PROMPT.read_text())
    both = ["-m", options.m, "-n", str(options.n)]
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    for name in ["plain", *types]:
        wanted = "none" if name == "plain" else name.replace("+", ",")
        ours = ["--engine", "llama", "-p", prompt, "--temp", "0", "--spec-type", wanted, "--schedule", options.schedule]
        model = ["-md", options.md, "--spec-draft-n-max", str(options.n_max)] if "draft-simple" in wanted else []
        cases[name] = partial(answer, *both, *ours, *model)
        if options.peer_binary and OURS_ALONE not in wanted:
            flags = speculation(wanted, options.md, options.n_max)
            cases[PEER + name] = partial(peer_answer, options.peer_binary, prompt, *both, *flags)
    return cases


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """The conditions of `--check` that these rows do not meet."""
    rates = {row["name"]: row["per_second"] for row in rows}
    ours = [name for name in rates if name != "plain" and not name.startswith(PEER)]
    theirs = [name for name in rates if name.startswith(PEER)]
    found = [
        f"{name}: {rates[name]:.1f} tokens/s, under {MIN_SHARE} of llama.cpp's {rates[PEER + name]:.1f}"
        for name in ours
        if PEER + name in rates and rates[name] < MIN_SHARE * rates[PEER + name]
    ]
    for what, limit in (("llama.cpp's best", best(rates, theirs)), ("plain decoding", rates["plain"])):
        if best(rates, ours) < limit:
            found.append(f"our best type: {best(rates, ours):.1f} tokens/s, {what}: {limit:.1f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True)
    parser.add_argument("-md")
    parser.add_argument("--types")
    parser.add_argument("--schedule", default="lockstep", choices=get_args(Schedule))
    parser.add_argument("-n", type=int, default=600)
    parser.add_argument("--n-max", type=int, default=3, help="of draft-simple, ours and llama.cpp's")
    parser.add_argument("--repeat", type=int, default=5)
    add_peer_option(parser)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    types = options.types.split(",") if options.types else [*LOOKUP_TYPES, *(CHAINS if options.md else ())]
    if options.check and not options.peer_binary:
        parser.error("--check compares with llama.cpp: give --peer-binary, or install xllamacpp")
    if not options.md and any("draft-simple" in name for name in types):
        parser.error("draft-simple needs -md")
    rows = summaries(interleaved(cases_of(options, types), options.repeat), "plain")
    print("\n".join(map(line, rows)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    return verdict(missed(rows)) if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
