"""The priority chain, and the session that uses it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.errors import SpeculatorError
from outrider.speculators.base import DraftParams, Speculator
from outrider.speculators.chain import Chain, Member
from outrider.speculators.factory import load_shared, make_chain
from outrider.speculators.session import SessionSpeculators
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import (
    LOOKUP_TYPES,
    MODEL_TYPES,
    PRIORITY,
    RUNNABLE,
    TYPE_NAMES,
    NgramCacheParams,
    NgramModParams,
    SpeculatorParams,
    by_priority,
    longest_draft,
)
from tests.drafting import SMALL


class Scripted(Speculator):
    """Drafts what it was given for each sequence, and keeps a diary."""

    def __init__(self, type_: str, drafts: dict[int, list[int]] | None = None, n_max: int = 4) -> None:
        self.type, self.n_max = type_, n_max
        self.drafts = drafts or {}
        self.diary: list[tuple[object, ...]] = []
        self.kept = 0

    def begin(self, seq: int, prompt: TokenArray) -> None:
        self.diary.append(("begin", seq, len(prompt)))

    def process(self, seq: int, first_pos: int, tokens: Sequence[int], rows: object = None) -> None:
        self.diary.append(("process", seq, first_pos, *tokens))

    def draft(self, requests: Sequence[DraftParams]) -> None:
        self.diary.append(("draft", *(request.seq for request in requests)))
        for request in requests:
            request.result.extend(self.drafts.get(request.seq, []))

    def accept(self, seq: int, n_accepted: int, by_other: bool) -> None:
        self.diary.append(("accept", seq, n_accepted, by_other))

    def get_state(self, seq: int) -> object:
        return self.kept

    def set_state(self, seq: int, state: object) -> None:
        assert isinstance(state, int)
        self.kept = state


def chain_of(*speculators: Scripted, n_seq: int = 1) -> Chain:
    return Chain([Member(s.type, s.n_max, s) for s in speculators], n_seq)


def ask(*seqs: int, n_max: int = -1) -> list[DraftParams]:
    return [DraftParams(seq, 1, 0, TokenArray(), n_max) for seq in seqs]


def test_the_first_with_a_draft_wins_and_the_others_learn_nothing() -> None:
    first, second, third = Scripted("a", {1: [7]}), Scripted("b", {0: [8, 9], 1: [5]}), Scripted("c", {0: [1]})
    chain = chain_of(first, second, third, n_seq=3)
    requests = ask(0, 1)
    chain.draft(requests)
    assert [request.result for request in requests] == [[8, 9], [7]]
    assert (first.diary, second.diary, third.diary) == ([("draft", 0, 1)], [("draft", 0)], [])
    assert [chain.last_type(seq) for seq in range(3)] == ["b", "a", None]


def test_sequences_are_asked_in_order() -> None:
    only = Scripted("a")
    chain_of(only, n_seq=3).draft(ask(2, 0, 1))
    assert only.diary == [("draft", 0, 1, 2)]


def test_accept_goes_to_the_one_that_drafted() -> None:
    first, second = Scripted("a"), Scripted("b", {0: [8, 9, 7]})
    chain = chain_of(first, second)
    chain.draft(ask(0))
    chain.accept(0, 2)
    assert first.diary[-1] == ("accept", 0, 2, True)
    assert second.diary[-1] == ("accept", 0, 2, False)
    counts = [member.counters for member in chain.members]
    assert [c.n_call_draft for c in counts] == [1, 1]
    assert [c.n_call_accept for c in counts] == [0, 1]
    assert (counts[1].n_gen_drafts, counts[1].n_gen_tokens, counts[1].n_acc_drafts, counts[1].n_acc_tokens) == (
        1,
        3,
        1,
        2,
    )
    assert counts[1].n_acc_tokens_per_pos == [1, 1]


@pytest.mark.parametrize(("n_max", "expected"), [(2, 2), (1, 1), (0, 4), (-1, 4), (-5, 4), (9, 4)])
def test_a_request_limits_only_above_zero(n_max: int, expected: int) -> None:
    chain = chain_of(Scripted("a", {0: [1, 2, 3, 4]}))
    requests = ask(0, n_max=n_max)
    chain.draft(requests)
    assert len(requests[0].result) == expected
    counters = chain.members[0].counters
    assert (counters.n_made_tokens, counters.n_gen_tokens) == (4, expected)


def test_begin_and_process_are_told_to_all() -> None:
    first, second = Scripted("a"), Scripted("b")
    chain = chain_of(first, second)
    chain.begin(0, TokenArray([1, 2]))
    chain.process(0, 5, [3, 4])
    assert first.diary == second.diary == [("begin", 0, 2), ("process", 0, 5, 3, 4)]
    assert chain.members[1].counters.n_call_begin == 1


def test_nobody_asks() -> None:
    only = Scripted("a")
    chain = chain_of(only)
    chain.draft([])
    assert only.diary == []
    assert chain.members[0].counters.n_call_draft == 0


def test_accept_after_an_empty_round_goes_to_the_last_drafter() -> None:
    only = Scripted("a", {0: [1]})
    chain = chain_of(only)
    chain.accept(0, 0)
    assert only.diary == []
    chain.draft(ask(0))
    only.drafts = {}
    chain.draft(ask(0))
    chain.accept(0, 0)
    assert only.diary[-1] == ("accept", 0, 0, False)
    assert chain.members[0].counters.n_call_accept == 1


def test_misuse_is_refused() -> None:
    chain = chain_of(Scripted("a", {0: [1]}), n_seq=2)
    for seq in (-1, 2):
        with pytest.raises(SpeculatorError, match=f"no sequence {seq}; there are 2"):
            chain.draft(ask(seq))
        with pytest.raises(SpeculatorError, match="no sequence"):
            chain.accept(seq, 0)
    with pytest.raises(SpeculatorError, match="asks twice"):
        chain.draft(ask(0, 0))
    request = ask(0)
    request[0].result.append(5)
    with pytest.raises(SpeculatorError, match="the result of sequence 0 is not empty"):
        chain.draft(request)
    with pytest.raises(SpeculatorError, match="has no draft of which 1 tokens"):
        chain.accept(0, 1)
    with pytest.raises(SpeculatorError, match="it must be 0 to 65535"):
        chain.accept(0, -1)
    assert chain.members[0].counters.n_call_draft == 0


def test_state_goes_back_with_its_drafter() -> None:
    first, second = Scripted("a", {0: [1]}), Scripted("b", {0: [2]})
    chain = chain_of(first, second)
    first.kept, second.kept = 3, 4
    before = chain.get_state(0)
    chain.draft(ask(0))
    after = chain.get_state(0)
    first.kept = 0
    chain.set_state(0, before)
    assert (first.kept, second.kept, chain.last_type(0)) == (3, 4, None)
    chain.set_state(0, after)
    assert chain.last_type(0) == "a"


def test_times_are_the_given_clocks() -> None:
    ticks = iter(range(0, 1000, 7))
    chain = Chain([Member("a", 4, Scripted("a", {0: [1]}))], clock=lambda: next(ticks))
    chain.begin(0, TokenArray())
    chain.draft(ask(0))
    chain.accept(0, 1)
    stats = chain.members[0].counters.stats()
    assert (stats.t_begin_us, stats.t_draft_us, stats.t_accept_us) == (7, 7, 7)
    assert stats.mean_acceptance_len == 2.0


# --- a draft model in another process -------------------------------------------------------------------------------


def test_a_model_outside_is_asked_by_the_caller() -> None:
    chain = make_chain(["draft-simple", "ngram-simple"], SMALL, model_outside=True)
    assert [member.type for member in chain.members] == ["ngram-simple", "draft-simple"]
    request = ask(0)
    chain.draft(request)
    assert request[0].result == []
    chain.drafted_outside(0, "draft-simple", 3, us=50)
    assert chain.last_type(0) == "draft-simple"
    chain.accept(0, 2)
    counters = chain.members[1].counters
    assert (counters.n_call_draft, counters.n_gen_tokens, counters.n_acc_tokens, counters.t_draft_us) == (1, 3, 2, 50)
    chain.drafted_outside(0, "draft-simple", 0)
    assert (counters.n_call_draft, counters.n_gen_drafts) == (2, 1)


@pytest.mark.parametrize("type_", ["ngram-simple", "draft-simple"])
def test_only_a_member_outside_drafts_outside(type_: str) -> None:
    with pytest.raises(SpeculatorError, match=f"no speculator of type {type_} drafts outside"):
        make_chain(["ngram-simple"], SMALL).drafted_outside(0, type_, 1)


# --- names and making -----------------------------------------------------------------------------------------------


def test_names_order_and_who_runs() -> None:
    assert set(TYPE_NAMES) == {"none", *PRIORITY}
    assert PRIORITY == LOOKUP_TYPES + MODEL_TYPES
    assert {*LOOKUP_TYPES, "draft-simple"} == RUNNABLE
    assert by_priority(["draft-simple", "ngram-cache", "none", "ngram-simple", "ngram-cache"]) == [
        "ngram-simple",
        "ngram-cache",
        "draft-simple",
    ]


def test_the_order_and_repeats_of_a_list_do_not_matter() -> None:
    chain = make_chain([*reversed(LOOKUP_TYPES), "ngram-mod", "none"], SMALL)
    assert [member.type for member in chain.members] == list(LOOKUP_TYPES)
    assert chain.n_max == 12 == longest_draft(LOOKUP_TYPES, SMALL)


@pytest.mark.parametrize("types", [[], ["none"], ["draft-mtp"], ["draft-eagle3", "none", "draft-dspark"]])
def test_a_chain_of_nobody(types: list[str]) -> None:
    chain = make_chain(types, SpeculatorParams())
    assert not chain
    assert chain.n_max == 0
    request = ask(0)
    chain.draft(request)
    chain.begin(0, TokenArray([1]))
    chain.accept(0, 0)
    assert request[0].result == []


def test_draft_simple_needs_a_model_even_beside_others() -> None:
    with pytest.raises(SpeculatorError, match="draft-simple needs a draft model"):
        make_chain(["ngram-simple", "draft-simple"], SMALL)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SpeculatorError, match="unknown type of speculation 'ngram_mod'"):
        make_chain(["ngram_mod"], SMALL)


def test_shared_things_are_made_once_and_only_for_those_who_want_them() -> None:
    params = SpeculatorParams(
        ngram_mod=NgramModParams(shared_pool=True), ngram_cache=NgramCacheParams(lookup_static="/no/such/file")
    )
    shared = load_shared(["ngram-mod"], params)
    assert shared.static is None
    chains = [make_chain(["ngram-mod"], params, shared=shared, n_seq=2) for _ in range(2)]
    pools = {id(pool) for chain in chains for pool in chain.members[0].speculator.pools}  # type: ignore[union-attr]
    assert pools == {id(shared.mod_pool)}
    assert load_shared(["ngram-simple"], params).mod_pool is None


# --- the session ----------------------------------------------------------------------------------------------------


def session_of(*speculators: Scripted) -> SessionSpeculators:
    return SessionSpeculators(chain_of(*speculators), [1, 2, 3])


def test_a_round_of_a_session() -> None:
    only = Scripted("a", {0: [7, 8, 9]})
    session = session_of(only)
    draft = session.draft(2)
    assert draft is not None
    assert (draft.tokens, draft.type) == ([7, 8], "a")
    session.accept(1)
    session.commit([7, 5])
    assert only.diary == [("begin", 0, 2), ("draft", 0), ("accept", 0, 1, False)]
    assert session.stats()["a"].n_gen_tokens == 2
    session.commit([])
    only.drafts = {}
    assert session.draft(2) is None
    session.accept(0)
    assert session.stats()["a"].n_call_accept == 1


def test_a_speculator_that_fails_costs_its_drafts(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Scripted):
        def draft(self, requests: Sequence[DraftParams]) -> None:
            raise IndexError

    session = session_of(Broken("a"))
    for _ in range(2):
        assert session.draft(2) is None
        session.commit([4])
    assert len(caplog.records) == 1


def test_nobody_is_asked_without_a_budget() -> None:
    only = Scripted("a", {0: [7]})
    session = session_of(only)
    assert session.draft(0) is None
    assert session.draft(-1) is None
    assert only.diary == [("begin", 0, 2)]


def test_the_text_of_a_session_is_the_committed_one() -> None:
    seen = []

    class Looking(Scripted):
        def draft(self, requests: Sequence[DraftParams]) -> None:
            seen.append((requests[0].prompt.tokens.tolist(), requests[0].id_last, requests[0].n_past))

    session = SessionSpeculators(chain_of(Looking("a")), [1, 2, 3], prediction=[8, 9])
    session.draft(5)
    session.commit([4])
    session.draft(5)
    session.commit([5, 6, 7])
    session.draft(5)
    assert seen == [([8, 9, 1, 2], 3, 2), ([8, 9, 1, 2, 3], 4, 3), ([8, 9, 1, 2, 3, 4, 5, 6], 7, 6)]


def test_a_model_outside_a_session() -> None:
    session = SessionSpeculators(make_chain(["draft-simple"], SMALL, model_outside=True), [1, 2])
    assert session.draft(4) is None
    session.drafted_outside("draft-simple", 2)
    session.accept(2)
    stats = session.stats()["draft-simple"]
    assert (stats.n_call_draft, stats.n_gen_tokens, stats.n_acc_tokens) == (1, 2, 2)
