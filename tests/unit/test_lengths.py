"""The three rules of length: their definitions, and the survival rule against trying every length."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.costs import Costs
from coordinator.lengths import FixedLength, LengthRule, MinProbability, Survival

PROBS = [0.99, 0.8, 0.4, 0.9]
probs_lists = st.lists(st.floats(0.01, 1.0), max_size=12)


def known(verify_ms: dict[int, float], per_second: float) -> Costs:
    costs = Costs()
    for n, ms in verify_ms.items():
        costs.verified(n, ms / 1e3)
    costs.speed.add(1, 1.0 / per_second)
    return costs


FLAT = {n: 40.0 + n for n in range(1, 14)}
STAIRS = {1: 40.0, 2: 60.0, 3: 61.0, 4: 62.0, 5: 90.0, 6: 91.0, 7: 92.0, 8: 93.0, 13: 160.0}


def test_fixed_takes_the_first() -> None:
    rule = FixedLength(3)
    assert [rule.length(PROBS[:n]) for n in range(5)] == [0, 1, 2, 3, 3]
    assert [rule.goes_on(PROBS[:n]) for n in range(5)] == [True, True, True, False, False]
    assert rule.name == "n_max 3"


def test_min_probability_stops_at_the_first_below() -> None:
    rule = MinProbability(0.5, 8)
    assert rule.length(PROBS) == 2  # the sure token behind the unsure one does not count
    assert rule.goes_on(PROBS[:2])
    assert not rule.goes_on(PROBS[:3])
    assert MinProbability(0.0, 3).length(PROBS) == 3
    assert MinProbability(0.8, 8).length([0.8]) == 1  # "below" is what stops


def test_survival_weighs_each_row() -> None:
    """A row more costs 1 ms, a thousandth of 40 tokens: worth it while a token survives with 4 %."""
    rule = Survival(known(FLAT, 40.0), 16)
    assert rule.length(PROBS) == 4
    assert rule.length([0.3, 0.2, 0.1]) == 2  # 0.3, 0.06, 0.006
    assert Survival(known(FLAT, 40.0), 1).length(PROBS) == 1


def test_a_dear_row_is_taken_for_the_cheap_ones_behind_it() -> None:
    rule = Survival(known(STAIRS, 30.0), 16)
    assert rule.length([0.5]) == 0  # 20 ms for half a token
    assert rule.length([0.8, 0.8, 0.8]) == 3
    assert rule.length([0.8, 0.8, 0.8, 0.8]) == 3  # the fourth costs 28 ms and survives with 0.4
    assert rule.goes_on([])
    assert rule.goes_on([0.9])
    assert not rule.goes_on([0.1])


def test_a_draft_that_is_waited_for_costs_its_time() -> None:
    costs = known(FLAT, 40.0)
    assert Survival(costs, 16).length([0.6, 0.6, 0.6]) == 3
    assert Survival(costs, 16, step_s=0.010).length([0.6, 0.6, 0.6]) == 1  # 0.36 of a token for 11 ms


def test_all_is_verified_until_something_is_known() -> None:
    assert Survival(Costs(), 3).length(PROBS) == 3
    assert Survival(Costs(), 3).goes_on(PROBS[:2])
    assert not Survival(Costs(), 3).goes_on(PROBS[:3])


@given(probs=probs_lists, per_second=st.floats(5, 100), step_ms=st.sampled_from([0.0, 5.0]))
@pytest.mark.parametrize("verify_ms", [FLAT, STAIRS])
def test_no_other_length_gains_more(
    verify_ms: dict[int, float], probs: Sequence[float], per_second: float, step_ms: float
) -> None:
    costs = known(verify_ms, per_second)
    speed, survival = costs.worth(), costs.calibration.survival(probs)
    assert speed is not None

    def gain(n: int) -> float:
        seconds = (costs.verify_s(n + 1) or 0.0) - (costs.verify_s(1) or 0.0) + n * step_ms / 1e3
        return sum(survival[:n]) - speed * seconds

    best = Survival(costs, 16, step_ms / 1e3).length(probs)
    assert gain(best) == pytest.approx(max(gain(n) for n in range(len(probs) + 1)))


@given(probs=probs_lists)
@pytest.mark.parametrize("rule", [FixedLength(3), MinProbability(0.5, 3), Survival(known(STAIRS, 30.0), 3)])
def test_a_length_is_within_the_draft(rule: LengthRule, probs: Sequence[float]) -> None:
    assert 0 <= rule.length(probs) <= min(len(probs), 3)
    assert not (rule.goes_on(probs) and len(probs) >= 3)
