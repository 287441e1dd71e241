"""Acceptance of greedy and of shared-noise drafts at several temperatures, in one process.

    python -m bench.draft_sampling -m TARGET.gguf -md DRAFT.gguf [--engine numpy] [-n 150] [--n-max 3] [-t THREADS]

Speed does not matter here: the text, and so the acceptance, is the same on every machine.
"""

from __future__ import annotations

import argparse

from coordinator.session import Session
from outrider.engine.factory import create_engine
from outrider.engine.options import EngineOptions
from outrider.types import SamplingParams
from tests.harness import Pair, make_request

PROMPTS = (
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Write a Python function that checks whether a string is a palindrome, with a docstring.",
)


def run(pair: Pair, prompt: str, kind: str, temp: float, args: argparse.Namespace) -> Session:
    tokenizer = pair.workers["target"].engine.tokenizer
    tokens = tokenizer.encode(tokenizer.render_chat([("user", prompt)]), add_special=True, parse_special=True)
    sampling = SamplingParams(temp=temp, seed=args.seed, ignore_eos=True)
    request = make_request(tokens, args.n, sampling, n_max=args.n_max, draft_sampling=kind)
    return pair.run(request)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True)
    parser.add_argument("-md", required=True)
    parser.add_argument("--engine", default="numpy", choices=["numpy", "llama"])
    parser.add_argument("-n", type=int, default=150)
    parser.add_argument("--n-max", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-t", type=int, default=None, help="threads (engine llama)")
    parser.add_argument("--temps", default="0.5,0.8,1.0")
    args = parser.parse_args()
    options = EngineOptions(n_ctx=1024, n_threads=args.t)
    pair = Pair(create_engine(args.engine, args.m, options), create_engine(args.engine, args.md, options))
    print(f"{'T':>4} {'drafts':>8} {'accepted':>12} {'rate':>6} {'tokens/round':>13}")
    for temp in map(float, args.temps.split(",")):
        for kind in ("greedy", "coupled"):
            counts = [run(pair, prompt, kind, temp, args).counts for prompt in PROMPTS]
            drafted, accepted = (sum(getattr(c, name) for c in counts) for name in ("draft_n", "draft_n_accepted"))
            per_round = args.n * len(PROMPTS) / sum(c.rounds for c in counts)
            print(
                f"{temp:>4} {kind:>8} {f'{accepted}/{drafted}':>12} {accepted / drafted:>6.1%} {per_round:>13.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
