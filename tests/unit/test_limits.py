"""How long a draft may be, and how many rows come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.limits import OutputLimits, at_least_one, draft_budget, output_limits
from tests.golden.output_limits import check

FILES = sorted((Path(__file__).parents[1] / "data/golden/output_limits").glob("*.json"))


@pytest.mark.parametrize(
    ("n_ctx", "n_past", "n_predict", "n_generated", "budget"),
    [
        (100, 0, -1, 0, 98),
        (100, 97, -1, 0, 1),
        (100, 98, -1, 0, 0),
        (100, 99, -1, 0, 0),
        (100, 200, -1, 0, 0),
        (100, 0, 10, 0, 9),
        (100, 0, 10, 8, 1),
        (100, 0, 10, 9, 0),
        (100, 0, 10, 10, 0),
        (100, 0, 0, 0, 0),
        (100, 95, 10, 0, 3),
    ],
)
def test_draft_budget(n_ctx: int, n_past: int, n_predict: int, n_generated: int, budget: int) -> None:
    assert draft_budget(n_ctx, n_past, n_predict, n_generated) == budget


@given(st.integers(1, 300), st.integers(0, 300), st.integers(-1, 300), st.integers(0, 300))
def test_a_full_draft_stays_inside_context_and_request(n_ctx: int, n_past: int, n_predict: int, n_done: int) -> None:
    budget = draft_budget(n_ctx, n_past, n_predict, n_done)
    assert budget >= 0
    if budget:
        n_committed = budget + 1  # full acceptance and the bonus
        assert n_past + n_committed < n_ctx  # the bonus still has a position to be evaluated at
        assert n_predict < 0 or n_done + n_committed <= n_predict


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_output_limits_are_llama_cpp_s(path: Path) -> None:
    assert check(path, json.loads(path.read_text())) == []


def test_the_comparison_can_fail() -> None:
    assert FILES
    data = json.loads(FILES[0].read_text())
    data["rows"][3][3] += 1
    data["rows"][5][4] -= 1
    assert len(check(FILES[0], data)) == 2


def test_a_context_gives_one_row_at_least() -> None:
    assert at_least_one(output_limits(0, 4, 3)) == (1, 1)
    assert at_least_one(OutputLimits(8, 4)) == (8, 4)
