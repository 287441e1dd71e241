"""Length rules tried on recorded rounds: tokens per second that each would have brought, in milliseconds of computing.

    outrider run … --schedule lockstep --spec-draft-n-max 16 --trace TRACE.json     a run to record (any schedule will do)
    python bench/replay.py --extract RECORD.jsonl TRACE.json…                       its rounds; all traces give costs
    python bench/replay.py RECORD.jsonl…  [--rules n_max:1-8,p_min:0.5-0.9,survival]
                           [--verify-ms 1:40,2:42,4:46,8:54] [--step-ms 8] [--round-trip-ms 0] [--json FILE] [--check]

Two columns: `lockstep` pays for every draft; in `overlap` the draft rides on while the target verifies, and after a mismatch
the target waits for as many tokens as is best. Workers are taken not to slow each other. Without --verify-ms and the like
costs are those of the record. `--check` exits 1 if the survival rule is below 0.97 of the best fixed length in overlap.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.recorded import Record, load, read_traces, save
from coordinator.costs import Costs
from coordinator.lengths import FixedLength, LengthRule, MinProbability, Survival
from outrider.wire.messages import MAX_DRAFT

#: The longest draft of the rules that decide by probabilities.
N_MAX = 16
WAITS = range(9)
WORTH = 0.97
RULES = "n_max:0-8,n_max:12,n_max:16,p_min:0.3,p_min:0.5,p_min:0.7,p_min:0.8,p_min:0.9,survival"

#: A rule for one replay: costs that it may learn from, and what a draft step costs it (0.0: nothing).
Make = Callable[[Costs, float], LengthRule]


@dataclass(frozen=True)
class Machine:
    """Costs in seconds. verify: by rows."""

    verify: dict[int, float]
    step: float
    trip: float

    def verify_s(self, n_rows: int) -> float:
        """Between those that are known; beyond them in a straight line."""
        return self._by_rows[n_rows]

    @cached_property
    def _by_rows(self) -> list[float]:
        rows, times = list(self.verify), list(self.verify.values())
        slope = (times[-1] - times[0]) / (rows[-1] - rows[0]) if len(rows) > 1 else 0.0
        every = np.arange(MAX_DRAFT + 2)
        return list(np.interp(every, rows, times) + slope * np.maximum(every - rows[-1], 0))


@dataclass
class Outcome:
    """What a rule brought."""

    n_tokens: int = 0
    n_rounds: int = 0
    n_submitted: int = 0
    n_accepted: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.n_tokens / self.seconds if self.seconds else 0.0


class Replay:
    """One rule on one record. Decode times are known from the start; how sure a draft is, and the speed, are learned from
    rounds that are over, as the program learns them."""

    def __init__(self, record: Record, machine: Machine, make: Make, step_s: float) -> None:
        self.record, self.machine = record, machine
        self.costs = Costs()
        for rows in range(1, N_MAX + 2):
            self.costs.verified(rows, machine.verify_s(rows))
        self.rule = make(self.costs, step_s)
        self.base = record.start
        self.outcome = Outcome()

    @property
    def done(self) -> bool:
        return self.base >= self.record.end

    def verify(self, probs: Sequence[float], n_right: int, before_s: float) -> bool:
        """A round that verifies these tokens, `before_s` after the last one; are all right that were drafted this far?"""
        n, out, costs = len(probs), self.outcome, self.costs
        verify_s = self.machine.verify_s(n + 1)
        n_accepted = min(n, n_right)
        n_tokens = min(n_accepted + 1, self.record.end - self.base)
        self.base += n_accepted + 1
        out.n_rounds, out.n_tokens = out.n_rounds + 1, out.n_tokens + n_tokens
        out.n_submitted, out.n_accepted = out.n_submitted + n, out.n_accepted + n_accepted
        out.seconds += before_s + verify_s
        costs.verified(n + 1, verify_s)
        costs.speed.add(n_tokens, before_s + verify_s)
        for i, prob in enumerate(probs[: n_accepted + 1]):
            costs.calibration.add(prob, i < n_accepted)
        return n_right > n


def lockstep(record: Record, machine: Machine, make: Make) -> Outcome:
    """Each draft is waited for."""
    run = Replay(record, machine, make, machine.step)
    while not run.done:
        probs, n_right = record.chain(run.base)
        n_drafted = 0
        while n_drafted < len(probs) and run.rule.goes_on(probs[:n_drafted]):
            n_drafted += 1
        n = run.rule.length(probs[:n_drafted])
        run.verify(probs[:n], n_right, n_drafted * machine.step + (machine.trip if n_drafted else 0.0))
    return run.outcome


def overlap(record: Record, machine: Machine, make: Make, wait: int) -> Outcome:
    """The draft rides on; after a mismatch the target waits until there are `wait` tokens."""
    run = Replay(record, machine, make, 0.0)
    now, asked_at, asked_for = 0.0, 0.0, run.base
    while not run.done:
        probs, n_right = record.chain(run.base)
        n_gone = run.base - asked_for  # tokens of this ride that are text now
        before_s = 0.0
        if n_gone == 0 and run.rule.goes_on([]):
            before_s = machine.trip + min(wait, len(probs)) * machine.step if wait else 0.0
        n_ready = int((now + before_s - asked_at - machine.trip) / machine.step + 1e-9) - n_gone
        ready = probs[: max(n_ready, 0)]
        n = run.rule.length(ready)
        rides_on = run.verify(probs[:n], n_right, before_s)
        now = run.outcome.seconds
        if not rides_on:
            asked_at, asked_for = now, run.base
    return run.outcome


def best_overlap(record: Record, machine: Machine, make: Make) -> tuple[Outcome, int]:
    """With the wait that suits this rule best, and which that is."""
    tried = [(overlap(record, machine, make, wait), wait) for wait in WAITS]
    return max(tried, key=lambda one: one[0].per_second)


# --- rules ---------------------------------------------------------------------------------------------------------


def rules(text: str) -> Iterator[Make]:
    """`n_max:0-8,p_min:0.5-0.9,survival` as what makes them; a range of p_min goes by tenths."""
    for part in text.split(","):
        kind, _, values = part.partition(":")
        low, _, high = values.partition("-")
        if kind == "survival":
            yield lambda costs, step_s: Survival(costs, N_MAX, step_s)
        elif kind == "n_max":
            for n in range(int(low), int(high or low) + 1):
                yield lambda costs, step_s, n=n: FixedLength(n)  # type: ignore[misc]
        elif kind == "p_min":
            for tenths in range(round(10 * float(low)), round(10 * float(high or low)) + 1):
                yield lambda costs, step_s, tenths=tenths: MinProbability(tenths / 10, N_MAX)  # type: ignore[misc]
        else:
            raise SystemExit(f"replay: no rule is called {kind!r}; they are n_max:N, p_min:P and survival")


def compare(record: Record, machine: Machine, makes: Sequence[Make]) -> list[dict[str, object]]:
    """A row for each rule."""
    rows = []
    for make in makes:
        chain, wait = best_overlap(record, machine, make)
        row: dict[str, object] = {"rule": make(Costs(), 0.0).name, "wait": wait}
        row["lockstep"] = lockstep(record, machine, make).per_second
        row |= {"overlap": chain.per_second, "rounds": chain.n_rounds, **asdict(chain)}
        rows.append(row)
    return rows


def machine_of(record: Record) -> Machine:
    verify = {rows: us / 1e6 for rows, us in record.verify_us.items()}
    return Machine(verify, record.draft_step_us / 1e6, record.round_trip_us / 1e6)


def survival_share(rows: Sequence[dict[str, object]]) -> float:
    """What the survival rule brings in overlap, as a share of the best fixed length."""
    values = {str(row["rule"]): float(str(row["overlap"])) for row in rows}
    fixed = max(value for name, value in values.items() if name.startswith("n_max"))
    return next(value for name, value in values.items() if name.startswith("survival")) / fixed


# --- command line --------------------------------------------------------------------------------------------------


def print_table(title: str, rows: Sequence[dict[str, object]]) -> None:
    print(
        f"{title}\n{'rule':24}{'lockstep':>10}{'overlap':>10}{'wait':>6}{'rounds':>8}{'submitted':>11}{'accepted':>10}"
    )
    for row in rows:
        print(
            f"{row['rule']:24}{row['lockstep']:10.1f}{row['overlap']:10.1f}{row['wait']:6}{row['rounds']:8}"
            f"{row['n_submitted']:11}{row['n_accepted']:10}"
        )


def parse_costs(text: str) -> dict[int, float]:
    """`1:40,2:42.5`: milliseconds by rows, in seconds."""
    pairs = (part.split(":") for part in text.split(","))
    return dict(sorted((int(rows), float(ms) / 1e3) for rows, ms in pairs))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--extract", type=Path)
    parser.add_argument("--about", default="")
    parser.add_argument("--rules", default=RULES)
    parser.add_argument("--verify-ms", type=parse_costs)
    parser.add_argument("--step-ms", type=float)
    parser.add_argument("--round-trip-ms", type=float)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    return parser.parse_args(argv)


def machine_for(record: Record, options: argparse.Namespace) -> Machine:
    """The record's, with what the command line says otherwise."""
    machine = machine_of(record)
    return Machine(
        options.verify_ms or machine.verify,
        machine.step if options.step_ms is None else options.step_ms / 1e3,
        machine.trip if options.round_trip_ms is None else options.round_trip_ms / 1e3,
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    if options.extract:
        record = read_traces(options.files, options.about)
        machine = machine_for(record, options)
        verify_us = {rows: 1e6 * seconds for rows, seconds in machine.verify.items()}
        costs = {"draft_step_us": 1e6 * machine.step, "round_trip_us": 1e6 * machine.trip}
        save(replace(record, verify_us=verify_us, **costs), options.extract)
        return 0
    tables, missed = {}, False
    for path in options.files:
        record = load(path)
        rows = compare(record, machine_for(record, options), list(rules(options.rules)))
        print_table(f"{path.name}: {record.about} ({record.end - record.start} tokens)", rows)
        tables[path.name] = rows
        missed |= options.check and survival_share(rows) < WORTH
    if options.json:
        options.json.write_text(json.dumps(tables, indent=2))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
