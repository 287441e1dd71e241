"""Statistics: counted from what really happened, and no part above its whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.result import result
from outrider.types import SamplingParams
from outrider.wire.messages import VerifyRequest
from tests.harness import Pair, make_request, scripted


def test_tokens_that_a_draft_dropped_are_no_proposals() -> None:
    """p_min cuts most drafts below n_min: these are made and not offered."""
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    session = pair.run(make_request(n_max=6, n_min=4, p_min=0.66, n_predict=120))
    stats = session.stats().speculators["draft-simple"]
    sent = [len(message.draft) for _, message in pair.sent if isinstance(message, VerifyRequest)]
    assert session.counts.n_dropped > 0
    assert all(n == 0 or n >= 4 for n in sent)
    assert stats.n_made_tokens - stats.n_gen_tokens == session.counts.n_dropped
    assert stats.n_tested_tokens == session.counts.draft_n == sum(sent)
    assert stats.n_gen_drafts == sum(n > 0 for n in sent)


def test_short_drafts_are_counted_at_their_length() -> None:
    """The budget shortens the last rounds, p_min any of them: never rounds times n_max."""
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    session = pair.run(make_request(n_max=5, p_min=0.65, n_predict=50))
    sent = [len(message.draft) for _, message in pair.sent if isinstance(message, VerifyRequest)]
    assert session.counts.draft_n == sum(sent) < 5 * session.counts.rounds
    assert session.counts.drafted_per_pos == [sum(n > i for n in sent) for i in range(max(sent))]


def test_failures_at_the_first_position_are_in_the_statistics() -> None:
    session = Pair(scripted("seed=3"), scripted("seed=3,disagree=100")).run(make_request(n_predict=30))
    summary = session.stats().speculators["draft-simple"].summary()
    assert summary["acceptance_rate_per_pos"] == [0.0, 0.0, 0.0]
    assert summary["n_tested_tokens_per_pos"][0] == 29  # the last round may only take its one token
    answer = result(session)
    assert answer["timings"]["draft_n_accepted_per_pos"] == [0, 0, 0]
    assert answer["timings"]["draft_n_per_pos"][0] == 29


def test_a_high_rate_is_shown_beside_how_little_was_drafted() -> None:
    """Where p_min lets hardly anything through, all of that is right and nothing is gained."""
    session = Pair(scripted("seed=3"), scripted("seed=3")).run(make_request(p_min=0.7, n_predict=60))
    summary = session.stats().speculators["draft-simple"].summary()
    assert summary["tested_tokens_per_round"] < 1.0
    assert summary["acceptance_rate"] in (0.0, 1.0)


@settings(max_examples=settings.default.max_examples // 3)
@given(
    n_max=st.integers(1, 8),
    n_predict=st.integers(1, 40),
    disagree=st.sampled_from([0, 30, 100]),
    eos=st.sampled_from([0, 4]),
    stops=st.sampled_from([(), (" w",), ("A", "z")]),
    types=st.sampled_from([("draft-simple",), ("ngram-simple",), ("ngram-suffix", "draft-simple")]),
    temp=st.sampled_from([0.0, 1.0]),
)
def test_no_part_is_above_its_whole(
    n_max: int, n_predict: int, disagree: int, eos: int, stops: tuple[str, ...], types: tuple[str, ...], temp: float
) -> None:
    request = make_request(
        n_max=n_max, n_predict=n_predict, stops=stops, types=types, sampling=SamplingParams(temp=temp, seed=n_max)
    )
    session = Pair(scripted(f"seed=3,eos={eos}"), scripted(f"seed=3,eos={eos},disagree={disagree}")).run(request)
    counts, stats = session.counts, session.stats()
    total = stats.total
    assert stats.n_tokens == len(session.generated) == len(session.parts) <= n_predict
    assert stats.n_rounds == counts.rounds <= stats.n_tokens
    assert total.n_committed_tokens == counts.draft_n_accepted == sum(counts.accepted_per_pos)
    assert total.n_acc_tokens == counts.n_verified == sum(total.n_acc_tokens_per_pos)
    assert total.n_tested_tokens == counts.draft_n == sum(counts.drafted_per_pos)
    assert counts.draft_n_accepted <= counts.n_verified <= counts.draft_n <= total.n_gen_tokens <= total.n_made_tokens
    assert counts.draft_n_accepted <= stats.n_tokens <= counts.draft_n_accepted + counts.rounds
    for per_pos in (counts.drafted_per_pos, counts.accepted_per_pos, list(total.n_acc_tokens_per_pos)):
        assert per_pos == sorted(per_pos, reverse=True)


@pytest.mark.parametrize("n_predict", range(1, 13))
def test_delivered_tokens_are_the_counted_ones(n_predict: int) -> None:
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    session = pair.run(make_request(n_predict=n_predict, n_max=4, stops=(" w290",)))
    answer = result(session)
    assert answer["timings"]["predicted_n"] == len(answer["tokens"]) == len(session.generated)
    assert "".join(pair.texts) == answer["text"]
    assert len(session.generated) == n_predict or session.finish_reason == "stop"
