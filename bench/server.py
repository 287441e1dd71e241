"""Several streams at once through the HTTP server: total tokens per second, beside llama.cpp's own server.

    python bench/server.py -m TARGET.gguf -md DRAFT.gguf [--peer-binary LLAMA_SERVER] [-n 120] [--streams 4] [--repeat 3]
                           [--n-max 3] [-t 2] [--schedule auto] [--peer-flags="…"] [--json FILE] [--check]

Each server runs with the draft and without. A run starts a server, asks it for one answer after the other, then for
`--streams` at once, and ends it; runs are interleaved, figures are medians of `--repeat`. The total is tokens / time from
the first request to the last token, prompts included, as the client sees it; beside it stands the sum of the streams' own
rates from their first token on. It is the same client, over the same endpoint with the same fields, for both programs.
Prompts are the same texts, chat template included; nothing is cached between requests.

Context per sequence, threads and cache types are the same for both programs; llama.cpp's server gets `-fa off` (its own
choice on a CPU computes the rows of a draft one by one) and no store of finished prompts.

Every text is compared with the same prompt's answer while nobody else asked. Kernels round differently for batches of
another shape, so two best logits that nearly tie may change places. A fork is fair where the target's gap between them is
below 0.05, as scored token by token, or below what the shape of the batch alone changes such gaps by in this text (`noise`:
the largest difference between scoring it token by token and in batches; 0.1 to 0.4 for Q4_0).

`--check` exits 1 where four streams with the draft are slower than llama.cpp's server with the draft, or slower than 0.95 of
it without, or a fork of ours is not fair; 2 without a peer to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.forks import MAX_GAP
from bench.peer import add_peer_option, peer_command
from bench.runs import CHAT_PROMPT, CODE_PROMPT, fork, render_chat, verdict
from outrider.engine.base import Engine, Span
from outrider.engine.factory import create_engine
from outrider.engine.options import EngineOptions

PROMPTS = (
    CODE_PROMPT,
    CHAT_PROMPT,
    "Write a Python class for a stack with push, pop, peek and len, with type hints, docstrings and a test.",
    "Explain to a beginner how a hash table works, and what happens when two keys fall into one bucket.",
)
N_CTX = 4096
MIN_OF_PLAIN = 0.95
BATCH = 32  # rows at once, for the kernels of many rows
READY_S = 120.0


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    n_prompt: int
    per_second: float  # from the first token on


@dataclass(frozen=True)
class Run:
    """What one start of a server gave: the answers to each prompt one after the other, and all at once."""

    alone: list[Answer]
    together: list[Answer]
    total: float  # tokens per second of those at once

    @property
    def rate_alone(self) -> float:
        return statistics.mean(answer.per_second for answer in self.alone)

    @property
    def rates(self) -> float:
        return sum(answer.per_second for answer in self.together)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def cases(options: argparse.Namespace) -> dict[str, list[str]]:
    """The command of each server, without its port."""
    t = str(options.t)
    common = ["-m", options.m, "-np", str(options.streams), "-t", t]
    draft = ["-md", options.md, "-td", t, "--spec-draft-n-max", str(options.n_max)]
    ours = [sys.executable, "-m", "coordinator.cli", "serve", "--engine", options.engine, *common, "-c", str(N_CTX)]
    found = {"ours, draft": [*ours, *draft, "--schedule", options.schedule], "ours, plain": ours}
    if options.peer_binary:
        peer = [*peer_command(options.peer_binary), *common, "-tb", t, "-c", str(N_CTX * options.streams)]
        peer += ["-fa", "off", "--cache-ram", "0", *shlex.split(options.peer_flags)]
        found["llama-server, draft"] = [*peer, *draft, "-tbd", t, "--spec-type", "draft-simple"]
        found["llama-server, plain"] = peer
    return found


@contextmanager
def serving(command: Sequence[str]) -> Iterator[str]:
    """The address of the running server; a failure to start ends the benchmark with its last lines."""
    port = free_port()
    command = [*command, "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + READY_S
            while not is_ready(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    sys.exit(f"no server came up: {shlex.join(command)}\n{log.read()[-2000:].decode(errors='replace')}")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def ask(url: str, prompt: str, n: int) -> Answer:
    """One streamed answer."""
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "stream": True}
    body |= {"return_tokens": True, "cache_prompt": False}
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    tokens: list[int] = []
    times: list[float] = []
    n_first = 0
    with urllib.request.urlopen(request, timeout=600) as response:
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                tokens += event["tokens"] if not event["stop"] else []
                times.append(time.perf_counter())
                n_first = n_first or len(tokens)
    seconds = times[-1] - times[0]
    return Answer(tokens, int(event["tokens_evaluated"]), (len(tokens) - n_first) / seconds if seconds else 0.0)


def run(command: Sequence[str], prompts: Sequence[str], n: int) -> Run:
    with serving(command) as url, ThreadPoolExecutor(len(prompts)) as pool:
        ask(url, prompts[0], 4)  # everything is loaded and measured once
        alone = [ask(url, prompt, n) for prompt in prompts]
        start = time.perf_counter()
        together = list(pool.map(lambda prompt: ask(url, prompt, n), prompts))
        elapsed = time.perf_counter() - start
    return Run(alone, together, sum(len(answer.tokens) for answer in together) / elapsed)


def forks(options: argparse.Namespace, runs: Sequence[Run], prompts: Sequence[str]) -> list[dict[str, Any]]:
    """Where answers in company differ from the same run's answer alone, each place once: `gap` and `noise` as above."""
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    for one in runs:
        for prompt, alone, together in zip(prompts, one.alone, one.together, strict=True):
            at = fork(alone.tokens, together.tokens)
            if at is not None:
                found[prompt, tuple(alone.tokens[:at])] = None
    if not found:
        return []
    target = create_engine(options.engine, options.m, EngineOptions(n_ctx=N_CTX, n_threads=options.t))
    try:
        return [scored(target, prompts.index(prompt), prompt, tokens) for prompt, tokens in found]
    finally:
        target.close()


def scored(target: Engine, number: int, prompt: str, generated: Sequence[int]) -> dict[str, Any]:
    tokens = [*target.tokenizer.encode(prompt, add_special=True, parse_special=True), *generated]
    pairs = [np.argsort(row)[-2:] for row in logits(target, tokens, 1)]
    one, many = (gaps(target, tokens, pairs, step) for step in (1, BATCH))
    noise = max(abs(a - b) for a, b in zip(one, many, strict=True))
    return {"prompt": number, "token": len(generated), "gap": one[-1], "noise": noise}


def gaps(target: Engine, tokens: Sequence[int], pairs: Sequence[NDArray[np.intp]], step: int) -> list[float]:
    """Second logit of each pair minus the first, in the row of each token."""
    return [float(row[b] - row[a]) for row, (a, b) in zip(logits(target, tokens, step), pairs, strict=True)]


def logits(target: Engine, tokens: Sequence[int], step: int) -> Iterator[NDArray[np.float32]]:
    """The row of each token, evaluated so many at once. A row is valid until the next one is asked for."""
    target.truncate(0, 0)
    for start in range(0, len(tokens), step):
        part = tokens[start : start + step]
        yield from target.decode([Span(0, start, part, len(part))]).logits


def row(name: str, runs: Sequence[Run], forks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    figures = {
        "total": [one.total for one in runs],
        "rates": [one.rates for one in runs],
        "alone": [one.rate_alone for one in runs],
    }
    total, rates, alone = medians = [statistics.median(values) for values in figures.values()]
    n_tokens = sum(len(answer.tokens) for answer in runs[0].together)
    gaps = ", ".join(
        f"prompt {f['prompt']} at token {f['token']} (gap {f['gap']:.3f}, noise {f['noise']:.3f})" for f in forks
    )
    print(
        f"{name:20} {total:6.1f} tokens/s in all (rates {rates:6.1f}), one stream {alone:5.1f}, {n_tokens} tokens;"
        f" forks: {gaps or 'none'}",
        flush=True,
    )
    named = dict(zip(figures, medians, strict=True))
    return {"name": name, **named, "runs": figures, "tokens": n_tokens, "forks": list(forks)}


def missed(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Conditions of `--check` that do not hold."""
    ours, draft, plain = (rows[name]["total"] for name in ("ours, draft", "llama-server, draft", "llama-server, plain"))
    found = []
    if ours < draft:
        found.append(f"{ours:.1f} tokens/s, llama-server with the draft has {draft:.1f}")
    if ours < MIN_OF_PLAIN * plain:
        found.append(
            f"{ours:.1f} tokens/s, {MIN_OF_PLAIN} of llama-server without draft are {MIN_OF_PLAIN * plain:.1f}"
        )
    found += [
        f"{name}: fork at token {one['token']} with gap {one['gap']:.4f}"
        for name in ("ours, draft", "ours, plain")
        for one in rows[name]["forks"]
        if one["gap"] >= max(MAX_GAP, one["noise"])
    ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True)
    parser.add_argument("-md", required=True)
    add_peer_option(parser)
    parser.add_argument("--peer-flags", default="", help="further ones of llama-server")
    parser.add_argument("--engine", default="llama")
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--n-max", type=int, default=3)
    parser.add_argument("-t", type=int, default=len(os.sched_getaffinity(0)), help="threads of target and of draft")
    parser.add_argument("-n", type=int, default=120)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    texts = [render_chat(options.m, PROMPTS[i % len(PROMPTS)]) for i in range(options.streams)]
    runs: dict[str, list[Run]] = {name: [] for name in cases(options)}
    for _ in range(options.repeat):
        for name, command in cases(options).items():
            runs[name].append(run(command, texts, options.n))
            print(f"{name}: {runs[name][-1].total:.1f} tokens/s", file=sys.stderr, flush=True)
    lengths = {tuple(answer.n_prompt for answer in done[0].together) for done in runs.values()}
    if len(lengths) > 1:
        sys.exit(f"not the same prompts: {lengths} tokens")
    rows = {name: row(name, done, forks(options, done, texts)) for name, done in runs.items()}
    if options.json:
        options.json.write_text(json.dumps(list(rows.values()), indent=2))
    if not options.check:
        return 0
    return verdict(missed(rows)) if options.peer_binary else 2


if __name__ == "__main__":
    sys.exit(main())
