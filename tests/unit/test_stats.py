"""Counters count what happened, and add up."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.stats import RequestStats, SpecStats, begun, drafted, of_speculator, round_done, verified

ROUNDS = st.integers(0, 6).flatmap(
    lambda tested: st.integers(0, tested).flatmap(
        lambda acc: st.builds(verified, st.just(tested), st.just(acc), st.integers(0, acc), st.integers(0, 99))
    )
)
EVENTS = st.one_of(
    st.builds(begun, st.integers(0, 99)),
    st.integers(0, 6).flatmap(lambda n: st.builds(drafted, st.just(n), st.integers(0, n), st.integers(0, 99))),
    ROUNDS,
)
SPEC = st.lists(EVENTS, max_size=4).map(lambda events: sum(events, SpecStats()))
REQUESTS = st.builds(RequestStats, st.integers(0, 9), st.integers(0, 9), st.dictionaries(st.sampled_from("abc"), SPEC))


def test_a_session_by_hand() -> None:
    total = sum(
        [begun(5), drafted(4, 4, 100), verified(4, 2, 2, 7), drafted(4, 4, 90), verified(4, 4, 3), drafted(1, 0)],
        SpecStats(),
    )
    assert total == SpecStats(
        n_call_begin=1,
        n_call_draft=3,
        n_call_accept=2,
        n_made_tokens=9,
        n_gen_drafts=2,
        n_gen_tokens=8,
        n_tested_tokens=8,
        n_tested_tokens_per_pos=(2, 2, 2, 2),
        n_acc_drafts=2,
        n_acc_tokens=6,
        n_acc_tokens_per_pos=(2, 2, 1, 1),
        n_committed_tokens=5,
        t_begin_us=5,
        t_draft_us=190,
        t_accept_us=7,
    )
    assert total.mean_acceptance_len == 1 + 6 / 2
    assert total.acceptance_rate == 6 / 8


def test_a_draft_that_was_dropped_is_made_and_not_tested() -> None:
    """n_min 5, drafts of 3 and of 6."""
    total = drafted(3, 0) + drafted(6, 6) + verified(6, 6, 6)
    assert (total.n_made_tokens, total.n_gen_tokens, total.n_tested_tokens) == (9, 6, 6)
    assert total.acceptance_rate == 1.0
    assert total.n_gen_drafts == 1


def test_short_drafts_count_as_short() -> None:
    """n_max 8, drafts of 1, 2 and 8 tokens: counted, not reconstructed from n_max."""
    total = sum([verified(n, 0, 0) for n in (1, 2, 8)], SpecStats())
    assert total.n_tested_tokens == 11
    assert total.n_tested_tokens_per_pos == (3, 2, 1, 1, 1, 1, 1, 1)


def test_failures_at_position_0_are_in_the_rate() -> None:
    always_wrong = sum([verified(2, 0, 0)] * 5, SpecStats())
    assert always_wrong.summary()["acceptance_rate_per_pos"] == [0.0, 0.0]
    assert always_wrong.mean_acceptance_len == 1.0
    half = always_wrong + sum([verified(2, 1, 1)] * 5, SpecStats())
    assert half.n_tested_tokens_per_pos[0] == 10 == half.n_call_accept
    assert half.summary()["acceptance_rate_per_pos"] == [0.5, 0.0]


def test_a_high_rate_of_few_tokens_shows() -> None:
    """p_min 0.99: hardly anything is drafted."""
    total = sum([verified(0, 0, 0)] * 9, SpecStats()) + verified(1, 1, 1)
    summary = total.summary()
    assert summary["acceptance_rate"] == 1.0
    assert summary["tested_tokens_per_round"] == 0.1
    assert summary["mean_acceptance_len"] == 1.1


def test_empty_statistics_divide_by_nothing() -> None:
    assert SpecStats().mean_acceptance_len == 1.0
    assert SpecStats().acceptance_rate == 0.0
    assert RequestStats().summary()["tokens_per_round"] == 0.0


@settings(max_examples=30)
@given(SPEC, SPEC, SPEC)
def test_addition_is_associative_commutative_and_has_a_zero(a: SpecStats, b: SpecStats, c: SpecStats) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + SpecStats() == a == SpecStats() + a


@settings(max_examples=30)
@given(SPEC)
def test_no_part_is_above_its_whole(stats: SpecStats) -> None:
    assert stats.n_committed_tokens <= stats.n_acc_tokens <= stats.n_tested_tokens
    assert stats.n_gen_tokens <= stats.n_made_tokens
    assert sum(stats.n_tested_tokens_per_pos) == stats.n_tested_tokens
    assert sum(stats.n_acc_tokens_per_pos) == stats.n_acc_tokens
    assert len(stats.n_acc_tokens_per_pos) <= len(stats.n_tested_tokens_per_pos)
    assert list(stats.n_acc_tokens_per_pos) == sorted(stats.n_acc_tokens_per_pos, reverse=True)
    assert all(0 <= rate <= 1 for rate in stats.summary()["acceptance_rate_per_pos"])


@settings(max_examples=30)
@given(REQUESTS, REQUESTS)
def test_requests_add_up(a: RequestStats, b: RequestStats) -> None:
    both = a + b
    assert both == b + a
    assert both.total == a.total + b.total
    assert both.n_rounds == a.n_rounds + b.n_rounds
    assert a + RequestStats() == a
    assert json.loads(json.dumps(both.summary())) == both.summary()


def test_request_summary() -> None:
    request = (
        of_speculator("draft-simple", drafted(3, 3) + verified(3, 2, 1))
        + round_done(3)
        + of_speculator("ngram-mod", drafted(2, 2) + verified(2, 0, 0))
        + round_done(1)
        + round_done(1)
    )
    summary = request.summary()
    assert summary["rounds"] == 3
    assert summary["tokens"] == 5
    assert (summary["draft_n"], summary["draft_n_accepted"], summary["draft_n_committed"]) == (5, 2, 1)
    assert summary["draft_n_per_pos"] == [2, 2, 1]
    assert summary["draft_n_accepted_per_pos"] == [1, 1]
    assert list(summary["speculators"]) == ["draft-simple", "ngram-mod"]
    assert summary["speculators"]["ngram-mod"]["n_acc_tokens"] == 0


@pytest.mark.parametrize("counts", [(3, 4, 0), (3, 2, 3), (3, 2, -1)])
def test_impossible_rounds_are_our_bug(counts: tuple[int, int, int]) -> None:
    with pytest.raises(AssertionError):
        verified(*counts)
