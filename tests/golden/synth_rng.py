"""Draws and acceptance lengths of synthetic acceptance."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from outrider.decoding.synthetic import accept_len, uniform_draws

if TYPE_CHECKING:
    from pathlib import Path


def check(path: Path, data: dict[str, Any]) -> list[str]:
    """Differences between the recording and ours; empty = match. No recorded draft holds an end token."""
    differences = []
    uniforms = list(islice(uniform_draws(data["seed"]), len(data["uniforms"])))
    if uniforms != data["uniforms"]:
        differences.append(f"{path.name}: uniforms: ours {uniforms}, recorded {data['uniforms']}")
    draws = uniform_draws(data["seed"])
    accepted = [accept_len([False] * n, data["cond"], draws) for n in data["draft_lens"]]
    if accepted != data["accepted"]:
        differences.append(f"{path.name}: accepted: ours {accepted}, recorded {data['accepted']}")
    return differences
