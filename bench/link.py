"""Every schedule with the draft worker behind a link of 0 to 100 ms, beside the closed forms of `theory.py`.

    python bench/link.py -m TARGET.gguf -md DRAFT.gguf [--engine llama] [--cpus 0] [--cpus-draft 1]
    python bench/link.py --simulated
                         [--round-trips 0,5,20,50,100] [--jitter 0.1] [-n 96] [--repeat 3] [--n-max 10] [--prompt code]
                         [--schedules plain,lockstep,overlap,branches,auto] [--json FILE] [--check]

The draft worker connects by tcp with CURVE keys through `link_proxy.py`, which delays both ways; the target is near the
coordinator. Two devices are emulated by pinning each worker to a processor. `--jitter` is a part of the round trip, added
evenly from 0 each way. Runs are interleaved; figures are medians.

A first pair of runs without delay measures what the closed forms take: T, the cost v(n) of a longer verification, the draft
step c, the acceptance alpha. Lockstep then runs at the draft length that its formula finds best for each link, the other
schedules choose up to `--n-max`. Predicted are tokens per second of the same formulas, auto the best that can be reached.

`--check` exits 1 where auto is below 0.97 of plain decoding, or below 1.3 of lockstep at 50 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.apart import Link, Run, apart, configuration, run
from bench.pair import PROMPTS
from bench.runs import fork
from bench.schedules import known_schedules
from bench.theory import Costs, best_n, branches_hide, speed
from coordinator.commands.run import tokenize
from outrider.types import ChatMessage

SIMULATED_T_MS = 40.0
SIMULATED = Costs(beta=0.1, c=0.2, alpha=0.8)
#: Draft length of the run that measures costs.
N_FIRST = 3
MIN_OF_PLAIN, MIN_OF_LOCKSTEP, AT_MS = 0.97, 1.3, 50.0


@dataclass(frozen=True, slots=True)
class Models:
    """Sections of the configuration for the two workers, and the prompt: a text for real models, else token ids."""

    target: dict[str, Any]
    draft: dict[str, Any]
    prompt: str | list[int]


def models_of(options: argparse.Namespace) -> Models:
    if options.simulated:
        size = {"engine": "simulated", "ctx_size": options.n + 100}
        costs, t_ms = SIMULATED, SIMULATED_T_MS
        slow = f"simulated:seed=1,decode_ms={t_ms},beta={costs.beta}"
        fast = f"simulated:seed=1,decode_ms={t_ms * costs.c},alpha={costs.alpha},tau={costs.tau}"
        return Models({"model": slow, **size}, {"model": fast, **size}, list(range(32, 64)))
    target, draft = (
        worker(options.engine, options.m, options.cpus),
        worker(options.engine, options.md, options.cpus_draft),
    )
    return Models(target, draft, PROMPTS[options.prompt])


def worker(engine: str, model: str, cpus: str) -> dict[str, Any]:
    """One that has these processors, with commas between, to itself."""
    numbers = [int(number) for number in cpus.split(",") if number]
    path = str(Path(model).resolve())
    return {"model": path, "engine": engine, "ctx_size": 2048, "cpus": numbers, "threads": len(numbers)}


def measure(models: Models, schedule: str, n_max: int, n: int, link: Link) -> Run:
    """One answer of a fresh pair."""
    draft = None if schedule == "plain" else models.draft
    with apart(configuration(models.target, draft, schedule, n_max, n), link) as pair:
        prompt = models.prompt
        if isinstance(prompt, str):
            prompt = tokenize(pair.service, prompt, [ChatMessage("user", prompt)], pair.signals)
        return run(pair, prompt)


# --- costs -------------------------------------------------------------------------------------------------------


def costs_of(plain: Run, lockstep: Run) -> tuple[float, Costs]:
    """T in seconds, and the rest of what the closed forms take, from two runs without delay."""
    alone, timings = plain.answer["timings"], lockstep.answer["timings"]
    t_s = alone["target_decode_ms"] / alone["rounds"] / 1e3
    n_drafted = timings["draft_n"] / timings["rounds"]
    verify = timings["target_decode_ms"] / timings["rounds"] / 1e3 / t_s
    step = timings["draft_decode_ms"] / timings["draft_n"] / 1e3 / t_s
    return t_s, Costs(max((verify - 1) / n_drafted, 0.0), step, acceptance_of(timings))


def acceptance_of(timings: dict[str, Any]) -> float:
    """How often a drafted token is right if those before it were: what stands behind a mismatch decides nothing."""
    drafted, accepted = timings["draft_n_per_pos"], timings["draft_n_accepted_per_pos"]
    decided = [min(n, before) for n, before in zip(drafted, [drafted[0], *accepted], strict=False)]
    return float(sum(accepted) / sum(decided))


def predicted(costs: Costs, schedule: str, n_max: int) -> float:
    """Tokens per T by the closed form: of lockstep at `n_max`, of the others at their best length. Where branches cannot
    be hidden theirs is a bound, and not among those of which auto should be the best."""
    match schedule:
        case "lockstep":
            return speed(costs, "lockstep", n_max)
        case "auto":
            kinds = ["plain", "lockstep", "overlap", *(["branches"] if branches_hide(costs) else [])]
            return max(predicted(costs, kind, best_n(costs, kind)) for kind in kinds)
    return speed(costs, schedule, best_n(costs, schedule))


# --- the table ---------------------------------------------------------------------------------------------------


def rows_of(
    ms: float, runs: dict[str, list[Run]], n_max: dict[str, int], t_s: float, costs: Costs
) -> list[dict[str, Any]]:
    costs, text = replace(costs, trip=ms / 1e3 / t_s), runs["plain"][0].answer["tokens"]
    plain = statistics.median(run.per_second for run in runs["plain"])
    rows = []
    for schedule, done in runs.items():
        value = statistics.median(run.per_second for run in done)
        row = {"round_trip_ms": ms, "schedule": schedule, "n_max": n_max[schedule], "per_second": value}
        row |= {"ratio": value / plain, "predicted": predicted(costs, schedule, n_max[schedule]) / t_s}
        row |= {"rounds": done[0].answer["timings"]["rounds"]}
        row |= {"bytes_per_round": statistics.median(run.n_bytes / rounds(run) for run in done)}
        row |= {"coordinator_us_per_round": statistics.median(1e6 * run.coordinator_s / rounds(run) for run in done)}
        row |= {"forks": sum(fork(text, run.answer["tokens"]) is not None for run in done)}
        rows.append(row)
    return rows


def rounds(run: Run) -> int:
    return int(run.answer["timings"]["rounds"])


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['round_trip_ms']:5.0f} ms  {row['schedule']:9} {row['per_second']:6.1f} tokens/s  {row['ratio']:5.2f} x plain"
        f"  predicted {row['predicted']:6.1f}   n_max {row['n_max']:2}  {row['rounds']:4} rounds"
        f"  {row['bytes_per_round']:5.0f} bytes, {row['coordinator_us_per_round']:5.0f} µs per round  {row['forks']} forks"
    )


def misses(rows: list[dict[str, Any]], exact: bool) -> list[str]:
    """`exact`: these models write one text, whatever the batches."""
    speeds = {(row["round_trip_ms"], row["schedule"]): row["per_second"] for row in rows}
    found = [
        f"{row['round_trip_ms']:.0f} ms: {row['schedule']} wrote another text" for row in rows if exact and row["forks"]
    ]
    for (ms, schedule), value in speeds.items():
        if schedule != "auto":
            continue
        if value < MIN_OF_PLAIN * speeds[ms, "plain"]:
            found.append(f"{ms:.0f} ms: auto is {value / speeds[ms, 'plain']:.2f} of plain decoding")
        if ms == AT_MS and (ms, "lockstep") in speeds and value < MIN_OF_LOCKSTEP * speeds[ms, "lockstep"]:
            found.append(f"{ms:.0f} ms: auto is {value / speeds[ms, 'lockstep']:.2f} of lockstep")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m")
    parser.add_argument("-md")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--engine", default="llama")
    parser.add_argument("--cpus", default="0")
    parser.add_argument("--cpus-draft", default="1")
    parser.add_argument("--round-trips", default="0,5,20,50,100")
    parser.add_argument("--jitter", type=float, default=0.1)
    parser.add_argument("-n", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--n-max", type=int, default=10)
    parser.add_argument("--prompt", choices=PROMPTS, default="code")
    parser.add_argument("--schedules", default="plain,lockstep,overlap,branches,auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not options.simulated and not (options.m and options.md):
        parser.error("give -m and -md, or --simulated")
    rows, found = table(options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    for miss in found:
        print(miss, file=sys.stderr)
    return int(options.check and bool(found))


def table(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    models, rows = models_of(options), []
    first = {s: measure(models, s, N_FIRST, options.n, Link(tcp=True)) for s in ("plain", "lockstep")}
    t_s, costs = costs_of(first["plain"], first["lockstep"])
    print(f"T {1e3 * t_s:.1f} ms  beta {costs.beta:.3f}  c {costs.c:.3f}  alpha {costs.alpha:.3f}", flush=True)
    schedules = ["plain", *(s for s in known_schedules(options.schedules, "plain") if s != "plain")]
    for ms in [float(text) for text in options.round_trips.split(",")]:
        trip = replace(costs, trip=ms / 1e3 / t_s)
        n_max = dict.fromkeys(schedules, options.n_max) | {"plain": 0, "lockstep": best_n(trip, "lockstep")}
        link = Link(ms / 1e3, options.jitter * ms / 1e3, tcp=True)
        runs: dict[str, list[Run]] = {schedule: [] for schedule in schedules}
        for _ in range(options.repeat):
            for schedule, done in runs.items():
                done.append(measure(models, schedule, n_max[schedule], options.n, link))
        rows += rows_of(ms, runs, n_max, t_s, costs)
        print("\n".join(line(row) for row in rows[-len(schedules) :]), flush=True)
    return rows, misses(rows, options.simulated)


if __name__ == "__main__":
    sys.exit(main())
