"""draft-simple chained with n-gram types on real models, one or several sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.speculators.factory import make_chain
from tests.golden.draft_compare import compare_rounds
from tests.golden.model_loop import ModelLoop
from tests.golden.model_speculator import ModelSpeculator
from tests.golden.models import open_engine
from tests.golden.replay import speculator_params
from tests.golden.runner import first_differences
from tests.golden.state import chain_state, chain_stats


def check(path: Path, data: dict[str, Any]) -> list[str]:
    p = data["header"]["parameters"]
    n_ctx, n_seq = p["n_ctx_per_seq"], p["n_seq"]
    target = open_engine(p["target"], n_ctx, n_seq, "target")
    model = ModelSpeculator(open_engine(p["draft_model"], n_ctx, n_seq, "draft"), **p["draft"])
    chain = make_chain(p["types"], speculator_params(p), n_seq=n_seq, model=model)
    loop = ModelLoop(target, chain, model, n_ctx, p["n_predict"])
    outputs = loop.run(data["prompt_ids"])
    differences = compare_rounds(data["rounds"], loop.rounds, p["draft"]["n_max"], p["draft"]["p_min"])
    if differences:
        return differences
    return [
        *first_differences("output_ids", data["output_ids"], outputs),
        *first_differences("stats", data["stats"], chain_stats(chain)),
        *first_differences("state", data["state"], chain_state(chain)),
    ]
