"""Whole configurations: from all four sources, from a file for one process, from one line of JSON, and back."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from outrider.config.argv import parse_argv
from outrider.config.merge import Merged, Setting, merge
from outrider.config.schema import Config
from outrider.config.settle import settle
from outrider.config.sources import from_environment, from_file
from outrider.errors import ConfigError


def new_seed() -> int:
    return secrets.randbits(32)


def load(
    settings: Sequence[Setting] = (),
    file: str | None = None,
    environ: Mapping[str, str] = os.environ,
    random_seed: Callable[[], int] = new_seed,
) -> Merged:
    """Merge and settle `settings` of a command line, the environment and a TOML file (`file`, else OUTRIDER_CONFIG)."""
    path = file if file is not None else environ.get("OUTRIDER_CONFIG", "")
    stored = from_file(Path(path)) if path else []
    return settle(merge([*stored, *from_environment(environ), *settings], random_seed))


def to_json(config: Config) -> str:
    """One line of JSON that `from_json` reads back to an equal value."""
    return json.dumps(msgspec.to_builtins(config), ensure_ascii=True)


def from_json(text: str | bytes) -> Config:
    """Strict inverse of `to_json`. Raises ConfigError."""
    try:
        return msgspec.convert(json.loads(text), Config)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ConfigError(f"configuration on stdin: {' '.join(str(error).split())}") from None


def load_worker_config(
    argv: Sequence[str],
    prog: str,
    environ: Mapping[str, str] = os.environ,
    stdin: BinaryIO | None = None,
) -> tuple[Config, bool]:
    """The configuration of `python -m target_worker|draft_worker|coordinator --config FILE`, and whether a launcher
    gave it.

    `-` is one line of JSON on stdin, complete as the launcher has merged it; stdin stays open behind it, and its end
    says that the launcher is gone. A FILE is TOML, below this host's environment. Raises ConfigError.
    """
    parsed = parse_argv(argv, own={"--config": True}, sections=())
    file = parsed.own.get("--config")
    if file is None or parsed.names:
        raise ConfigError(f"usage: {prog} --config FILE (TOML; - reads one line of JSON from stdin)")
    if file == "-":
        return from_json((stdin or sys.stdin.buffer).readline()), True
    return load(file=file, environ=environ).config, False
