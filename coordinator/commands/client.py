"""`outrider run --connect`: give one prompt to a coordinator that runs already."""

from __future__ import annotations

from outrider.config import Config


def execute(config: Config, request: str, prompt: str) -> int: return 1
