"""Speculative equals plain: the oracle of the whole project, on an engine that betrays every wrong row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.types import LogitBias, SamplingParams
from tests.harness import GREEDY, Pair, make_request, plain, scripted

samplings = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**32),
    temp=st.sampled_from([0.0, 0.5, 0.8, 1.5]),
    top_k=st.sampled_from([0, 3, 40]),
    top_p=st.sampled_from([0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([[], [LogitBias(65, 3.0), LogitBias(66, -1e9)]]),
    ignore_eos=st.booleans(),
    min_tokens=st.sampled_from([0, 10]),
)


@given(
    sampling=samplings,
    n_max=st.integers(0, 9),
    n_min=st.integers(0, 3),
    p_min=st.sampled_from([0.0, 0.5, 0.7]),
    disagree=st.sampled_from([0, 10, 40, 100]),
    eos=st.sampled_from([0, 3]),
    memory=st.tuples(st.booleans(), st.booleans()),
    n_batch=st.sampled_from([3, 8, 512]),
    n_predict=st.integers(1, 40),
    stops=st.sampled_from([(), ("w2",), ("zz", "9", " w")]),
    draft_sampling=st.sampled_from(["greedy", "coupled"]),
)
def test_speculative_equals_plain(
    sampling: SamplingParams,
    n_max: int,
    n_min: int,
    p_min: float,
    disagree: int,
    eos: int,
    memory: tuple[bool, bool],
    n_batch: int,
    n_predict: int,
    stops: tuple[str, ...],
    draft_sampling: str,
) -> None:
    limits = {"n_max": n_max, "n_min": n_min, "p_min": p_min, "draft_sampling": draft_sampling}
    request = make_request(sampling=sampling, n_predict=n_predict, stops=stops, row_hashes=True, **limits)
    script = f"seed=7,eos={eos}"
    expected = plain(scripted(script), request)
    target = scripted(f"{script},checkpoint={memory[0]:d}", n_batch=n_batch)
    draft = scripted(f"{script},disagree={disagree},checkpoint={memory[1]:d}", n_batch=n_batch)
    pair = Pair(target, draft)
    actual = pair.run(request)

    assert actual.generated == expected.generated
    assert actual.row_hashes == expected.row_hashes
    assert actual.text.text == expected.text.text == "".join(pair.texts)
    assert actual.finish_reason == expected.finish_reason
    assert len(actual.generated) <= n_predict
    assert actual.counts.draft_n_accepted <= actual.counts.draft_n
    assert actual.counts.n_stale == 0


def test_a_draft_like_its_target_is_accepted_whole() -> None:
    """Also after many rounds: nothing decays, and every round brings n_max + 1 tokens."""
    session = Pair(scripted("seed=3"), scripted("seed=3")).run(make_request(n_predict=400, n_max=4))
    assert session.counts.draft_n_accepted == session.counts.draft_n
    assert session.counts.rounds == 80
    assert session.counts.accepted_per_pos == [80, 80, 80, 80]


def test_a_draft_that_is_always_wrong_costs_drafts_only() -> None:
    session = Pair(scripted("seed=3"), scripted("seed=3,disagree=100")).run(make_request(n_predict=50, n_max=4))
    assert session.counts.draft_n_accepted == 0
    assert session.counts.rounds == 50
    assert session.counts.drafted_per_pos[0] == 49  # the last round may only take its one token


def test_only_wrong_rows_are_evaluated_again() -> None:
    """Every committed row is evaluated once by the target; the draft evaluates its wrong rows and nothing twice."""
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    session = pair.run(make_request(n_predict=400, n_max=4))
    for role in ("target", "draft"):
        rows = [len(cache.tokens) for cache in pair.workers[role]._free]
        assert max(rows) >= len(session.history) - 6
    assert session.counts.n_resent == 0
    assert not session.notes


def test_greedy_needs_no_seed() -> None:
    request = make_request(sampling=SamplingParams(temp=0.0, seed=99), n_predict=20)
    assert (
        plain(scripted(), request).generated == plain(scripted(), make_request(sampling=GREEDY, n_predict=20)).generated
    )
