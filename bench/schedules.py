"""Every schedule on simulated engines, beside what the cost models of speculative decoding predict for it.

    python bench/schedules.py [--tokens 1500] [--jobs 4] [--cells 1,5,9] [--schedules lockstep,overlap,branches,auto]
                              [--json FILE] [--check]

A target decode of n rows takes T (1 + beta (n-1)) with T = 40 ms, a draft step c T for any number of branches; the draft's
best token is right with probability alpha, the next two have the target's token in 0.7 of the other cases; a message to the
draft worker and back takes L T (a proxy between real sockets). Real processes, which wait and compute nothing: several runs
share this machine (`--jobs`), at the price of some noise. The sessions see measured times alone.

Printed are speedups over plain decoding (median of runs in between, on a third of the tokens), each with its ratio to the
column of `CELLS` that it is held against: lockstep to "sequential" (at the n_max that the formula finds best), overlap to
"best wait", branches to "branches", auto to the best of these that can be reached (branches can where their drafting is
hidden, see `branches_hide`). `--check` exits 1 where overlap is below 0.95 of its column, branches below 0.92 of theirs
where they can be reached, or auto below 0.95 of the best one or below 0.98 of plain decoding. With fewer tokens the figures
scatter: draft lengths are learned, and texts are short.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.apart import Link, apart, configuration, run
from bench.theory import Costs, best_n, branches_hide, typical_seed
from outrider.config import schema

T_MS = 40.0
TAU = 0.7
N_MAX = 10  # the longest draft that sessions may choose
PROMPT = list(range(32, 64))
SCHEDULES = ("lockstep", "overlap", "branches", "auto")
MIN_OVERLAP, MIN_BRANCHES, MIN_AUTO, MIN_OF_PLAIN = 0.95, 0.92, 0.95, 0.98


@dataclass(frozen=True, slots=True)
class Cell:
    """Costs, and the speedups over plain decoding that event simulations of 6,000 tokens gave for them, each at its best
    draft length: in turn, a chain that never waits, a chain that waits as long as is best, branches at the target (their
    drafting hidden), and a drafter that costs nothing."""

    costs: Costs
    sequential: float
    never_wait: float
    best_wait: float
    branches: float
    free: float


def _cell(beta: float, c: float, alpha: float, trip: float, *speedups: float) -> Cell:
    return Cell(Costs(beta, c, alpha, trip, TAU), *speedups)


CELLS = (
    _cell(0.02, 0.05, 0.6, 0.0, 1.80, 1.49, 1.87, 2.03, 2.17),
    _cell(0.02, 0.05, 0.8, 0.0, 2.79, 2.41, 2.90, 3.43, 3.82),
    _cell(0.02, 0.05, 0.8, 0.5, 2.10, 2.41, 2.41, 3.11, 3.82),
    _cell(0.02, 0.05, 0.8, 2.0, 1.24, 1.61, 1.61, 2.43, 3.82),
    _cell(0.02, 0.20, 0.8, 0.0, 1.79, 2.16, 2.22, 2.71, 3.82),
    _cell(0.02, 0.20, 0.8, 2.0, 0.92, 1.45, 1.45, 2.04, 3.82),
    _cell(0.02, 0.20, 0.9, 0.0, 2.25, 2.93, 2.96, 3.48, 6.37),
    _cell(0.02, 0.40, 0.8, 0.0, 1.33, 1.65, 1.65, 1.69, 3.82),
    _cell(0.02, 0.40, 0.9, 0.0, 1.53, 1.99, 1.99, 1.82, 6.37),
    _cell(0.35, 0.05, 0.8, 0.0, 1.36, 1.32, 1.39, 1.42, 1.44),
    _cell(0.35, 0.20, 0.8, 0.0, 1.16, 1.31, 1.32, 1.39, 1.44),
    _cell(0.35, 0.20, 0.8, 0.5, 0.94, 1.30, 1.30, 1.33, 1.44),
    _cell(0.35, 0.40, 0.8, 0.0, 1.03, 1.29, 1.29, 1.34, 1.44),
    _cell(0.35, 0.40, 0.9, 2.0, 0.70, 1.32, 1.32, 1.44, 1.71),
)


def best_reachable(cell: Cell) -> float:
    """The best column that a schedule can reach: a drafter that costs nothing is a bound, not a schedule."""
    columns = [1.0, cell.sequential, cell.never_wait, cell.best_wait]
    return max([*columns, cell.branches] if branches_hide(cell.costs) else columns)


def column_of(cell: Cell, schedule: str) -> float:
    """What this schedule is held against."""
    match schedule:
        case "plain":
            return 1.0
        case "lockstep":
            return cell.sequential
        case "overlap":
            return cell.best_wait
        case "branches":
            return cell.branches
    return best_reachable(cell)


# --- runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """One run. The schedule "plain" has no draft worker."""

    cell: int
    schedule: str
    n_tokens: int
    seed: int = 0


@lru_cache
def _seed(alpha: float, n_tokens: int) -> int:
    return typical_seed(alpha, TAU, n_tokens, PROMPT)


def measure(job: Job) -> dict[str, Any]:
    """Tokens per second of a run, and what else tells how it went. Runs in a process of its own."""
    size = {"engine": "simulated", "ctx_size": job.n_tokens + 4 * len(PROMPT)}
    costs = CELLS[job.cell - 1].costs
    target = {"model": f"simulated:seed={job.seed},decode_ms={T_MS},beta={costs.beta}", **size}
    model = f"simulated:seed={job.seed},decode_ms={T_MS * costs.c},alpha={costs.alpha},tau={TAU}"
    draft = None if job.schedule == "plain" else {"model": model, **size}
    n_max = best_n(costs, "lockstep") if job.schedule == "lockstep" else N_MAX
    link = Link(costs.trip * T_MS / 1e3) if costs.trip else None
    with apart(configuration(target, draft, job.schedule, n_max, job.n_tokens), link) as pair:
        done = run(pair, PROMPT)
    timings = done.answer["timings"]
    return {
        "cell": job.cell,
        "schedule": job.schedule,
        "n_max": n_max,
        "per_second": done.per_second,
        "rounds": timings["rounds"],
        "acceptance": timings["draft_n_accepted"] / max(timings["draft_n"], 1),
        "coordinator_us_per_round": 1e6 * done.coordinator_s / timings["rounds"],
        "controller": done.answer["speculation"]["controller"],
    }


def measure_all(jobs: list[Job], n_at_once: int) -> Iterator[dict[str, Any]]:
    """Results as they come, in the order of the jobs."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_at_once, mp_context=spawn) as pool:
        yield from pool.map(measure, jobs)


# --- judging -----------------------------------------------------------------------------------------------------


def judge(row: dict[str, Any], plain: float) -> dict[str, Any]:
    """The row with its speedup, its ratio to what it is held against, and what it misses (None: nothing)."""
    cell, schedule = CELLS[row["cell"] - 1], row["schedule"]
    speedup, column = row["per_second"] / plain, column_of(cell, row["schedule"])
    least = {"overlap": MIN_OVERLAP, "auto": MIN_AUTO, "branches": MIN_BRANCHES if branches_hide(cell.costs) else 0.0}
    missed = None
    if speedup / column < least.get(schedule, 0.0):
        missed = f"{speedup / column:.2f} of its column, {least[schedule]} is asked for"
    elif schedule == "auto" and speedup < MIN_OF_PLAIN:
        missed = f"{speedup:.2f} of plain decoding, {MIN_OF_PLAIN} is asked for"
    return {**row, "costs": asdict(cell.costs), "speedup": speedup, "column": column, "missed": missed}


def judged(jobs: list[Job], n_at_once: int) -> list[dict[str, Any]]:
    """All rows, each told as it comes. Plain decoding costs the same in every cell: its median is what counts."""
    results, plains = [], []
    for result in measure_all(jobs, n_at_once):
        results.append(result)
        plains += [result["per_second"]] if result["schedule"] == "plain" else []
        print(line(judge(result, statistics.median(plains))), flush=True)
    return [judge(result, statistics.median(plains)) for result in results]


def line(row: dict[str, Any]) -> str:
    costs, schedule = row["costs"], row["schedule"]
    head = (
        f"{row['cell']:2}  beta {costs['beta']:.2f}  c {costs['c']:.2f}  alpha {costs['alpha']:.1f}"
        f"  L {costs['trip']:.1f}  {schedule:9}"
    )
    if schedule == "plain":
        return f"{head} {row['per_second']:5.2f} tokens/s, {row['per_second'] * T_MS / 1e3:.3f} per T"
    modes = " ".join(f"{mode} {n}" for mode, n in (row["controller"] or {}).get("rounds_by_mode", {}).items())
    return (
        f"{head} {row['speedup']:5.2f}  of {row['column']:4.2f}  = {row['speedup'] / row['column']:4.2f}"
        f"{'  MISSED' if row['missed'] else '        '}  {row['rounds']:4} rounds of"
        f" {row['coordinator_us_per_round']:4.0f} µs here  n_max {row['n_max']:2}  {modes}"
    )


def known_schedules(wanted: str, *more: str) -> list[str]:
    """Those of the wanted ones that this program has, or that are in `more`; the others are named."""
    names = wanted.split(",")
    missing = [name for name in names if name not in (*get_args(schema.Schedule), *more)]
    if missing:
        print(f"not in this program: {', '.join(missing)}", file=sys.stderr)
    return [name for name in names if name not in missing]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--cells", default=",".join(str(n) for n in range(1, len(CELLS) + 1)))
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    cells, schedules = [int(n) for n in options.cells.split(",")], known_schedules(options.schedules)
    seeds = {cell: _seed(CELLS[cell - 1].costs.alpha, options.tokens) for cell in cells}
    jobs = [
        Job(cell, schedule, options.tokens if schedule != "plain" else max(options.tokens // 3, 50), seeds[cell])
        for cell in cells
        for schedule in ("plain", *schedules)
    ]
    rows = judged(jobs, options.jobs)
    if options.json:
        options.json.write_text(json.dumps({"n_tokens": options.tokens, "rows": rows}, indent=2))
    missed = [row for row in rows if row["missed"]]
    for row in missed:
        print(f"cell {row['cell']} {row['schedule']}: {row['missed']}", file=sys.stderr)
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
