"""A draft worker that slows down, stops, dies or loses its link in mid-run: same tokens, and how fast.

    python bench/disturb.py [--cases slow,stop,kill,cut] [--schedule auto] [--tokens 1000] [--jobs 2] [--json FILE] [--check]

Simulated engines (T = 40 ms, c = 0.1, beta = 0.02, alpha = 0.8), real processes; the draft worker connects through a link.

    slow   its decodes take 20 times as long while the text is between two positions
    stop   SIGSTOP, and SIGCONT 8 s later
    kill   SIGKILL, and a new process 5 s later
    cut    nothing passes the link for 10 s

Printed are tokens per second, as multiples of plain decoding: before; from one second after the disturbance began until it
is over; of the last `TAIL` tokens; and how long after its end the first token came that a draft had. `--check` exits 1 where
a token differs, or the second figure is below 0.97, or the third below 1.2. `--json` also tells
which tokens took longer than a decode, and when.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.apart import Apart, Link, Run, apart, configuration, run
from bench.theory import greedy_text

PROMPT = list(range(32, 64))
TARGET = "simulated:seed=1,decode_ms=40,beta=0.02"
DRAFT = "simulated:seed=1,decode_ms=4,alpha=0.8"
#: Tokens before the disturbance, and the length of a slow stretch.
N_BEFORE, N_SLOW = 250, 250
TAIL = 200
GRACE_S = 1.0
#: Longer than a decode and all that belongs to its round.
LONG_S = 0.048
MIN_MEANWHILE, MIN_AFTER = 0.97, 1.2


@dataclass(frozen=True, slots=True)
class Case:
    """What is done to a pair, and what makes it good `hold_s` later. None: the draft model itself is slow for a while."""

    hold_s: float
    harm: Callable[[Apart], None] | None = None
    mend: Callable[[Apart], None] | None = None


def _signal(number: signal.Signals, pair: Apart) -> None:
    assert pair.draft is not None
    pair.draft.process.send_signal(number)


def _cut(pair: Apart) -> None:
    assert pair.link is not None
    pair.link.cut()


def _restore(pair: Apart) -> None:
    assert pair.link is not None
    pair.link.restore()


CASES = {
    "slow": Case(0.0),
    "stop": Case(8.0, partial(_signal, signal.SIGSTOP), partial(_signal, signal.SIGCONT)),
    "kill": Case(5.0, partial(_signal, signal.SIGKILL), Apart.start_draft),
    "cut": Case(10.0, _cut, _restore),
}


@dataclass(slots=True)
class Disturbance:
    """Harms the pair once the text is long enough, and mends it later: called after each event of a run."""

    pair: Apart
    case: Case
    began: float | None = None
    ended: float | None = None
    done: list[str] = field(default_factory=list)

    def __call__(self, so_far: Run) -> bool:
        now = time.monotonic()
        if self.case.harm is None or self.case.mend is None:
            return False
        if self.began is None and len(so_far.times) >= N_BEFORE:
            self.case.harm(self.pair)
            self.began = now
        if self.began is not None and self.ended is None and now >= self.began + self.case.hold_s:
            self.case.mend(self.pair)
            self.ended = now
        return False


def measure(name: str, schedule: str, n_tokens: int) -> dict[str, Any]:
    """A disturbed run; "plain" is a run without a draft."""
    size = {"engine": "simulated", "ctx_size": n_tokens + 100}
    first = len(PROMPT) + N_BEFORE
    slow = f",slow_from={first},slow_to={first + N_SLOW},slowdown=20" if name == "slow" else ""
    draft = None if name == "plain" else {"model": DRAFT + slow, **size}
    config = configuration({"model": TARGET, **size}, draft, schedule, 10, n_tokens)
    with apart(config, Link()) as pair:
        disturbance = Disturbance(pair, CASES.get(name, CASES["slow"]))
        done = run(pair, PROMPT, disturbance)
    began = disturbance.began or done.times[min(N_BEFORE, n_tokens - 1)]
    ended = disturbance.ended or done.times[min(N_BEFORE + N_SLOW, n_tokens - 1)]
    tokens, reason = done.answer["tokens"], done.answer["speculation"]["reason"]
    return {
        "case": name,
        "same": tokens == greedy_text(1, n_tokens, PROMPT),
        "before": rate([time for time in done.times if time < began]),
        "meanwhile": rate([time for time in done.times if began + GRACE_S <= time <= ended]),
        "waits": waits([time for time in done.times if began <= time <= ended], began),
        "after": rate(done.times[-TAIL:]),
        "resumed_s": next(
            (t - ended for t, ok in zip(done.times, done.accepted, strict=True) if ok and t > ended), None
        ),
        "notes": reason,
    }


def rate(times: list[float]) -> float:
    """Events per second; those at the time of the first are left out."""
    later = [time for time in times if time > times[0]]
    return len(later) / (times[-1] - times[0]) if later else 0.0


def waits(times: list[float], began: float) -> list[tuple[float, float]]:
    """Tokens that took much longer than a decode: seconds after the disturbance began, and milliseconds that it took."""
    return [(round(b - began, 2), round(1e3 * (b - a), 1)) for a, b in pairwise(times) if b - a > LONG_S]


def misses(row: dict[str, Any], plain: float) -> list[str]:
    found = [] if row["same"] else ["another text"]
    if row["meanwhile"] < MIN_MEANWHILE * plain:
        found.append(f"{row['meanwhile'] / plain:.2f} of plain decoding meanwhile")
    if row["after"] < MIN_AFTER * plain:
        found.append(f"{row['after'] / plain:.2f} of plain decoding at the end")
    return found


def line(row: dict[str, Any], plain: float) -> str:
    resumed = "never drafted again" if row["resumed_s"] is None else f"drafts again after {row['resumed_s']:.1f} s"
    before, meanwhile, after = (row[key] / plain for key in ("before", "meanwhile", "after"))
    return (
        f"{row['case']:5} before {before:5.2f}  meanwhile {meanwhile:5.2f}  after {after:5.2f}  {resumed}"
        f"  {'same text' if row['same'] else 'ANOTHER TEXT'}  {row['notes'] or ''}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.tokens < N_BEFORE + N_SLOW + 2 * TAIL:
        parser.error(f"--tokens: at least {N_BEFORE + N_SLOW + 2 * TAIL}, to see what comes after")
    names, missed = options.cases.split(","), []
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        plain = pool.submit(measure, "plain", options.schedule, 200)
        results = [pool.submit(measure, name, options.schedule, options.tokens) for name in names]
        alone = plain.result()["after"]
        print(f"plain decoding {alone:.2f} tokens/s", flush=True)
        rows = [result.result() for result in results]
    for row in rows:
        print(line(row, alone), flush=True)
        missed += [f"{row['case']}: {miss}" for miss in misses(row, alone)]
    if options.json:
        options.json.write_text(json.dumps({"plain": alone, "rows": rows}, indent=2))
    for miss in missed:
        print(miss, file=sys.stderr)
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
