"""`make demo`: one prompt, answered by a real model pair and then by the target alone.

Prints the answer as it streams, both speeds, and whether the two texts are equal (they must be). Exit code 1 if not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parents[1] / "configs" / "demo.toml"
RUN = [sys.executable, "-m", "coordinator.cli", "run", "--config", str(CONFIG)]


def answer(*options: str) -> dict[str, Any]:
    """The JSON object of one run."""
    done = subprocess.run([*RUN, "--json", *options], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return dict(json.loads(done.stdout))


def speed(run: dict[str, Any]) -> float:
    return float(run["timings"]["predicted_per_second"])


def main() -> int:
    print("target SmolLM2-135M-Instruct, draft smollm2-mini-draft, numpy engine, one process each\n", flush=True)
    if subprocess.run(RUN, check=False).returncode:
        return 1
    print("\nThe same again, measured, with and without the draft:", flush=True)
    drafted, plain = answer(), answer("--spec-type", "none", "--model-draft", "")
    timings = drafted["timings"]
    rate = timings["draft_n_accepted"] / max(timings["draft_n"], 1)
    print(f"  with the draft     {speed(drafted):6.1f} tokens/s  ({timings['rounds']} rounds, {rate:.0%} accepted)")
    print(f"  target alone       {speed(plain):6.1f} tokens/s")
    ratio = speed(drafted) / speed(plain)
    print(f"  speculation is {ratio:.2f} times {'as fast' if ratio >= 1 else 'as fast: slower'} on this machine")
    equal = drafted["tokens"] == plain["tokens"] and drafted["text"] == plain["text"]
    print(f"  the two texts are {'equal, token by token' if equal else 'DIFFERENT: this is a bug'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
