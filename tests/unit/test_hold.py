"""Whether a draft worker waits for a verdict instead of beginning a step."""

from __future__ import annotations

import pytest

from outrider.speculators.hold import OVERDUE, Due

STEP = 16_000_000  # nanoseconds
LATE = OVERDUE * STEP


@pytest.mark.parametrize(
    ("left", "prob", "holds"),
    [
        (4_000_000, 0.5, True),  # soon, and probably a mismatch
        (12_000_000, 0.9, False),  # the step would be nearly over, and is probably right
        (15_000_000, 0.0, True),
        (1_000_000, 1.0, False),
        (STEP, 0.0, False),  # it ends in time
        (0, 0.9, True),  # it may come at any moment
        (-1_000_000, 0.1, True),  # a little late
        (-9_000_000, 0.1, False),  # too late: who knows when it comes
    ],
)
def test_the_chance_of_a_mismatch_is_weighed_against_the_time(left: int, prob: float, holds: bool) -> None:
    due = Due(1_000_000_000 + left, 10, 0)
    wait = due.hold(1_000_000_000, STEP, 10, [prob, 0.0])
    assert wait == (pytest.approx(left + LATE) if holds else 0.0)


def test_only_what_the_verdict_is_about_counts() -> None:
    """Two tokens tested, and the target's own: the draft is sure of these three, not of what follows."""
    at, probs = 4_000_000, [1.0, 1.0, 1.0, 0.01]
    assert not Due(at, 10, 2).hold(0, STEP, 10, probs)
    assert Due(at, 10, 3).hold(0, STEP, 10, probs)
    assert Due(at, 11, 2).hold(0, STEP, 10, probs)  # the text has grown by a token that was drafted
    assert not Due(at, 9, 3).hold(0, STEP, 10, probs)  # about a text that the draft has left behind
