"""draft-simple with two real models, one sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.speculators.factory import make_chain
from outrider.speculators.types import ModelParams, SpeculatorParams
from tests.golden.draft_compare import compare_rounds
from tests.golden.model_loop import ModelLoop
from tests.golden.model_speculator import ModelSpeculator
from tests.golden.models import open_engine
from tests.golden.runner import first_differences
from tests.golden.state import chain_stats


def check(path: Path, data: dict[str, Any]) -> list[str]:
    p = data["header"]["parameters"]
    limits = {name: p[name] for name in ("n_max", "n_min", "p_min")}
    target = open_engine(p["target"], p["n_ctx"], 1, "target")
    model = ModelSpeculator(open_engine(p["draft"], p["n_ctx"], 1, "draft"), **limits)
    chain = make_chain(["draft-simple"], SpeculatorParams(draft=ModelParams(**limits)), model=model)
    loop = ModelLoop(target, chain, model, p["n_ctx"], p["n_predict"])
    output = loop.run([data["prompt_ids"]])[0]
    differences = compare_rounds(data["rounds"], loop.rounds, p["n_max"], p["p_min"])
    if differences:
        return differences
    return [
        *first_differences("output_ids", data["output_ids"], output),
        *first_differences("stats", data["stats"], chain_stats(chain)),
    ]
