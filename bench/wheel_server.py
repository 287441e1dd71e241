"""llama.cpp's server out of a prebuilt wheel (`xllamacpp`, extra `bench`), with those flags of it that benchmarks use.

    python bench/wheel_server.py -m TARGET.gguf [-md DRAFT.gguf] [--spec-type LIST] … --host 127.0.0.1 --port N

The peer of those who have no llama.cpp built for their machine. The wheel is built for any processor of its kind, so on a
CPU it is slower than llama.cpp can be: a comparison with it flatters us, and says so by the name of its peer.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xllamacpp import CommonParams

PATH = Path(__file__)
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}


def found() -> Path | None:
    """This program, where the wheel is installed."""
    return PATH if find_spec("xllamacpp") else None


def parameters(flags: Sequence[str] | None = None) -> CommonParams:
    """What llama-server makes of these flags."""
    import xllamacpp

    options = parsed_options(flags)
    params = xllamacpp.CommonParams()
    params.model.path = options.m
    params.n_predict, params.n_ctx, params.n_parallel = options.n, options.c, options.np
    params.cpuparams.n_threads, params.cpuparams_batch.n_threads = options.t, options.tb or options.t
    params.flash_attn_type = xllamacpp.llama_flash_attn_type(FLASH_ATTN[options.fa])
    params.cache_ram_mib = options.cache_ram
    params.hostnames, params.port = [options.host], options.port
    params.sampling.temp, params.sampling.top_k = options.temp, options.top_k
    if options.samplers:
        params.sampling.samplers = options.samplers
    drafting = params.speculative
    drafting.types = [
        xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}"]
        for name in options.spec_type.split(",")
    ]
    drafting.ngram_simple.size_n = options.spec_ngram_simple_size_n
    if options.md:
        drafting.draft.mparams.path, drafting.draft.n_max = options.md, options.spec_draft_n_max
        drafting.draft.cpuparams.n_threads = options.td or options.t
        drafting.draft.cpuparams_batch.n_threads = options.tbd or options.td or options.t
    return params


def parsed_options(flags: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True)
    parser.add_argument("-md", default="")
    parser.add_argument("-n", type=int, default=-1)
    parser.add_argument("-c", type=int, default=0)
    parser.add_argument("-np", type=int, default=1)
    for name in ("-t", "-tb", "-td", "-tbd"):
        parser.add_argument(name, type=int)
    parser.add_argument("-fa", choices=FLASH_ATTN, default="auto")
    parser.add_argument("--cache-ram", type=int, default=0)
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--samplers", default="")
    parser.add_argument("--spec-type", default="none")
    parser.add_argument("--spec-draft-n-max", type=int, default=3)
    parser.add_argument("--spec-ngram-simple-size-n", type=int, default=12)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    return parser.parse_args(flags)


def main() -> None:
    import xllamacpp

    ended = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)
    server = xllamacpp.Server(parameters())
    signal.sigwait(ended)
    del server


if __name__ == "__main__":
    main()
