"""Command lines to speculative parameters.

Two differences in form. llama.cpp starts its list of types with "none" and adds to it, and "none" in that list means
nothing, so it is left out here. And where a draft model is given without types, ours switches drafting on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from outrider.config.argv import parse_argv
from outrider.config.convert import speculator_params
from outrider.config.merge import merge
from outrider.config.schema import Speculative
from outrider.decoding.synthetic import SyntheticAcceptanceError, resolve_rates
from outrider.errors import ConfigError
from outrider.speculators.types import NgramParams, by_priority, longest_draft

if TYPE_CHECKING:
    from pathlib import Path

#: What a command line says of the draft model itself; only "n_max" and "types" could differ by it.
SECTIONS = ("target", "draft", "speculative")


def check(path: Path, data: dict[str, Any]) -> list[str]:
    """Differences between the recording and ours; empty = match."""
    return [line for row in data["rows"] for line in _differences(path, row)]


def _differences(path: Path, row: dict[str, Any]) -> list[str]:
    recorded, argv = row["result"], row["argv"]
    try:
        spec = merge(parse_argv(["--schedule", "lockstep", *argv], {}, SECTIONS).settings, lambda: 0).config.speculative
    except ConfigError as error:
        return [f"{path.name}: {argv}: ours refuses it ({error})"] if recorded["parsed"] else []
    if not recorded["parsed"]:
        return [f"{path.name}: {argv}: ours takes it, llama.cpp refuses it"]
    ours = _result(spec)
    recorded = {**recorded, "types": by_priority(recorded["types"])}
    return [
        f"{path.name}: {argv}: {key}: ours {ours[key]!r}, recorded {recorded[key]!r}"
        for key in ours
        if not _equal(ours[key], recorded[key])
    ]


def _result(spec: Speculative) -> dict[str, Any]:
    params = speculator_params(spec)
    return {
        "types": by_priority(spec.types),
        "n_max": longest_draft(spec.types, params),
        "draft": {"n_max": spec.n_max, "n_min": spec.n_min, "p_min": spec.p_min},
        "ngram_simple": _ngram(params.ngram_simple),
        "ngram_map_k": _ngram(params.ngram_map_k),
        "ngram_map_k4v": _ngram(params.ngram_map_k4v),
        "ngram_mod": {name: getattr(spec.ngram_mod, name) for name in ("n_match", "n_max", "n_min")},
        "synth_len": -1.0 if spec.synth_len is None else spec.synth_len,
        "synth_rates": spec.synth_rates,
        "resolve": _resolve(longest_draft(spec.types, params), spec),
    }


def _ngram(params: NgramParams) -> dict[str, int]:
    return {"min_hits": params.min_hits, "size_m": params.size_m, "size_n": params.size_n}


def _resolve(n_max: int, spec: Speculative) -> dict[str, Any]:
    try:
        return {"accepted": True, "rates": resolve_rates(n_max, spec.synth_len, spec.synth_rates)}
    except SyntheticAcceptanceError as error:
        return {"accepted": False, "error": error.check}


def _equal(ours: Any, recorded: Any) -> bool:
    """Recordings have no nan or inf: null and "nan", "inf", "-inf" stand for them. llama.cpp keeps p_min in 32 bits."""
    if isinstance(ours, dict):
        return ours.keys() == recorded.keys() and all(_equal(ours[key], recorded[key]) for key in ours)
    if isinstance(ours, list) and isinstance(recorded, list):
        return len(ours) == len(recorded) and all(map(_equal, ours, recorded))
    if isinstance(ours, float):
        if recorded is None or math.isnan(float(recorded)):
            return math.isnan(ours) or (recorded is None and math.isinf(ours))
        return math.isclose(ours, float(recorded), rel_tol=1e-6, abs_tol=0.0)
    return bool(ours == recorded)
