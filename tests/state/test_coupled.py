"""Drafts that share the target's noise: more of them are right, and the target's own sample still decides."""

from __future__ import annotations

import pytest

from coordinator.overlap import Overlap
from coordinator.schedule import Lockstep
from outrider.types import LogitBias, SamplingParams
from tests.harness import Pair, make_request, plain, scripted

HOT = SamplingParams(temp=1.0, seed=9, top_k=0, top_p=1.0, min_p=0.0)
FULL = SamplingParams(
    temp=0.9, seed=4, top_k=20, top_p=0.9, repeat_penalty=1.3, frequency_penalty=0.2, min_tokens=30, n_probs=1
)


@pytest.mark.parametrize("sampling", [HOT, FULL], ids=["hot", "everything"])
@pytest.mark.parametrize("choice", [0, 3])
def test_a_draft_like_its_target_is_accepted_whole_at_any_temperature(sampling: SamplingParams, choice: int) -> None:
    request = make_request(sampling=sampling, draft_sampling="coupled", n_predict=200, n_max=4, choice=choice)
    session = Pair(scripted("seed=3"), scripted("seed=3")).run(request)
    assert session.counts.draft_n_accepted == session.counts.draft_n > 20
    assert session.generated == plain(scripted("seed=3"), request).generated


@pytest.mark.parametrize("schedule", [Lockstep, Overlap])
def test_shared_noise_is_better_than_the_best_token_and_changes_no_text(
    schedule: type[Lockstep] | type[Overlap],
) -> None:
    rates = {}
    for kind in ("greedy", "coupled"):
        request = make_request(sampling=HOT, draft_sampling=kind, n_predict=300)
        session = Pair(scripted("seed=3"), scripted("seed=3,disagree=20")).run(request, schedule())
        assert session.generated == plain(scripted("seed=3"), request).generated
        rates[kind] = session.counts.draft_n_accepted / session.counts.draft_n
    assert rates["coupled"] > rates["greedy"] + 0.2


def test_at_temperature_0_there_is_no_noise_to_share() -> None:
    requests = [make_request(draft_sampling=kind, n_predict=60) for kind in ("greedy", "coupled")]
    first, second = (Pair(scripted("seed=3"), scripted("seed=3,disagree=20")).run(request) for request in requests)
    assert first.counts.drafted_per_pos == second.counts.drafted_per_pos
    assert first.counts.accepted_per_pos == second.counts.accepted_per_pos


def test_p_min_looks_at_the_token_that_was_chosen() -> None:
    request = make_request(sampling=HOT, draft_sampling="coupled", p_min=0.5, n_predict=100)
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    session = pair.run(request)
    loose = Pair(scripted("seed=3"), scripted("seed=3")).run(make_request(sampling=HOT, draft_sampling="coupled"))
    assert 0 < session.counts.draft_n < 3 * session.counts.rounds
    assert session.counts.draft_n_accepted == session.counts.draft_n
    assert loose.counts.drafted_per_pos[2] > loose.counts.rounds - 2


def test_biases_of_tokens_that_the_draft_lacks_are_left_out() -> None:
    sampling = SamplingParams(temp=0.8, logit_bias=[LogitBias(295, -1e9), LogitBias(65, 9.0)])
    request = make_request(sampling=sampling, draft_sampling="coupled", n_predict=3)
    session = Pair(scripted("seed=3"), scripted("seed=3,vocab=290")).run(request)
    assert session.counts.draft_n > 0
    assert session.generated == plain(scripted("seed=3"), request).generated
