"""Schedules in virtual time: the program's own sessions and workers, with engines that cost what they are told.

The figures come from a clock that jumps, so they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from bench import virtual_time
from bench.theory import greedy_text
from bench.virtual_time import Cell, speedup
from coordinator.auto import Auto
from coordinator.overlap import Overlap, OverlapSession
from coordinator.schedule import Lockstep, Schedule

N_TOKENS, N_MAX = 400, 8
AUTO: Callable[[], Schedule] = partial(Auto, apart=True, n_branches=24)
SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "lockstep": Lockstep,
    "overlap": Overlap,
    "branches": partial(Overlap, 24),
    "auto": AUTO,
}


def of(cell: Cell, schedule: str) -> float:
    return speedup(cell, SCHEDULES[schedule](), N_MAX, N_TOKENS)[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("target_trip", [0.0, 0.5])
def test_the_text_is_that_of_the_target(schedule: str, target_trip: float) -> None:
    cell = Cell(beta=0.1, c=0.1, alpha=0.7, trip=0.3, target_trip=target_trip)
    _, session = speedup(cell, SCHEDULES[schedule](), N_MAX, 200)
    assert session.generated == greedy_text(0, 200, [1, 2, 3])


def test_overlap_hides_a_slow_draft_and_branches_hide_its_misses() -> None:
    cell = Cell(beta=0.02, c=0.2, alpha=0.8, trip=0.0)
    lockstep, overlap, branches = (of(cell, name) for name in ("lockstep", "overlap", "branches"))
    assert overlap > 1.1 * lockstep
    assert branches > 1.1 * overlap


def test_a_token_that_is_about_to_come_is_waited_for() -> None:
    """Five steps end a little after the verification beside them, not with it."""
    in_time, late = (of(Cell(beta=0.02, c=c, alpha=0.8, trip=0.0), "overlap") for c in (0.2, 0.212))
    assert late > 0.97 * in_time


def test_a_link_that_makes_lockstep_slower_than_plain_decoding_does_not_slow_the_others() -> None:
    cell = Cell(beta=0.02, c=0.2, alpha=0.8, trip=2.0)
    assert of(cell, "lockstep") < 1.0
    assert of(cell, "overlap") > 1.2
    assert of(cell, "auto") > 1.2
    assert of(cell, "branches") > 1.1 * of(
        cell, "overlap"
    )  # what the draft has prepared, it knows before we can tell it


@pytest.mark.parametrize(
    "cell",
    [
        Cell(beta=0.02, c=0.05, alpha=0.8, trip=0.0),
        Cell(beta=0.35, c=0.2, alpha=0.8, trip=0.5),
        Cell(beta=0.35, c=0.4, alpha=0.3, trip=2.0),  # nothing to be had
        Cell(beta=0.5, c=2.0, alpha=0.5, trip=0.0),  # a draft slower than its target
    ],
)
def test_the_controller_is_near_the_best_of_all(cell: Cell) -> None:
    best = max(1.0, *(of(cell, name) for name in ("lockstep", "overlap", "branches")))
    assert of(cell, "auto") > 0.95 * best


def test_pushed_drafts_hide_the_link_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(beta=0.02, c=0.05, alpha=0.9, trip=0.0, target_trip=0.5)
    pushed, session = speedup(cell, Overlap(24), N_MAX, N_TOKENS)
    assert isinstance(session, OverlapSession)
    assert session.learning.n_begun_ahead > 20
    monkeypatch.setattr("coordinator.overlap.PUSH_FROM_S", 1e9)
    asked, session = speedup(cell, Overlap(24), N_MAX, N_TOKENS)
    assert isinstance(session, OverlapSession)
    assert session.learning.n_begun_ahead == 0
    assert pushed > 1.15 * asked


def test_a_target_that_begins_ahead_ends_with_the_request() -> None:
    cell = Cell(beta=0.02, c=0.05, alpha=1.0, trip=0.0, target_trip=1.0)
    for n_tokens in range(20, 32):
        _, session = virtual_time.speedup(cell, Overlap(), 4, n_tokens)
        assert session.generated == greedy_text(0, n_tokens, [1, 2, 3])
