"""What a draft costs without a model: time per call of each look-up speculator, by length of the history.

    python -m bench.ngram [--check] [--json] [--lengths 1024,…] [--types ngram-mod,…] [--rounds N] [--repeats N]

The histories are made up: `text` has Zipf-distributed tokens and repeats earlier passages with small edits, as code and
chats do; `constant` is one token over and over; `alternating` two of them. After each prompt the stream goes on in the
same manner, and every round drafts, is verified against the stream, and accepts. Times are microseconds of CPU time:
`begin` once per prompt, `first` the first draft call after it, `median` and `worst` over the further calls; each is the
median over the repeats. `--check`: exit 1 unless first and median are under 200 µs at 32,768 tokens of text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from outrider.speculators.base import DraftParams
from outrider.speculators.factory import make_chain
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import LOOKUP_TYPES, NgramModParams, SpeculatorParams

LIMIT_US = 200.0
CHECKED_LEN = 32768
LENGTHS = (1024, 8192, CHECKED_LEN, 131072)
KINDS = ("text", "constant", "alternating")
N_VOCAB = 32000

#: The default n_min of ngram-mod, 48, hardly ever drafts; its calls would look too cheap.
PARAMS = SpeculatorParams(ngram_mod=NgramModParams(n_min=4))


@dataclass(frozen=True)
class Row:
    """Microseconds, and how many tokens a round drafted and had accepted on average."""

    type: str
    history: str
    length: int
    begin_us: float
    first_us: float
    median_us: float
    worst_us: float
    drafted_per_round: float
    accepted_per_round: float


def make_stream(kind: str, length: int, rng: np.random.Generator) -> list[int]:
    """`length` tokens of one of KINDS."""
    if kind == "constant":
        return [7] * length
    if kind == "alternating":
        return ([7, 11] * (length // 2 + 1))[:length]
    stream: list[int] = []
    while len(stream) < length:
        if len(stream) > 256 and rng.random() < 0.5:
            start = int(rng.integers(len(stream) - 128))
            passage = stream[start : start + int(rng.integers(16, 128))]
            passage[int(rng.integers(len(passage)))] = int(rng.integers(N_VOCAB))
            stream += passage
        else:
            stream += (rng.zipf(1.3, int(rng.integers(8, 64))) % N_VOCAB).tolist()
    return stream[:length]


def run_once(name: str, stream: Sequence[int], length: int, n_rounds: int) -> tuple[float, list[float], int, int]:
    """begin, and the draft calls of one prompt of `length` tokens, in µs; tokens drafted and accepted."""
    chain = make_chain([name], PARAMS)
    text = TokenArray(stream[:length])
    start = time.thread_time()
    chain.begin(0, text)
    begin_us = (time.thread_time() - start) * 1e6
    calls: list[float] = []
    n_drafted = n_accepted = 0
    while len(calls) < n_rounds and len(text) + 80 < len(stream):
        pos = len(text)
        request = DraftParams(0, stream[pos], pos, text)
        start = time.thread_time()
        chain.draft([request])
        calls.append((time.thread_time() - start) * 1e6)
        draft = request.result
        accepted = next((i for i, token in enumerate(draft) if token != stream[pos + 1 + i]), len(draft))
        if draft:
            chain.accept(0, accepted)
        n_drafted, n_accepted = n_drafted + len(draft), n_accepted + accepted
        text.extend(stream[pos : pos + accepted + 1])
    return begin_us, calls, n_drafted, n_accepted


def measure(name: str, kind: str, length: int, n_rounds: int, n_repeats: int, seed: int) -> Row:
    runs = []
    for repeat in range(n_repeats):
        stream = make_stream(kind, length + 80 * (n_rounds + 1), np.random.default_rng(seed + repeat))
        runs.append(run_once(name, stream, length, n_rounds))
    n_calls = sum(len(calls) for _, calls, _, _ in runs)
    return Row(
        type=name,
        history=kind,
        length=length,
        begin_us=round(statistics.median(run[0] for run in runs), 1),
        first_us=round(statistics.median(run[1][0] for run in runs), 1),
        median_us=round(statistics.median(statistics.median(run[1][1:]) for run in runs), 1),
        worst_us=round(statistics.median(max(run[1][1:]) for run in runs), 1),
        drafted_per_round=round(sum(run[2] for run in runs) / n_calls, 2),
        accepted_per_round=round(sum(run[3] for run in runs) / n_calls, 2),
    )


def too_slow(rows: Sequence[Row]) -> list[str]:
    """What is over the limit at the checked length."""
    checked = [row for row in rows if row.history == "text" and row.length == CHECKED_LEN]
    return [
        f"{row.type}: {what} {value} µs at {row.length} tokens, over {LIMIT_US:g}"
        for row in checked
        for what, value in (("first call", row.first_us), ("median", row.median_us))
        if value >= LIMIT_US
    ]


def table(rows: Sequence[Row]) -> str:
    columns = ("begin", "first", "median", "worst", "draft", "acc")
    lines = [f"{'type':14} {'history':12} {'tokens':>7}" + "".join(f" {name:>8}" for name in columns)]
    for r in rows:
        values = (r.begin_us, r.first_us, r.median_us, r.worst_us, r.drafted_per_round, r.accepted_per_round)
        lines.append(f"{r.type:14} {r.history:12} {r.length:7}" + "".join(f" {value:8.1f}" for value in values))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ngram", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help=f"exit 1 unless under {LIMIT_US:g} µs at {CHECKED_LEN} tokens"
    )
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    parser.add_argument("--types", default=",".join(LOOKUP_TYPES))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--histories", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    lengths = [int(length) for length in args.lengths.split(",")]
    rows = [
        measure(name, kind, length, args.rounds, args.repeats, args.seed)
        for kind in args.histories.split(",")
        for length in lengths
        for name in args.types.split(",")
    ]
    print(json.dumps([asdict(row) for row in rows]) if args.json else table(rows))
    slow = too_slow(rows) if args.check else []
    for line in slow:
        print(line, file=sys.stderr)
    return int(bool(slow))


if __name__ == "__main__":
    raise SystemExit(main())
