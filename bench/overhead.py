"""What a lockstep round costs outside the engines: wall time of a round minus the time inside `Engine.decode`.

The whole program runs, three processes over ipc, with the scripted engine (32,768 tokens, draft == target, n_max 3).
Sampling, messages, threads and the coordinator's work all count as overhead. Beside it stand bare ZeroMQ ping-pongs of
the same hops, in the same interleaved runs (`pingpong.py`): with a network thread in each worker, and without, which is how
messages travel here while a worker waits for them.

    python bench/overhead.py [--rounds 300] [--repeat 5] [--json FILE] [--check]

`--check` exits 1 if the median is over 500 µs or over twice the ping-pong with a network thread in each worker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.pingpong import measure
from coordinator.assemble import load_tables, make_request, make_session_chain, running
from coordinator.service import Service
from coordinator.signals import Signals
from outrider.config import Config, from_json

LIMIT_S = 500e-6
MAX_RATIO = 2.0
WARM_UP = 20
N_MAX = 3


def configuration(n_predict: int) -> Config:
    model = {"model": "scripted:seed=1,vocab=32768", "engine": "scripted", "ctx_size": 8192}
    return from_json(
        json.dumps(
            {
                "target": model,
                "draft": model,
                "speculative": {"types": ["draft-simple"], "schedule": "lockstep", "n_max": N_MAX},
                "sampling": {"temp": 0.0, "ignore_eos": True},
                "generation": {"n_predict": n_predict},
            }
        )
    )


def overheads(n_rounds: int) -> list[float]:
    """Seconds of overhead of each round of one run."""
    config = configuration(n_rounds * (N_MAX + 1))
    with Signals() as signals, running(config, signals) as (service, _):
        return one_run(service, config)[WARM_UP:]


def one_run(service: Service, config: Config) -> list[float]:
    done: list[object] = []
    chain = make_session_chain(config, load_tables(config))
    number = service.submit(make_request(config, list(range(32))), chain, lambda text: None, done.append)
    counts = service.live[number].session.counts
    times, before = [], (time.perf_counter(), 0, 0)
    while not done:
        service.turn(1.0)
        now = (time.perf_counter(), counts.rounds, counts.draft_decode_us + counts.target_decode_us)
        if now[1] > before[1]:
            times.append((now[0] - before[0] - (now[2] - before[2]) / 1e6) / (now[1] - before[1]))
            before = now
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rows: dict[str, list[float]] = {"straight": [], "threaded": [], "outrider": []}
    for _ in range(options.repeat):
        for mode in ("straight", "threaded"):
            rows[mode].append(measure(mode, options.rounds))
        rows["outrider"].append(statistics.median(overheads(options.rounds)))
    table = {mode: statistics.median(values) for mode, values in rows.items()}
    ratio, to_straight = table["outrider"] / table["threaded"], table["outrider"] / table["straight"]
    print(f"bare ping-pong, one thread per process      {1e6 * table['straight']:6.0f} µs")
    print(f"bare ping-pong, a network thread per worker {1e6 * table['threaded']:6.0f} µs")
    print(f"a lockstep round outside the engines        {1e6 * table['outrider']:6.0f} µs")
    print(
        f"                                            {ratio:6.2f} times the second, {to_straight:.2f} times the first"
    )
    if options.json:
        options.json.write_text(json.dumps({**table, "ratio": ratio, "ratio_straight": to_straight}, indent=2))
    return int(options.check and (table["outrider"] > LIMIT_S or ratio > MAX_RATIO))


if __name__ == "__main__":
    sys.exit(main())
