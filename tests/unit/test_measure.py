"""What workers measure when they start, and what becomes of it."""

from __future__ import annotations

import pytest

from coordinator.costs import Costs
from outrider.decoding.row_costs import RowCosts
from outrider.engine.base import Output, Span
from outrider.engine.scripted import ScriptedEngine
from outrider.types import RowTime
from outrider.worker.measure import BUDGET_US, SIZES, row_times


class Slow(ScriptedEngine):
    """Takes 10 ms a row on its own clock."""

    now_ns = 0

    def decode(self, spans: list[Span]) -> Output:  # type: ignore[override]
        self.now_ns += 10_000_000 * sum(span.n_outputs for span in spans)
        return super().decode(spans)

    def clock(self) -> int:
        return self.now_ns


def test_a_target_measures_rows_of_one_sequence() -> None:
    engine = Slow()
    assert row_times(engine, "target", engine.clock) == [RowTime(n, 10_000 * n) for n in sorted(set(SIZES))]
    assert engine.length(0) == 0


@pytest.mark.parametrize(("n_branches", "sizes"), [(0, [1]), (3, [1, 2, 3, 4]), (16, [1, 2, 3, 4, 6, 8, 16])])
def test_a_draft_measures_as_many_branches_as_it_has(n_branches: int, sizes: list[int]) -> None:
    engine = Slow(n_branches=n_branches)
    assert [time.n_rows for time in row_times(engine, "draft", engine.clock)] == sizes
    assert all(engine.length(seq) == 0 for seq in range(1 + n_branches))


def test_a_slow_model_does_not_hold_the_start_up() -> None:
    engine = Slow(n_batch=512)
    engine.clock = lambda: engine.now_ns * 100  # type: ignore[method-assign]  # a second a row
    assert [time.n_rows for time in row_times(engine, "target", engine.clock)] == [1, 2]
    assert BUDGET_US == 2_000_000


def test_the_first_guess_gives_way_to_what_is_measured() -> None:
    costs = Costs()
    costs.expect("target", [RowTime(1, 40_000), RowTime(4, 60_000)])
    costs.expect("draft", [RowTime(1, 5_000), RowTime(4, 9_000)])
    assert costs.verify_s(1) == 0.04
    assert costs.step_s() == 0.005
    costs.expect("target", [RowTime(1, 80_000)])  # another session, the same worker
    assert costs.verify_s(1) == 0.04
    for _ in range(50):
        costs.verified(4, 0.05)
    assert costs.verify_s(4) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize(
    ("ms", "hopeful", "expected_ms"),
    [
        ({1: 90, 4: 105, 8: 200, 16: 400}, False, 800),  # rows cost what they did between 8 and 16
        ({1: 90, 4: 105, 8: 200, 16: 400}, True, 400),
        ({1: 40, 8: 42, 16: 44}, False, 44 + 16 * 4),  # rows that cost next to nothing may not go on so
        ({1: 40}, False, 40 + 31 * 4),
        ({8: 200}, False, 200 + 24 * 20),
    ],
)
def test_more_rows_than_were_measured(ms: dict[int, int], hopeful: bool, expected_ms: float) -> None:
    costs = RowCosts([RowTime(n, 1000 * value) for n, value in ms.items()], hopeful=hopeful)
    assert costs.seconds(32) == pytest.approx(expected_ms / 1e3)
