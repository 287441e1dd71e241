"""The file of `--trace`: checked before the work starts, written when it ends, all of it or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.trace import Trace
from coordinator.trace_events import document
from outrider.errors import ConfigError


@contextmanager
def tracing(path: str) -> Iterator[Trace | None]:
    """A trace that is written to this file when the block ends, however it ends; None for an empty path.

    Raises ConfigError before the block if the file cannot be written, and after it if it could no longer be.
    """
    if not path:
        yield None
        return
    file = _writable(Path(path))
    trace = Trace()
    try:
        yield trace
    finally:
        if trace.n_seen:  # else nothing has run, and an older trace is worth more
            write(trace, file)


def _writable(path: Path) -> Path:
    """The file that `path` names, links followed. Raises ConfigError unless it can be replaced."""
    path = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"log.trace: {path} is no file: name another one")
        _beside(path).touch()
        _beside(path).unlink()
    except OSError as error:
        raise ConfigError(f"log.trace: {path} cannot be written: {error.strerror}: name another file") from None
    return path


def _beside(path: Path) -> Path:
    """Where the file is made before it takes its place."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def write(trace: Trace, path: Path) -> None:
    """All or nothing. Raises ConfigError."""
    text = json.dumps(document(trace.records, trace.n_forgotten), separators=(",", ":"))
    try:
        _beside(path).write_text(text)
        _beside(path).replace(path)
    except OSError as error:
        _beside(path).unlink(missing_ok=True)
        raise ConfigError(f"log.trace: {path} cannot be written: {error.strerror}") from None
