"""llama.cpp's own speculation, to stand beside ours: one run of its program `llama-speculative-simple`, or `llama-server`.

    python bench/peer.py BINARY -m TARGET.gguf [-md DRAFT.gguf] [-p TEXT] [--types draft-simple] [--n-max 3] [-n 120]
                         [-t 2] [--cpus LIST] [--json]

The binary is built outside this repository, from the llama.cpp that the installed llama-cpp-python was built from, with
the same CMake flags: target `llama-speculative-simple`, `-DLLAMA_BUILD_EXAMPLES=ON`. Where none is given but `xllamacpp` is
installed, its server is asked (`wheel_server.py`). What keeps the comparison fair:

- The prompt is the same text, chat template included, and is read by the same rules; both count its tokens.
- Cache types, context, threads and attention are ours. (llama.cpp's own choice on a CPU, flash attention, computes the
  rows of a draft one by one, which takes longer.) It samples in the quickest greedy way that it has.
- Its figure is tokens / time from the end of the prompt on, as ours is.
- `llama-speculative-simple` ends with the first round that reaches `-n`, and counts all of its tokens; `llama-server`,
  as we, drafts no more than is left. With long drafts (look-up types have up to 64 tokens) the server is the fair peer.
- `llama-speculative-simple` refuses to run without a type, so plain decoding is the same loop with a look-up that finds
  nothing (n-grams of 1,024 tokens).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import wheel_server
from bench.peer_server import server_answer
from bench.runs import CODE_PROMPT, render_chat, speed

PLAIN = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1024")
ALIKE = ("--temp", "0", "--samplers", "top_k", "--top-k", "1", "-c", "4096", "-fa", "off")

_PROMPT = re.compile(r"encoded +(\d+) tokens")
_RATE = re.compile(r"decoded +(\d+) tokens in +([\d.]+) seconds")
_COUNT = re.compile(r"(n_drafted|n_accept) += +(\d+)")


def peer_answer(binary: Path, prompt: str, *flags: str, threads: int | None = None, cpus: str = "") -> dict[str, Any]:
    """One run, in the shape of `outrider run --json`; a failure ends the benchmark with the program's last lines.

    prompt: the text as the model reads it. threads: of target and draft; None = one per CPU that this process may use.
    cpus: what the process is pinned to, as 0-1; empty: nothing.
    """
    count = str(threads or len(os.sched_getaffinity(0)))
    command = ["taskset", "-c", cpus] if cpus else []
    command += [*peer_command(binary), "-t", count, "-tb", count, "-td", count, "-tbd", count, *ALIKE, *flags]
    if "server" in binary.name:
        return server_answer([*command, "-np", "1"], prompt)
    command += ["--no-escape", "-p", prompt]
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    log = done.stderr.decode(errors="replace")
    if done.returncode or not _RATE.search(log):
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{log[-2000:]}")
    return parsed(done.stdout.decode(errors="replace"), log, prompt)


def add_peer_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer-binary", type=Path, default=wheel_server.found(), metavar="BINARY")


def peer_command(binary: Path) -> list[str]:
    return [sys.executable, str(binary)] if binary == wheel_server.PATH else [str(binary)]


def parsed(out: str, log: str, prompt: str) -> dict[str, Any]:
    """out: two line feeds, the prompt, the generated text, four more. log: the figures."""
    counts = dict(_COUNT.findall(log))
    encoded, rate = _PROMPT.search(log), _RATE.search(log)
    assert encoded is not None
    assert rate is not None
    n, seconds = int(rate[1]), float(rate[2])
    _, found, text = out.partition(prompt)
    if not found:
        sys.exit(f"llama.cpp reads another prompt: {out[: len(prompt)]!r}")
    timings = {
        "predicted_n": n,
        "predicted_ms": 1e3 * seconds,
        "predicted_per_second": n / seconds,
        "draft_n": int(counts["n_drafted"]),
        "draft_n_accepted": int(counts["n_accept"]),
        "rounds": n - int(counts["n_accept"]),
    }
    return {"text": text.removesuffix("\n\n\n\n"), "prompt_tokens": int(encoded[1]), "timings": timings}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("-m", required=True)
    parser.add_argument("-md")
    parser.add_argument("-p", default=CODE_PROMPT, help="a message; the model's chat template is applied")
    parser.add_argument("--types", default="none")
    parser.add_argument("--n-max", type=int, default=3)
    parser.add_argument("-n", type=int, default=120)
    parser.add_argument("-t", type=int)
    parser.add_argument("--cpus", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    prompt = render_chat(options.m, options.p)
    flags = ["-m", options.m, "-n", str(options.n), *speculation(options.types, options.md, options.n_max)]
    run = peer_answer(options.binary, prompt, *flags, threads=options.t, cpus=options.cpus)
    print(json.dumps(run) if options.json else f"{run['text']}\n\n{speed(run):.2f} tokens/s, {run['timings']}")
    return 0


def speculation(types: str, draft: str | None, n_max: int) -> Sequence[str]:
    """Flags for a comma list of types, or `none`."""
    if types == "none":
        return PLAIN
    if "draft-simple" not in types:
        return ["--spec-type", types]
    return ["--spec-type", types, "-md", draft or sys.exit("draft-simple needs -md"), "--spec-draft-n-max", str(n_max)]


if __name__ == "__main__":
    sys.exit(main())
