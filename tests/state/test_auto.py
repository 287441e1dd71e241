"""The controller: what it knows of costs, what it predicts, what it chooses."""

from __future__ import annotations

from itertools import pairwise

import pytest

from coordinator.auto import (
    BELIEVED_FOR,
    LONGEST_PROBE,
    LONGEST_TRIP_S,
    LOOK_EVERY,
    PROBE_EVERY,
    PROBE_EVERY_SHARED,
    RARELY,
    Auto,
    AutoSession,
    Choice,
    Chooser,
    Outlook,
    Record,
    break_even_s,
    predict,
)
from coordinator.costs import Calibration, Costs
from coordinator.waiting import best_wait
from outrider.speculators.factory import make_chain
from outrider.speculators.types import SpeculatorParams
from outrider.types import RowTime
from tests.harness import Pair, make_request, scripted


def test_calibration_learns_that_a_draft_is_too_sure() -> None:
    calibration = Calibration()
    assert calibration.accept_prob(0.95) == pytest.approx(0.95)
    for _ in range(100):
        calibration.add(0.95, accepted=False)
    assert calibration.accept_prob(0.95) < 0.1
    assert calibration.accept_prob(0.45) == pytest.approx(0.45)


def test_calibration_forgets() -> None:
    """Of n outcomes the last counts 1, the one before 0.99, and so on, however many there were."""
    calibration, accepted, seen = Calibration(), 0.0, 0.0
    for i in range(5000):
        calibration.add(0.55, accepted=i < 4900)
        accepted, seen = 0.99 * accepted + (i < 4900), 0.99 * seen + 1
    assert calibration.accept_prob(0.55) == pytest.approx((accepted + 4 * 0.55) / (seen + 4))


def known(verify_ms: dict[int, float], step_ms: float, trip_ms: float = 0.0, slowdown: float = 1.0) -> Costs:
    costs = Costs(slowdown)
    for n, ms in verify_ms.items():
        costs.verified(n, ms / 1e3)
    costs.drafted(step_ms / 1e3)
    costs.round_trip.add(trip_ms / 1e3)
    return costs


def test_costs_beside_a_working_draft_are_kept_apart() -> None:
    costs = known({1: 40.0, 4: 50.0}, 2.0)
    assert costs.slowdown is None
    assert costs.verify_s(4, busy=True) == pytest.approx(0.05)  # not measured, and none expected
    costs.verified(1, 0.06, busy=True)
    assert costs.slowdown == pytest.approx(1.5)
    assert costs.verify_s(4, busy=True) == pytest.approx(0.075)
    assert costs.verify_s(4) == pytest.approx(0.05)
    costs.drafted(0.003, busy=True)
    assert (costs.step_s(), costs.step_s(busy=True)) == (0.002, 0.003)


def test_a_long_verification_tells_nothing_of_how_the_costs_rise_to_it() -> None:
    """A first round of seven rows beside a draft: fewer rows were measured alone, and that is what they cost."""
    costs = known({1: 40.0, 2: 54.0, 4: 82.0, 8: 138.0}, 2.0)
    costs.verified(7, 0.124, busy=True)
    assert costs.slowdown == pytest.approx(1.0)
    assert [costs.verify_s(n, busy=True) for n in (1, 2, 4, 7, 8)] == pytest.approx([0.04, 0.054, 0.082, 0.124, 0.138])
    costs.verified(1, 0.08, busy=True)
    costs.verified(7, 0.248, busy=True)
    assert costs.slowdown is not None
    assert costs.slowdown > 1.2
    assert costs.verify_s(16, busy=True) > 1.2 * 0.138  # type: ignore[operator]


def test_sessions_that_share_a_decode_pay_for_the_rows_of_all() -> None:
    costs = known({1: 40.0, 4: 50.0, 8: 60.0}, 2.0)
    for _ in range(20):
        costs.verified(8, 0.06, n_sessions=4)  # two rows each
    assert costs.verify_s(1) == pytest.approx(0.05)
    assert costs.verify_s(2) == pytest.approx(0.06)


def test_what_one_session_drafts_slows_the_others_down_and_is_not_taken_for_their_cost() -> None:
    costs = Costs()
    before = costs.drafting.idle_mark()
    assert costs.drafting.idle_since(before)
    costs.drafting.change(+1)
    assert not costs.drafting.idle_since(before)  # at work
    assert not costs.drafting.idle_since(costs.drafting.idle_mark())
    costs.drafting.change(-1)
    assert not costs.drafting.idle_since(before)  # it was, meanwhile
    assert costs.drafting.idle_since(costs.drafting.idle_mark())


def test_several_sessions_on_shared_processors_are_not_drafted_for_where_one_is() -> None:
    costs = known({1: 95.0, 2: 100.0, 4: 105.0, 8: 175.0, 16: 330.0}, 37.0, slowdown=2.0)
    chooser = Chooser(costs)
    assert not chooser.rests(3, Outlook(0.85))
    assert chooser.next(3, Outlook(0.85)).mode == "lockstep"
    costs.n_live = 4
    assert chooser.rests(3, Outlook(0.85))
    assert chooser.next(3, Outlook(0.85)).mode == "off"
    costs.n_live = 1
    assert chooser.next(3, Outlook(0.85)).mode == "lockstep"


def test_probes_in_vain_become_rare() -> None:
    chooser = Chooser(known(FLAT, 15.0, slowdown=2.0), apart=True)
    probes = [n for n in range(1, 700) if chooser.next(8, Outlook(0.3)).probe]
    assert [later - earlier for earlier, later in pairwise(probes)] == [
        2 * PROBE_EVERY,
        *[LONGEST_PROBE * PROBE_EVERY] * 4,
    ]


def test_what_would_not_even_pay_if_all_were_right_is_hardly_ever_looked_at() -> None:
    chooser = Chooser(known(STEEP, 10.0, slowdown=2.0), apart=True)
    assert [n for n in range(1, 700) if chooser.next(8, Outlook(0.3)).probe] == [RARELY * PROBE_EVERY]


def test_a_draft_that_was_slow_for_a_while_is_looked_at_as_soon_as_a_poor_one() -> None:
    costs = known(FLAT, 5.0)
    for _ in range(50):
        costs.drafted(0.2)
    assert [n for n in range(1, 50) if Chooser(costs, apart=True).next(8, Outlook(0.8)).mode != "off"] == []
    chooser = Chooser(costs, apart=True)
    assert [n for n in range(1, 50) if chooser.next(8, Outlook(0.8)).probe] == [PROBE_EVERY]


def test_while_drafting_is_off_what_is_best_is_looked_up_now_and_then() -> None:
    costs = known(FLAT, 200.0)
    chooser = Chooser(costs)
    assert chooser.next(8, Outlook(0.8)).mode == "off"
    for _ in range(50):
        costs.drafted(0.005)
    modes = [chooser.next(8, Outlook(0.8)).mode for _ in range(2 * LOOK_EVERY)]
    assert modes[: LOOK_EVERY - 1] == ["off"] * (LOOK_EVERY - 1)
    assert "off" not in modes[LOOK_EVERY - 1 :]


def test_every_session_that_ends_is_counted_out() -> None:
    schedule = Auto()
    for n_predict in (5, 60):
        Pair(scripted(), scripted("disagree=30")).run(make_request(n_predict=n_predict), schedule)
        assert schedule.costs.n_live == 0
        assert schedule.costs.drafting.idle_mark() is not None  # nobody drafts
        assert schedule.costs.reading.idle_mark() is not None


def test_rounds_beside_the_prompt_of_another_session_tell_nothing() -> None:
    schedule = Auto()
    schedule.costs.reading.change(+1)  # a session that takes long
    Pair(scripted(), scripted()).run(make_request(n_predict=30), schedule)
    assert schedule.costs.speed.value is None
    schedule.costs.reading.change(-1)
    Pair(scripted(), scripted()).run(make_request(n_predict=30), schedule)
    assert schedule.costs.speed.value is not None


def test_what_did_not_pay_is_not_tried_again_sooner_because_there_are_more_sessions() -> None:
    record = Record()
    record.speed.add(100, 50.0)
    record.left(20, load=4)
    record.last_round = 20
    record.forget_if_old(20 + 2 * BELIEVED_FOR * 4 - 1, load=4)
    assert record.speed.value == 2.0
    record.forget_if_old(20 + 2 * BELIEVED_FOR * 4, load=4)
    assert record.speed.value is None


def test_a_link_takes_no_longer_because_its_end_is_busy() -> None:
    costs = Costs()
    for seconds in (0.001, 0.5, 0.001, 0.4):
        costs.target_trip.add(seconds)
    assert costs.target_trip.value == pytest.approx(0.001, abs=0.01)


def test_what_was_measured_at_the_start_counts_with_its_padding() -> None:
    costs = Costs()
    costs.expect("target", [RowTime(1, 96_000), RowTime(2, 120_000), RowTime(3, 150_000), RowTime(4, 105_000)])
    assert [costs.verify_s(n) for n in (1, 2, 3, 4)] == [0.096, 0.105, 0.105, 0.105]


def test_a_session_that_drafts_nothing_does_not_speak_for_others() -> None:
    schedule = Auto()
    session = AutoSession(make_request(n_predict=20, types=[]), schedule, None)
    Pair(scripted(), scripted()).run(session.request, schedule)
    assert sum(schedule.chooser.counts.values()) == 0
    Pair(scripted(), scripted()).run(make_request(n_predict=20), schedule)
    assert sum(schedule.chooser.counts.values()) > 0


def test_break_even_follows_the_formulas() -> None:
    """T = 100 ms, 10 ms a draft step, five drafted, acceptance 0.7: 144 ms is the published limit of the lockstep order
    (arXiv 2606.25091), where a verification costs one decode for any number of rows."""
    flat, outlook = known({1: 100.0, 9: 100.0}, 10.0), Outlook(0.7)
    lockstep = break_even_s("lockstep", 8, flat, outlook)
    assert lockstep == pytest.approx(0.144, abs=0.003)
    assert break_even_s("overlap", 8, flat, outlook) > lockstep  # type: ignore[operator]
    assert break_even_s("overlap", 8, flat, Outlook(1.0)) == LONGEST_TRIP_S
    steep = known({1: 100.0, 9: 900.0}, 10.0)
    assert break_even_s("lockstep", 8, steep, Outlook(0.9)) == -1.0
    assert break_even_s("lockstep", 8, Costs(), outlook) is None


def test_what_was_measured_beside_the_other_worker_is_less_alone() -> None:
    costs = Costs(expected_slowdown=2.0)
    costs.verified(1, 0.08, busy=True)
    costs.drafted(0.06, busy=True)
    assert (costs.verify_s(1), costs.step_s()) == (0.04, 0.03)


def test_time_is_worth_at_least_what_plain_decoding_makes_of_it() -> None:
    costs = known({1: 40.0}, 2.0)
    costs.speed.add(1, 1.0)
    assert costs.worth() == pytest.approx(25.0)
    costs.speed.add(999, 1.0)
    assert costs.worth() > 400  # type: ignore[operator]


FLAT = {1: 40.0, 2: 41.0, 4: 43.0, 9: 48.0}
STEEP = {1: 40.0, 2: 70.0, 4: 130.0, 9: 280.0}


def test_the_target_waits_for_a_quick_draft_and_not_for_a_far_one() -> None:
    quick = known(FLAT, 2.0)
    waits = [0.002 * m for m in range(9)]
    assert best_wait(quick, 0.8, 0.0, waits, 0) >= 4
    far = known(FLAT, 2.0, trip_ms=100.0)
    assert best_wait(far, 0.8, 0.0, [0.0, *(0.1 + 0.002 * m for m in range(1, 9))], 0) == 0
    assert best_wait(quick, 0.1, 0.0, waits, 0) <= 1
    assert best_wait(quick, 0.8, 0.0, waits, 8) == 8


@pytest.mark.parametrize(
    ("costs", "acceptance", "mode"),
    [
        (known(FLAT, 2.0, slowdown=2.0), 0.8, "lockstep"),  # a quick draft on shared processors
        (known(FLAT, 15.0), 0.8, "overlap"),  # a slow one on its own
        (known(FLAT, 2.0, trip_ms=60.0), 0.9, "overlap"),  # a far one
        (known(FLAT, 15.0, slowdown=2.0), 0.3, "off"),  # it is mostly wrong
        (known(STEEP, 10.0, slowdown=2.0), 0.8, "off"),  # rows cost as much as they bring
        (known(FLAT, 60.0, slowdown=2.0), 0.9, "off"),  # a draft slower than its target
    ],
)
def test_the_choice_follows_the_costs(costs: Costs, acceptance: float, mode: str) -> None:
    chooser = Chooser(costs)
    for _ in range(5):
        choice = chooser.next(8, Outlook(acceptance))
    assert choice.mode == mode


def test_what_was_foreseen_is_chosen_as_if_it_were_looked_up() -> None:
    costs, outlook = known(FLAT, 15.0), Outlook(0.8)
    chooser, other = Chooser(costs), Chooser(costs)
    for _ in range(20):
        foreseen = chooser.foresee(8, outlook)
        assert foreseen is not None
        assert chooser.next(8, outlook, foreseen) == other.next(8, outlook) == foreseen
    assert foreseen.n > 1
    assert chooser.next(1, outlook, foreseen).n == 1  # there is no room for it any more
    chooser.next(0, outlook)
    assert chooser.foresee(8, outlook) is None  # off it was a moment ago


def test_drafting_that_does_not_pay_is_probed_rarely_and_comes_back() -> None:
    chooser = Chooser(known(FLAT, 4.0, slowdown=2.0))
    choices = [chooser.next(4, Outlook(0.05)) for _ in range(3 * PROBE_EVERY_SHARED)]
    assert [choice.probe for choice in choices if choice.mode != "off"] == [True, True]
    assert [chooser.next(4, Outlook(0.9)).mode for _ in range(LOOK_EVERY)][-1] == "lockstep"


def test_what_a_choice_brought_counts_more_than_what_it_promised() -> None:
    chooser, outlook = Chooser(known(FLAT, 4.0, slowdown=2.0)), Outlook(0.8)
    assert chooser.next(4, outlook).mode == "lockstep"
    for _ in range(80):
        choice = chooser.next(4, outlook)
        chooser.brought(choice, 1, 0.040 if choice.mode == "off" else 0.400)
    assert chooser.counts["off"] > 60


@pytest.mark.parametrize("apart", [True, False])
def test_workers_apart_go_over_to_overlap_for_any_gain(apart: bool) -> None:
    """On shared processors there is a margin both ways."""
    costs, outlook = known(STEEP, 2.0), Outlook(0.8)
    chooser = Chooser(costs, apart)
    (lockstep, _), (overlap, promised) = (chooser.best_of(mode, 8, outlook) for mode in ("lockstep", "overlap"))

    def bring(choice: Choice, per_second: float) -> None:
        chooser.brought(choice, round(2000 * per_second), 2000.0)

    bring(lockstep, 1.5 * promised)
    assert chooser.next(8, outlook).mode == "lockstep"
    bring(overlap, 1.515 * promised)
    assert chooser.next(8, outlook).mode == ("overlap" if apart else "lockstep")
    bring(lockstep, 1.53 * promised)
    assert chooser.next(8, outlook).mode == ("overlap" if apart else "lockstep")


def test_rounds_whose_draft_was_looked_up_tell_nothing_of_what_was_chosen() -> None:
    schedule, types = Auto(), ["ngram-suffix", "draft-simple"]
    schedule.costs.expect("target", [RowTime(n, 1000) for n in range(1, 18)])
    written = Pair(scripted()).run(make_request(n_predict=60, types=())).generated
    request = make_request(n_predict=60, types=types, prediction=[*written[:20], *written[40:]])
    session = AutoSession(request, schedule, make_chain(types, SpeculatorParams(), model_outside=True))
    brought = list[str | None]()

    def record(choice: Choice, n_tokens: int, seconds: float) -> None:
        brought.append(session.chain.last_type(0) if session._draft else None)

    schedule.chooser.brought = record  # type: ignore[method-assign]
    pair = Pair(scripted(), scripted())
    commands = [command for n, role in enumerate(pair.workers, 1) for command in pair.connect(session, role, n)]
    pair.drive(session, [*commands, *session.start(pair.clock)])
    assert session.generated == written
    assert session.stats().speculators["ngram-suffix"].n_tested_tokens > 20
    assert brought
    assert "ngram-suffix" not in brought


def test_prediction_matches_the_formulas() -> None:
    costs = known({1: 100.0, 6: 200.0}, 10.0, trip_ms=50.0)
    outlook, tokens = Outlook(0.7), sum(0.7**i for i in range(6))
    assert predict(Choice("off", 0), costs, outlook) == pytest.approx(10.0)
    assert predict(Choice("lockstep", 5), costs, outlook) == pytest.approx(tokens / (0.05 + 0.2 + 0.05))
    waiting = tokens / (0.2 + (1 - 0.7**6) * (0.05 + 0.05))
    assert predict(Choice("overlap", 5), costs, outlook) == pytest.approx(waiting)
    foreseen = tokens / (0.2 + (1 - 0.7**6) * 0.5 * (0.05 + 0.05))
    assert predict(Choice("overlap", 5), costs, Outlook(0.7, 0.5)) == pytest.approx(foreseen)
    assert predict(Choice("lockstep", 5), Costs(), outlook) is None


def test_a_draft_beyond_a_long_link_costs_nothing_but_its_rows() -> None:
    """The target decodes alone meanwhile, so it is never slower than plain decoding by more than those."""
    costs = known(FLAT, 2.0, trip_ms=5000.0)
    assert predict(Choice("overlap", 1), costs, Outlook(0.5)) >= 0.97 * 25.0  # type: ignore[operator]


def test_no_draft_is_made_where_not_even_free_ones_would_pay() -> None:
    costs = Costs(2.0)
    for n, seconds in ((1, 0.065), (2, 0.11), (4, 0.2), (8, 0.4)):
        costs.verified(n, seconds)
    chooser = Chooser(costs)
    assert chooser.rests(3, Outlook(0.8))
    choices = [chooser.next(3, Outlook(0.8)) for _ in range(PROBE_EVERY_SHARED + 1)]
    assert [choice.mode for choice in choices if not choice.probe] == ["off"] * PROBE_EVERY_SHARED
    assert choices[-2].probe or choices[-1].probe  # to look at it all the same
