"""`outrider run`: answer one prompt."""

from __future__ import annotations

from outrider.config import Config


def execute(config: Config, request: str) -> int:
    """Run `config`; the exit code. With `client.connect`, `request` (JSON of what the user set, see
    `outrider/config/request.py`) is sent to the coordinator that runs there."""
    raise NotImplementedError
