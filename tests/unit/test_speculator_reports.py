"""Faults that users of other implementations reported about look-up speculation, tried on ours.

Each test names its entry of the table of reports in the tests' README.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outrider.speculators.factory import load_shared, make_chain
from outrider.speculators.session import SessionSpeculators
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import NgramModParams, NgramParams, SpeculatorParams
from tests.drafting import ALL, FIVE, SMALL, Played, draft_once, play, play_session

SHARED = SpeculatorParams(ngram_mod=NgramModParams(n_match=2, n_min=0, n_max=8, shared_pool=True))


def session(types: Sequence[str], prompt: Sequence[int], params: SpeculatorParams = SMALL) -> SessionSpeculators:
    return SessionSpeculators(make_chain(types, params), prompt)


# --- G1: drafts come from the previous request ----------------------------------------------------------------------


@pytest.mark.parametrize("type_", ALL)
def test_g1_a_request_drafts_nothing_of_an_earlier_one(type_: str) -> None:
    first = [token for _ in range(4) for token in range(100, 150)]
    second = [*range(300, 349), 120, 121]  # ends with a pair that only the first request knows
    used = session([type_], first)
    assert any(play_session(used, first).drafts)
    fresh = session([type_], second)
    assert fresh.draft(8) is None
    target = [122, 123, *range(300, 340)]
    again = session([type_], second)
    assert play_session(fresh, target).drafts == play_session(again, target).drafts
    assert {name: s.n_gen_tokens for name, s in fresh.stats().items()} == {
        name: s.n_gen_tokens for name, s in again.stats().items()
    }


# --- G2: one table for all users ------------------------------------------------------------------------------------


def drafts_of_b(params: SpeculatorParams) -> bool:
    """Does the text of session A draft for session B?"""
    types, secret = ["ngram-mod"], [*range(500, 600)]
    shared = load_shared(types, params)
    a, b = (
        SessionSpeculators(make_chain(types, params, shared=shared), prompt)
        for prompt in ([*secret, 1], [*range(40), 500, 501])
    )
    assert a is not b
    return b.draft(8) is not None


def test_g2_sessions_do_not_see_each_other_unless_sharing_is_asked_for() -> None:
    assert not drafts_of_b(SMALL)
    assert drafts_of_b(SHARED)


def test_g2_sequences_of_a_chain_do_not_see_each_other_either() -> None:
    chain = make_chain(ALL, SMALL, n_seq=2)
    chain.begin(0, TokenArray(list(range(500, 600)) * 2))
    draft_once(chain, TokenArray(list(range(500, 600)) * 2), 500, seq=0)
    text = TokenArray([*range(60), 500])
    chain.begin(1, text)
    assert draft_once(chain, text, 501, seq=1) == []


# --- G5: filler counted as proposals --------------------------------------------------------------------------------


def test_g5_one_found_token_is_one_proposed_token() -> None:
    params = SpeculatorParams(ngram_simple=NgramParams(size_n=1, size_m=5))
    found = session(["ngram-simple"], [0, 9, 9, 9, 9, 9, 9, 3, 4, 3], params).draft(5)
    assert found is not None
    assert found.tokens == [4]
    again = session(["ngram-simple"], [0, 9, 9, 9, 9, 9, 9, 3, 4, 3], params)
    again.draft(5)
    again.accept(1)
    stats = again.stats()["ngram-simple"]
    assert (stats.n_gen_tokens, stats.n_acc_tokens, stats.n_acc_tokens_per_pos) == (1, 1, (1,))


# --- G6: a repeated prompt looks faster than it is ------------------------------------------------------------------


@pytest.mark.parametrize("type_", ALL)
def test_g6_a_prompt_sent_twice_drafts_the_same_twice(type_: str) -> None:
    rng = random.Random(6)
    prompt = [rng.randrange(9) for _ in range(150)]
    target = prompt[20:90]
    first, second = (play_session(session([type_], prompt), target) for _ in range(2))
    assert first == second


# --- G7: hangs, nonsense, other output ------------------------------------------------------------------------------


HOSTILE = {
    "one token": [5] * 500,
    "two tokens": [5, 6] * 250,
    "empty": [],
    "one": [5],
    "two": [5, 6],
    "three": [5, 6, 5],
    "a run in a text": [*range(100), *[5] * 300, *range(100)],
}


@pytest.mark.parametrize("type_", ALL)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("params", [SMALL, SpeculatorParams()], ids=["small", "default"])
def test_g7_hostile_histories_keep_the_text(type_: str, name: str, params: SpeculatorParams) -> None:
    text = [*HOSTILE[name], 1, 5, 6, *HOSTILE[name][:100]]
    for n_prompt in {1, len(HOSTILE[name]) or 1}:
        played = play([type_], text[:n_prompt], text[n_prompt:], params)
        assert played.text == text
        assert all(len(draft) <= 64 for draft in played.drafts)


@pytest.mark.parametrize("type_", ALL)
@pytest.mark.parametrize("extra", [0, 1])
def test_g7_prompts_as_long_as_the_looked_up_n_gram(type_: str, extra: int) -> None:
    for n in (2, 12, 24):
        chain, text = make_chain([type_], SpeculatorParams()), TokenArray(range(n + extra))
        chain.begin(0, text)
        assert draft_once(chain, text, 99) == []


@pytest.mark.parametrize("type_", ALL)
@pytest.mark.parametrize("text", [[7] * 100_000, [7, 8] * 50_000], ids=["one token", "two tokens"])
def test_g7_a_long_run_is_drafted_in_bounded_steps(type_: str, text: list[int]) -> None:
    """100,000 tokens, and nothing that grows with their square: this ends, within the test's time limit."""
    chain, array = make_chain([type_], SpeculatorParams()), TokenArray(text)
    chain.begin(0, array)
    for _ in range(30):
        draft = draft_once(chain, array, text[len(array) % 2])
        assert len(draft) <= 64
        chain.accept(0, min(len(draft), 3) if chain.last_type(0) else 0)
        array.extend([text[(len(array) + i) % 2] for i in range(4)])


# --- G8: look-alike templates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ALL)
def test_g8_the_text_does_not_depend_on_what_must_match(type_: str) -> None:
    """Three look-alike definitions: a short match drafts the wrong one half of the time. Only acceptance may change."""
    definitions = [token for kind in (1, 2, 3) for token in (50, 51, 52, kind, 53, 54, *range(60, 60 + 5 * kind), 55)]
    target = [50, 51, 52, 2, 53, 54, *range(60, 70), 55, 50, 51, 52, 3, 53, 54, *range(60, 75), 55]
    for n in (1, 2, 8):
        sizes = NgramParams(size_n=n, size_m=4)
        params = SpeculatorParams(
            ngram_simple=sizes,
            ngram_map_k=sizes,
            ngram_map_k4v=sizes,
            ngram_mod=NgramModParams(n_match=n, n_min=0, n_max=8),
        )
        assert play([type_], definitions, target, params).text == [*definitions, *target]


# --- G9: no gain on copies ------------------------------------------------------------------------------------------


def test_g9_a_copy_gains_and_an_edited_copy_gains_most_with_suffix() -> None:
    """The figures that a user wants to see: rounds, tokens drafted, tokens accepted."""
    rng = random.Random(9)
    source = [rng.randrange(100, 400) for _ in range(300)]
    edited = [[20, 21] if i % 37 == 5 else [token] for i, token in enumerate(source)]
    target = [token for piece in edited for token in piece]
    params = SpeculatorParams()
    rounds = {type_: play_session(session([type_], [*source, 1, 2], params), target) for type_ in ALL}
    assert rounds["ngram-suffix"].n_rounds < min(rounds[type_].n_rounds for type_ in FIVE)
    assert rounds["ngram-cache"].n_rounds < 0.5 * len(target)
    assert all(sum(played.accepted) + played.n_rounds == len(target) for played in rounds.values())


# --- D9: one token too many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ALL)
@pytest.mark.parametrize("n_predict", [1, 2, 3, 7])
def test_d9_no_draft_is_longer_than_what_may_be_committed(type_: str, n_predict: int) -> None:
    text = [1, 2, 3, 4, 5] * 30
    played: Played = play_session(session([type_], text), text, n_predict)
    assert played.text == text[:n_predict]
    committed = 0
    for draft, accepted in zip(played.drafts, played.accepted, strict=True):
        assert len(draft) <= n_predict - committed - 1
        committed += accepted + 1
    assert committed == n_predict


# --- I4: settings of one speculator leak into another ---------------------------------------------------------------


def test_i4_each_has_its_own_settings() -> None:
    rng = random.Random(4)
    text = [rng.randrange(6) for _ in range(400)]
    alone = {type_: play([type_], text[:200], text[200:]).drafts for type_ in ALL}
    for type_ in ALL:
        others = {name: NgramParams(size_n=7, size_m=1) for name in ("ngram_simple", "ngram_map_k", "ngram_map_k4v")}
        others["ngram_mod"] = NgramModParams(n_match=9, n_min=1, n_max=1)  # type: ignore[assignment]
        own = type_.replace("-", "_")
        params = SpeculatorParams(**(others | {own: getattr(SMALL, own)} | {"ngram_suffix": SMALL.ngram_suffix}))  # type: ignore[arg-type]
        assert play([type_], text[:200], text[200:], params).drafts == alone[type_]


def test_i4_requests_choose_for_themselves() -> None:
    text = [1, 2, 3, 4, 5, 6] * 20
    small, large = session(["ngram-simple"], text), session(["ngram-map-k", "ngram-mod"], text, SpeculatorParams())
    assert list(small.stats()) == ["ngram-simple"]
    assert list(large.stats()) == ["ngram-map-k", "ngram-mod"]
    assert small.draft(9) is not None
    assert large.stats()["ngram-map-k"].n_call_draft == 0
