"""Is a speculative run on the llama engine what plain decoding writes? Every fork is listed with the target's own gap.

llama.cpp's kernels round differently for batches of different shape, so two best logits that nearly tie may change places.
A fork is fair only where the target's gap between them is below 0.05, as scored token by token.

    python bench/forks.py -m TARGET.gguf -md DRAFT.gguf [--n-max 1,3,8] [-n 160] [--prompt TEXT] [--json FILE] [--check]

`--check` exits 1 if a fork has a larger gap, or the acceptance at n_max 3 is not above 75 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.runs import CODE_PROMPT, acceptance, answer, fork, speed
from outrider.engine.base import Span
from outrider.engine.factory import create_engine
from outrider.engine.options import EngineOptions

MAX_GAP = 0.05
MIN_ACCEPTANCE = 0.75


def gap(options: argparse.Namespace, generated: Sequence[int]) -> float:
    """Difference between the two best logits after prompt and `generated`, scored one token at a time."""
    target = create_engine(options.engine, options.m, EngineOptions(n_ctx=4096))
    try:
        text = target.tokenizer.render_chat([("user", options.prompt)])
        tokens = [*target.tokenizer.encode(text, add_special=True, parse_special=True), *generated]
        for position, token in enumerate(tokens):
            row = target.decode([Span(0, position, [token], 1)]).logits[0]
        best = np.partition(row, -2)[-2:]
        return float(best[1] - best[0])
    finally:
        target.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True)
    parser.add_argument("-md", required=True)
    parser.add_argument("--engine", default="llama")
    parser.add_argument("--n-max", default="1,3,8")
    parser.add_argument("-n", type=int, default=160)
    parser.add_argument("--prompt", default=CODE_PROMPT)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    common = ["--engine", options.engine, "-m", options.m, "-n", str(options.n), "--temp", "0"]
    common += ["-p", options.prompt, "--chat"]
    plain = answer(*common, "--spec-type", "none")
    print(f"plain     {len(plain['tokens'])} tokens, prompt of {plain['prompt_tokens']}, {speed(plain):.1f} tokens/s")
    rows = [row(options, common, plain, int(n_max)) for n_max in options.n_max.split(",")]
    if options.json:
        options.json.write_text(json.dumps({"plain": speed(plain), "runs": rows}, indent=2))
    bad = [r for r in rows if r["gap"] is not None and r["gap"] >= MAX_GAP]
    poor = [r for r in rows if r["n_max"] == 3 and r["acceptance"] <= MIN_ACCEPTANCE]
    return int(options.check and bool(bad or poor))


def row(options: argparse.Namespace, common: list[str], plain: dict[str, Any], n_max: int) -> dict[str, Any]:
    run = answer(*common, "-md", options.md, "--schedule", "lockstep", "--spec-draft-n-max", str(n_max))
    at = fork(plain["tokens"], run["tokens"])
    found = None if at is None else gap(options, plain["tokens"][:at])
    where = "equal" if at is None else f"forks at token {at}, gap {found:.4f}"
    rounds = run["timings"]["rounds"]
    print(f"n_max {n_max:2}  {acceptance(run):.1%} accepted, {rounds} rounds, {speed(run):.1f} tokens/s: {where}")
    return {"n_max": n_max, "acceptance": acceptance(run), "speed": speed(run), "fork": at, "gap": found}


if __name__ == "__main__":
    sys.exit(main())
