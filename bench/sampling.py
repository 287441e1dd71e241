"""Time of sampling one row of logits, by sampler settings and vocabulary.

    python bench/sampling.py [--json] [--repeat N]

The median over batches of one call each, random normal logits (standard deviation 3), 200 tokens of history. Target of
the usual chain at a vocabulary of 152,064: under 1,500 µs.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import numpy as np

from outrider.decoding.noise import gumbel_noise
from outrider.decoding.sampling import Sampler, token_logprobs
from outrider.decoding.verify import row_hash
from outrider.types import LogitBias, SamplingParams

VOCABULARIES = (32_000, 152_064)
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETTINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temp=0.0),
    "greedy, repeat 1.1": SamplingParams(temp=0.0, repeat_penalty=1.1),
    "usual: top_k 40, top_p 0.95, min_p 0.05, repeat 1.1, temp 0.8": SamplingParams(repeat_penalty=1.1),
    "usual, typical_p 0.9, 3 biases": SamplingParams(
        repeat_penalty=1.1, typical_p=0.9, logit_bias=[LogitBias(i, 1.0) for i in (5, 6, 7)]
    ),
    "top_k 1000": SamplingParams(top_k=1000),
    "top_p 0.95 alone": SamplingParams(**OFF | {"top_p": 0.95}),  # type: ignore[arg-type]
    "min_p 0.05 alone": SamplingParams(**OFF | {"min_p": 0.05}),  # type: ignore[arg-type]
    "temperature alone": SamplingParams(**OFF),  # type: ignore[arg-type]
}


def microseconds(call: Callable[[], object], repeat: int) -> float:
    """Median time of `call`, after one call to warm up."""
    call()
    times = []
    for _ in range(repeat):
        start = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - start)
    return median(times) / 1000


def measure(n_vocab: int, repeat: int) -> dict[str, float]:
    """µs per call, by what is called."""
    rng = np.random.default_rng(0)
    row = rng.normal(0, 3, n_vocab).astype(np.float32)
    mask = np.arange(n_vocab) % 50 == 0
    history = rng.integers(0, n_vocab, 200).tolist()
    calls: dict[str, Callable[[], object]] = {"np.argmax (for comparison)": row.argmax}
    for name, params in SETTINGS.items():
        sampler = Sampler(params, 0, n_vocab, [2])
        calls[name] = lambda sampler=sampler: sampler.sample(row, history, 100)  # type: ignore[misc]
    usual = Sampler(SamplingParams(repeat_penalty=1.1), 0, n_vocab, [2])
    calls["usual, masked"] = lambda: usual.sample(row, history, 100, mask)
    calls["log-probabilities, 10 best"] = lambda: token_logprobs(row, 7, 10)
    calls["row hash"] = lambda: row_hash(row)
    calls["noise of 40 ids"] = lambda: gumbel_noise(1, 0, 200, np.arange(40))
    return {name: round(microseconds(call, repeat), 1) for name, call in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeat", type=int, default=100)
    args = parser.parse_args()
    results = {n_vocab: measure(n_vocab, args.repeat) for n_vocab in VOCABULARIES}
    if args.json:
        print(json.dumps({"machine": platform.machine(), "numpy": np.__version__, "unit": "us", "median": results}))
        return
    print(f"{'µs per row':64}" + "".join(f"{n_vocab:>10}" for n_vocab in VOCABULARIES))
    for name in results[VOCABULARIES[0]]:
        print(f"{name:64}" + "".join(f"{results[n_vocab][name]:10.1f}" for n_vocab in VOCABULARIES))


if __name__ == "__main__":
    main()
