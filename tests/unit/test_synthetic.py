"""Synthetic acceptance: settings, draws and rounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.decoding.sampling import Sampler
from outrider.decoding.synthetic import (
    SyntheticAcceptanceError,
    accept_len,
    conditional_rates,
    resolve_rates,
    uniform_draws,
    verify_synthetic,
)
from outrider.errors import ConfigError
from outrider.types import SamplingParams
from tests.golden import synth, synth_rng

GOLDEN = Path(__file__).parents[1] / "data/golden"
SYNTH = sorted((GOLDEN / "synth").glob("*.json"))
SYNTH_RNG = sorted((GOLDEN / "synth_rng").glob("*.json"))


@pytest.mark.parametrize("path", SYNTH, ids=lambda path: path.name)
def test_settings_resolve_as_in_llama_cpp(path: Path) -> None:
    assert synth.check(path, json.loads(path.read_text())) == []


@pytest.mark.parametrize("path", SYNTH_RNG, ids=lambda path: path.name)
def test_draws_are_llama_cpp_s(path: Path) -> None:
    assert synth_rng.check(path, json.loads(path.read_text())) == []


@pytest.mark.parametrize(
    ("key", "value"), [("rates", [0.5, 0.5]), ("conditional", [0.1]), ("mean_len", 1.2), ("accepted", False)]
)
def test_the_comparison_of_settings_can_fail(key: str, value: Any) -> None:
    data = {"len": None, "n_max": 2, "rates": [0.8, 0.4]}
    result = {"accepted": True, "rates": [0.8, 0.4], "conditional": [0.8, 0.5], "mean_len": 2.2}
    assert synth.check(Path("x"), data | {"result": result}) == []
    assert synth.check(Path("x"), data | {"result": result | {key: value}})
    assert synth.check(Path("x"), data | {"result": {"accepted": False, "error": "range"}})
    wrong = {"len": 9.0, "n_max": 2, "rates": None, "result": {"accepted": False, "error": "count"}}
    assert synth.check(Path("x"), wrong)


def test_the_comparison_of_draws_can_fail() -> None:
    data = json.loads(SYNTH_RNG[0].read_text())
    data["uniforms"][-1] = math.nextafter(data["uniforms"][-1], 1)
    data["accepted"][-1] += 1
    assert len(synth_rng.check(SYNTH_RNG[0], data)) == 2


@pytest.mark.parametrize(
    ("n_max", "length", "rates", "check", "named"),
    [
        (0, 3.0, [0.8], "both_given", "spec-synth-len"),
        (0, 2.0, None, "no_draft_tokens", "0"),
        (-1, None, [0.5], "no_draft_tokens", "-1"),
        (3, None, [0.5, 0.4], "count", "2 values given, 3 needed"),
        (2, None, [0.5, 1.5], "range", "value 2 is 1.5"),
        (2, None, [math.nan, 0.1], "range", "value 1 is nan"),
        (2, None, [0.5, 0.6], "not_monotone", r"value 2 \(0.6\)"),
        (3, None, [0.1, 0.2, 1.2], "not_monotone", "value 2"),  # the first violation by element
        (2, 0.99, None, "length_range", "0.99 is not within 1 … 3"),
        (2, 3.01, None, "length_range", "3.01"),
        (2, math.nan, None, "length_range", "nan"),
    ],
)
def test_each_refusal_names_check_and_value(
    n_max: int, length: float | None, rates: list[float] | None, check: str, named: str
) -> None:
    with pytest.raises(SyntheticAcceptanceError, match=named) as caught:
        resolve_rates(n_max, length, rates)
    assert caught.value.check == check
    assert isinstance(caught.value, ConfigError)


def test_nothing_given_is_nothing() -> None:
    assert resolve_rates(0, None, None) == []
    assert resolve_rates(4, None, []) == []


@pytest.mark.parametrize("length", [1.0, 1.3, 2.0, 3.7, 5.0])
def test_a_length_becomes_rates_of_that_mean(length: float) -> None:
    rates = resolve_rates(4, length, None)
    assert 1 + sum(rates) == pytest.approx(length, abs=1e-8)
    assert rates == sorted(rates, reverse=True)


def test_conditional_rates_multiply_to_the_rates() -> None:
    rates = [0.9, 0.6, 0.6, 0.0, 0.0]
    assert np.cumprod(conditional_rates(rates)) == pytest.approx(rates)


def test_seeds_are_taken_modulo_2_to_the_32() -> None:
    assert list(islice(uniform_draws(2**32 + 5), 3)) == list(islice(uniform_draws(5), 3))


def draws(*values: float) -> Iterator[float]:
    return iter(values)


def test_one_draw_per_token_until_the_first_refusal() -> None:
    stream = draws(0.1, 0.9, 0.2, 0.3)
    assert accept_len([False] * 3, [0.5, 0.5, 0.5], stream) == 1
    assert list(stream) == [0.2, 0.3]
    assert accept_len([], [0.5], draws()) == 0
    assert accept_len([False, False], [1.0, 1.0], draws(0.999, 0.0)) == 2
    assert accept_len([False], [0.0], draws(0.0)) == 0


def test_a_drafted_end_token_is_refused_and_its_draw_is_used() -> None:
    stream = draws(0.1, 0.1, 0.7)
    assert accept_len([False, True, False], [0.5] * 3, stream) == 1
    assert list(stream) == [0.7]


def test_observed_rates_are_the_wanted_ones() -> None:
    rates, stream = [0.8, 0.6, 0.3], uniform_draws(1)
    accepted = [accept_len([False] * 3, conditional_rates(rates), stream) for _ in range(20_000)]
    assert [np.mean([n > i for n in accepted]) for i in range(3)] == pytest.approx(rates, abs=0.015)


def rows(*best: int) -> np.ndarray:
    """One row per argument, of which that token is the best."""
    return np.eye(10, dtype=np.float32)[list(best)]


@pytest.mark.parametrize(
    ("stream", "tokens", "accepted", "end"),
    [
        ((0.1, 0.1, 0.1), (4, 5, 6, 9), 3, False),  # all accepted, the target's bonus
        ((0.1, 0.9), (4, 8), 1, False),  # refused: the target's own token
        ((0.9,), (2,), 0, True),  # which may end the text
    ],
)
def test_a_round(stream: tuple[float, ...], tokens: tuple[int, ...], accepted: int, end: bool) -> None:
    sampler = Sampler(SamplingParams(temp=0.0), 0, 10, [2])
    verified = verify_synthetic(sampler, rows(2, 8, 7, 9), [4, 5, 6], [1], 0, [0.5] * 3, draws(*stream))
    assert (verified.tokens, verified.accepted, verified.end_of_text) == (tokens, accepted, end)
    assert verified.logprobs == ()


def test_a_round_keeps_the_budget_and_the_history() -> None:
    penalised = Sampler(SamplingParams(temp=0.0, presence_penalty=3.0, n_probs=1), 0, 10, [2])
    verified = verify_synthetic(
        penalised, rows(1, 4, 4, 4), [4, 5, 6], [1], 0, [1.0] * 3, uniform_draws(0), max_tokens=2
    )
    assert verified.tokens == (4, 0)  # 4 is penalised, having been accepted
    assert len(verified.logprobs) == 2
