"""By how much do the logits of a row depend on the rows beside it, in llama.cpp? It bounds the gaps at which runs may fork.

    python bench/batch_noise.py -m MODEL.gguf [-n 80] [--sizes 2,4,8] [--prompt TEXT] [--json FILE]

A text of `-n` greedy tokens is scored one row at a time, and then in batches of each size. For the two tokens that the
single row ranks first, the difference of their logits is taken in both; the table shows by how much it moved (median, 90 %,
largest), how many rows are the same bits, and the gaps of the rows where the best token is another one.

With quantised weights llama.cpp quantises the activations too. Kernels for one row and for several add in another order;
once a last bit decides which step an activation is rounded to, the rows after it differ by the noise of that quantisation.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.runs import CODE_PROMPT
from outrider.engine.base import Engine, Span
from outrider.engine.factory import create_engine
from outrider.engine.options import EngineOptions

Rows = NDArray[np.float32]


def greedy(engine: Engine, prompt: list[int], n: int) -> tuple[list[int], Rows]:
    """`n` tokens, and the logits behind each of them, evaluated one by one."""
    row = engine.decode([Span(0, 0, prompt, 1)]).logits[0]
    tokens: list[int] = []
    rows = []
    for _ in range(n):
        tokens.append(int(row.argmax()))
        row = engine.decode([Span(0, engine.length(0), tokens[-1:], 1)]).logits[0].copy()
        rows.append(row)
    return tokens, np.array(rows)


def in_batches(engine: Engine, prompt: list[int], tokens: list[int], size: int) -> Rows:
    """The same rows, `size` at a time."""
    engine.truncate(0, 0)
    engine.decode([Span(0, 0, prompt, 1)])
    rows = []
    for at in range(0, len(tokens), size):
        part = tokens[at : at + size]
        rows.append(engine.decode([Span(0, engine.length(0), part, len(part))]).logits.copy())
    return np.concatenate(rows)


def compare(single: Rows, batched: Rows, size: int) -> dict[str, Any]:
    best = np.argsort(single, axis=1)[:, -2:]
    gaps = np.diff(np.take_along_axis(single, best, 1), axis=1)[:, 0]
    moved = np.abs(np.diff(np.take_along_axis(batched, best, 1), axis=1)[:, 0] - gaps)
    changed = batched.argmax(1) != best[:, 1]
    return {
        "size": size,
        "median": float(np.median(moved)),
        "p90": float(np.quantile(moved, 0.9)),
        "max": float(moved.max()),
        "same_bits": float((single == batched).all(axis=1).mean()),
        "changed_gaps": [float(gap) for gap in gaps[changed]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True)
    parser.add_argument("-n", type=int, default=80)
    parser.add_argument("--sizes", default="2,4,8")
    parser.add_argument("--prompt", default=CODE_PROMPT)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine = create_engine("llama", options.m, EngineOptions())
    try:
        text = engine.tokenizer.render_chat([("user", options.prompt)])
        prompt = engine.tokenizer.encode(text, add_special=True, parse_special=True)
        tokens, single = greedy(engine, prompt, options.n)
        sizes = [int(size) for size in options.sizes.split(",")]
        rows = [compare(single, in_batches(engine, prompt, tokens, size), size) for size in sizes]
    finally:
        engine.close()
    for row in rows:
        median, p90, largest = row["median"], row["p90"], row["max"]
        changed = ", ".join(f"{gap:.3f}" for gap in row["changed_gaps"]) or "none"
        print(
            f"{row['size']:3} rows: the gap moves by {median:.4f}, {p90:.4f} (90 %), {largest:.4f} (largest);"
            f" {row['same_bits']:.0%} the same bits; other best token at gaps: {changed}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
