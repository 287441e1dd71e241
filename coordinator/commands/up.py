"""`outrider up`: coordinator and workers of a configuration, until SIGTERM."""

from __future__ import annotations

from outrider.config import Config


def execute(config: Config) -> int:
    """Serve `config` until SIGTERM or Ctrl-C; the exit code."""
    raise NotImplementedError
