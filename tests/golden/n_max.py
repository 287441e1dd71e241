"""The longest draft by parameters alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.speculators.types import ModelParams, NgramModParams, NgramParams, SpeculatorParams, longest_draft
from tests.golden.runner import first_differences


def check(path: Path, data: dict[str, Any]) -> list[str]:
    return first_differences("rows", data["rows"], [row | {"n_max": _n_max(row)} for row in data["rows"]])


def _n_max(row: dict[str, Any]) -> int:
    params = SpeculatorParams(
        ngram_simple=NgramParams(size_m=row["simple_m"]),
        ngram_map_k=NgramParams(size_m=row["k_m"]),
        ngram_map_k4v=NgramParams(size_m=row["k4v_m"]),
        ngram_mod=NgramModParams(n_max=row["mod_n_max"]),
        draft=ModelParams(n_max=row["draft_n_max"]),
    )
    return longest_draft(row["types"], params)
