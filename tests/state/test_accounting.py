"""Where the time and the tokens of a session went: exact figures from messages with exact times."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.accounting import Accounting, combined
from coordinator.auto import Auto
from coordinator.overlap import Overlap
from coordinator.result import result, summary
from coordinator.schedule import Lockstep, Schedule
from tests.harness import scripted
from tests.watching import N_BYTES, Watched, draft_tokens, show, verdict, verify_request


def test_lockstep_hides_nothing_and_waits_for_each_draft() -> None:
    seen = Accounting()
    show(
        seen,
        (5, draft_tokens(10, [1, 2], 4)),
        (5, verify_request(10, [1, 2])),
        (30, verdict(10, [1, 9], 2, 25)),  # 1 accepted; the generation begins here
        (40, draft_tokens(12, [3, 4], 9, round=2)),
        (40, verify_request(12, [3, 4], round=2)),
        (70, verdict(12, [3, 4, 5], 2, 20, round=2)),
    )
    report = seen.report(0.080)
    assert (report["drafted"], report["submitted"], report["accepted"], report["stale"]) == (4, 4, 3, 0)
    assert report["draft_hidden_ms"] == 0.0
    assert report["draft_exposed_ms"] == pytest.approx(9.0)
    assert report["target_idle_share"] == pytest.approx(1 - 20 / 50)
    assert report["round_trips"] == 2
    assert report["bytes_per_round"] == 3 * N_BYTES


def overlapped(seen: Accounting) -> None:
    show(
        seen,
        (0, verify_request(10, [])),
        (30, verdict(10, [1], 0, 30)),
        (30, verify_request(11, [], round=2)),
        (50, draft_tokens(11, [2, 3], 30)),  # from 20 on; what counts begins at 30
        (70, draft_tokens(13, [4], 20)),
        (80, verdict(11, [2], 0, 45, round=2)),  # computed from 35 on
        (90, draft_tokens(14, [5], 15)),  # from 75 on
    )


def test_what_the_target_hides_is_told_from_what_it_does_not() -> None:
    seen = Accounting()
    overlapped(seen)
    report = seen.report(0.100)
    # 30-35 exposed, 35-70 hidden, 75-80 hidden, 80-90 exposed
    assert report["draft_hidden_ms"] == pytest.approx(40.0)
    assert report["draft_exposed_ms"] == pytest.approx(15.0)
    assert report["target_idle_share"] == pytest.approx(1 - 45 / 70)
    assert report["round_trips"] == 0


def test_a_slow_draft_spans_several_verifications() -> None:
    seen = Accounting()
    show(seen, (0, verdict(10, [1], 0, 1)))
    for i in range(1, 5):
        show(seen, (10 * i, verdict(10 + i, [1], 0, 5, round=1 + i)))
    show(seen, (38, draft_tokens(11, [1], 30)))
    report = seen.report(0.040)
    assert report["draft_hidden_ms"] == pytest.approx(2 + 5 + 5 + 3)  # 8-10, 15-20, 25-30, 35-38
    assert report["draft_exposed_ms"] == pytest.approx(15.0)


def test_a_draft_behind_the_last_verdict_counts_against_the_next() -> None:
    seen = Accounting()
    overlapped(seen)
    show(seen, (95, verdict(12, [3], 0, 10, round=3)))  # from 85 on
    assert seen.report(0.100)["draft_hidden_ms"] == pytest.approx(45.0)


def test_drafts_that_came_to_nothing_are_stale() -> None:
    seen = Accounting()
    show(
        seen,
        (0, draft_tokens(10, [1, 2, 3], 1)),
        (0, verify_request(10, [1])),
        (1, draft_tokens(13, [4], 1)),
        (2, verdict(10, [9], 1, 1)),  # the rest of the chain is void
        (3, draft_tokens(14, [5], 1)),
    )
    assert seen.report(1.0)["stale"] == 3 + 1
    assert seen.report(1.0)["drafted"] == 5


def test_what_is_told_again_or_withheld_is_counted_once() -> None:
    seen = Accounting()
    show(seen, (0, draft_tokens(10, [1, 2], 1)), (1, draft_tokens(10, [1, 2, 3], 1)))
    assert seen.report(1.0)["drafted"] == 3
    show(seen, (2, draft_tokens(13, [], 1, n_dropped=2)))
    assert seen.report(1.0)["drafted"] == 5


def test_a_doubled_verdict_is_counted_once() -> None:
    seen = Accounting()
    show(seen, (0, verify_request(10, [1])), (5, verdict(10, [1, 2], 1, 5)), (9, verdict(10, [1, 2], 1, 5)))
    assert seen.report(1.0)["submitted"] == 1


def test_a_branch_that_comes_true_is_a_draft_of_the_worker() -> None:
    seen = Accounting()
    show(
        seen,
        (0, draft_tokens(10, [1, 2], 1, branches=[[11, 7, 8]])),
        (1, draft_tokens(12, [3], 1, branches=[[11, 7, 8, 9]])),
        (1, verify_request(10, [1, 2])),
        (2, verdict(10, [1, 7], 2, 1)),
        (2, verify_request(12, [8, 9], round=2)),
        (3, verdict(12, [8, 9, 4], 2, 1, round=2)),
    )
    report = seen.report(1.0)
    assert (report["drafted"], report["branched"]) == (3 + 3, 3)
    assert report["stale"] == 6 - 4


@pytest.mark.parametrize("schedule", [Lockstep, Overlap, Auto])
def test_figures_of_a_session_add_up(schedule: type[Schedule]) -> None:
    seen = Accounting()
    pair = Watched(scripted("seed=3"), scripted("seed=3,disagree=20"), observers=[seen])
    session = pair.run_watched(schedule(), n_predict=60)
    report = seen.report(pair.clock)
    assert report["submitted"] == session.counts.draft_n > 0
    assert report["accepted"] == session.counts.n_verified
    assert report["drafted"] >= report["submitted"]
    assert report["stale"] == report["drafted"] - report["submitted"]
    assert 0.0 <= report["target_idle_share"] <= 1.0
    assert report["draft_hidden_ms"] + report["draft_exposed_ms"] <= 1e3 * pair.clock
    assert report["coordinator_us_per_round"] > 0
    answer: dict[str, Any] = result(session, report)
    assert answer["speculation"]["accounting"] == report
    assert f"of {report['drafted']} tokens unused" in summary(answer)


def test_plain_decoding_drafts_nothing() -> None:
    seen = Accounting()
    pair = Watched(scripted("seed=3"), observers=[seen])
    session = pair.run_watched(Lockstep(), n_predict=20, types=())
    report = seen.report(pair.clock)
    assert (report["drafted"], report["submitted"], report["round_trips"]) == (0, 0, 0)
    assert "drafting " not in summary(result(session, report))


def test_reports_of_sessions_that_follow_one_another_add_up() -> None:
    first, second = Accounting(), Accounting()
    overlapped(first)
    overlapped(second)
    show(second, (95, verdict(12, [3], 0, 10, round=3)))
    one, other = first.report(0.100), second.report(0.200)
    total = combined([one, other])
    assert total.keys() == one.keys()
    assert total["drafted"] == one["drafted"] + other["drafted"]
    assert total["ms"] == pytest.approx(70 + 170)
    assert total["target_idle_share"] == pytest.approx(1 - (45 + 55) / 240)
    assert total["bytes_per_round"] == pytest.approx((one["bytes_per_round"] + 2 * other["bytes_per_round"]) / 3)
    assert combined([one]) == pytest.approx(one)
