"""Grammars through the pipeline: masks row by row, drafts cut before they cost a row, nothing after the end."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.instructions import Finished
from coordinator.overlap import Overlap
from coordinator.schedule import Lockstep
from outrider.engine.scripted import EOS
from outrider.types import Grammar, SamplingParams
from outrider.wire.messages import Failure
from target_worker.worker import TargetWorker
from tests.harness import GREEDY, Pair, make_request, plain, scripted
from tests.state.alone import Alone

pytest.importorskip("llguidance", reason="llguidance is not installed (extra `grammar`)")

PROMPT = list(b"Once")
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
GRAMMARS = [
    Grammar("gbnf", r"root ::= [^\x00-\x1f]+"),  # nearly everything: drafts are mostly valid
    Grammar("gbnf", r'root ::= ([^aeiou] | "w" [0-9]){1,12} "."?'),
    Grammar("gbnf", r'root ::= (" w" [0-9]+)+ | [a-z]{3,30} "!"'),
    Grammar("json_schema", SCHEMA),
    Grammar("json_schema", "{}"),
]


def alone(grammar: Grammar, script: str = "seed=7", sampling: SamplingParams = GREEDY) -> Alone:
    session = Alone(TargetWorker(scripted(script)))
    assert session.begin(len(PROMPT), sampling, grammar=grammar) == []
    return session


@settings(max_examples=settings.default.max_examples // 2)
@given(
    grammar=st.sampled_from(GRAMMARS),
    temp=st.sampled_from([0.0, 0.8, 3.0]),
    seed=st.integers(0, 2**20),
    n_max=st.integers(0, 7),
    disagree=st.sampled_from([0, 30]),
    eos=st.sampled_from([0, 5]),
    checkpoint=st.booleans(),
    n_batch=st.sampled_from([3, 512]),
    schedule=st.sampled_from([Lockstep, Overlap]),
)
def test_speculative_equals_plain_under_a_grammar(
    grammar: Grammar,
    temp: float,
    seed: int,
    n_max: int,
    disagree: int,
    eos: int,
    checkpoint: bool,
    n_batch: int,
    schedule: type[Lockstep] | type[Overlap],
) -> None:
    sampling = SamplingParams(temp=temp, seed=seed, repeat_penalty=1.1)
    request = make_request(sampling=sampling, n_max=n_max, n_predict=30, grammar=grammar, row_hashes=True)
    script = f"seed=7,eos={eos}"
    expected = plain(scripted(script), request)
    pair = Pair(
        scripted(f"{script},checkpoint={checkpoint:d}", n_batch=n_batch), scripted(f"{script},disagree={disagree}")
    )
    actual = pair.run(request, schedule())
    assert actual.generated == expected.generated
    assert actual.row_hashes == expected.row_hashes
    assert (actual.text.text, actual.finish_reason) == (expected.text.text, expected.finish_reason)
    assert actual.counts.draft_n_accepted <= actual.counts.draft_n


def test_valid_drafts_are_accepted_under_a_grammar() -> None:
    request = make_request(n_predict=40, grammar=GRAMMARS[0])
    session = Pair(scripted("seed=7"), scripted("seed=7")).run(request)
    assert session.counts.draft_n_accepted > 10
    assert session.counts.rounds < 40


def test_a_finished_schema_is_json() -> None:
    request = make_request(n_predict=400, grammar=GRAMMARS[3], sampling=SamplingParams(temp=1.0, seed=3))
    session = Pair(scripted("seed=7"), scripted("seed=7")).run(request)
    assert session.finish_reason == "stop"
    assert isinstance(json.loads(session.text.text)["a"], int)


def test_the_part_of_a_draft_that_cannot_be_is_neither_evaluated_nor_counted() -> None:
    session = alone(Grammar("gbnf", 'root ::= "ab" [0-9]+ "."'))
    verdict = session.verify(PROMPT, list(b"abcdef"))
    assert verdict.n_tested == 2
    assert verdict.n_evaluated == len(PROMPT) + 2
    whole = Pair(scripted("seed=7"), scripted("seed=7")).run(make_request(n_predict=20, grammar=GRAMMARS[3]))
    assert whole.counts.draft_n == sum(whole.counts.drafted_per_pos)
    assert whole.counts.draft_n < whole.chain.members[0].counters.n_gen_tokens


def test_rows_after_the_token_that_changes_the_rules_are_masked() -> None:
    """Inside one block: after "ab" digits alone are allowed, whatever was allowed at the first row."""
    session = alone(Grammar("gbnf", 'root ::= "ab" [0-9]+ "!"'))
    first = session.verify(PROMPT, list(b"ab"))
    assert (first.accepted, bytes(first.tokens[:2])) == (2, b"ab")
    assert first.tokens[2] in b"0123456789"
    again = session.verify(PROMPT, [*first.tokens, ord("x")])
    assert (again.n_tested, again.accepted, again.tokens[:3]) == (3, 3, first.tokens)
    assert again.tokens[3] in b"0123456789!"


def test_a_draft_past_the_end_of_the_grammar_ends_with_it() -> None:
    session = alone(Grammar("gbnf", 'root ::= "a" "b" "c"'))
    verdict = session.verify(PROMPT, list(b"abcabc"))
    assert (verdict.tokens, verdict.accepted, verdict.n_tested) == ([*b"abc"], 3, 3)
    assert verdict.end_of_text
    refusal = session.worker.handle(session.verify_request([*PROMPT, *b"abc"]))
    assert isinstance(refusal[0], Failure)
    assert "nothing can follow" in refusal[0].reason


def test_a_grammar_s_end_is_the_end_of_the_request() -> None:
    request = make_request(n_predict=50, n_max=6, grammar=Grammar("gbnf", 'root ::= "abc"'))
    session = Pair(scripted("seed=7"), scripted("seed=7")).run(request)
    assert (session.text.text, session.finish_reason, len(session.generated)) == ("abc", "stop", 3)
    assert sum(session.counts.drafted_per_pos) == session.counts.draft_n


def test_an_interrupted_round_leaves_nothing_of_its_draft() -> None:
    """The slot goes to another session with another grammar between a draft and its verification."""
    session = alone(GRAMMARS[0])
    session.worker.handle(session.verify_request(PROMPT, list(b"qqqq")))
    session.end()
    session.begin(len(PROMPT), grammar=Grammar("gbnf", "root ::= [0-9]+"))
    verdict = session.verify(PROMPT)
    assert verdict.tokens == alone(Grammar("gbnf", "root ::= [0-9]+")).verify(PROMPT).tokens
    assert verdict.n_tested == 0


@settings(max_examples=settings.default.max_examples // 8)
@given(grammar=st.sampled_from(GRAMMARS), data=st.data())
def test_the_state_is_that_of_a_fresh_matcher_on_the_kept_text(grammar: Grammar, data: st.DataObject) -> None:
    """Whatever was verified, rejected, rolled back or asked again before."""
    script = "seed=5,eos=3"
    session = alone(grammar, script, SamplingParams(temp=1.5, seed=1))
    texts = [PROMPT]
    for _ in range(6):
        text = data.draw(st.sampled_from(texts))
        draft = data.draw(st.lists(st.integers(0, 299), max_size=5))
        if data.draw(st.booleans()):
            session.rollback(text)
        verdict = session.verify(text, draft)
        fresh = alone(grammar, script, SamplingParams(temp=1.5, seed=1)).verify(text, draft)
        assert (verdict.tokens, verdict.n_tested) == (fresh.tokens, fresh.n_tested)
        if not verdict.end_of_text:
            texts.append([*text, *verdict.tokens])
            texts.append([*text, another(session, text, data)])


def another(session: Alone, text: list[int], data: st.DataObject) -> int:
    """Some token that may follow, so that texts part."""
    state, generated = session.worker.slots[1].constrained.after(text[len(PROMPT) :]), text[len(PROMPT) :]
    allowed = np.flatnonzero(state.mask()[:EOS])[:20].tolist()
    # One that completes the text has nothing after it.
    return int(data.draw(st.sampled_from([token for token in allowed if not state.follow([*generated, token]).ended])))


def test_a_mask_is_asked_for_at_every_row_and_never_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.decoding.grammar import GrammarState

    asked: list[int] = []
    real = GrammarState.mask

    def mask(state: GrammarState) -> np.ndarray:
        assert not state.ended
        asked.append(state.depth)
        return real(state)

    monkeypatch.setattr(GrammarState, "mask", mask)
    session = alone(Grammar("gbnf", 'root ::= "a" "b" "c"'))
    asked.clear()
    session.verify(PROMPT, list(b"abc"))
    assert asked == [0, 1, 2]


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar("gbnf", "root ::= missing"), "rule `missing` is not defined"),
        (Grammar("gbnf", "other ::= [a]"), "there is no rule `root`"),
        (Grammar("gbnf", 'root ::= "'), "not convertible"),
        (Grammar("json_schema", "{"), "not JSON"),
        (Grammar("json_schema", "[]"), "an object is needed"),
    ],
)
@pytest.mark.parametrize("drafted", [True, False])
def test_a_grammar_that_cannot_be_is_refused_with_one_line(grammar: Grammar, words: str, drafted: bool) -> None:
    pair = Pair(scripted(), scripted() if drafted else None)
    session = pair.run(make_request(grammar=grammar))
    assert isinstance(pair.finished, Finished)
    assert (pair.finished.reason, pair.finished.code) == ("error", "bad_request")
    assert words in (session.error or "")
    assert "\n" not in (session.error or "")
    assert session.generated == []
    assert not pair.workers["target"].slots


def test_a_row_that_leaves_no_choice_fails_the_request_and_not_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(scripted())
    with monkeypatch.context() as patch:
        patch.setattr(pair.workers["target"].engine, "_fill", lambda row, state: row.fill(np.nan))
        session = pair.run(make_request(grammar=GRAMMARS[0]))
    assert (session.finish_reason, session.error_code) == ("error", "engine")
    assert "nan" in (session.error or "")
    assert pair.run(make_request(n_predict=3)).finish_reason == "length"
