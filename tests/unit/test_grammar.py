"""Grammars: masks row by row, states that survive rejection, the end of the grammar as the end of the text."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.decoding.gbnf import gbnf_to_lark
from outrider.decoding.grammar import GrammarState, TokenTable, compile_grammar
from outrider.decoding.sampling import Sampler
from outrider.decoding.verify import verify
from outrider.errors import EngineError, RequestError
from outrider.types import SamplingParams

pytest.importorskip("llguidance", reason="llguidance is not installed (extra `grammar`)")

#: Every byte, some longer pieces, control tokens (no bytes), two of which end a text.
WORDS = [b'{"', b'":', b'": ', b'"}', b"tru", b"true", b"ab", b"abc", b"ing", b"  ", b"\n ", b"12", "é".encode(), b"}}"]
PIECES = [bytes([i]) for i in range(256)] + WORDS + [b"", b"", b"", b"<end>"]
N_VOCAB = len(PIECES)
CONTROL, EOG = N_VOCAB - 4, [N_VOCAB - 3, N_VOCAB - 1]
TABLE = TokenTable(PIECES, EOG) if "llguidance" in sys.modules else None

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", "ab", True]}}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


def grammar(text: str, kind: Any = "gbnf") -> GrammarState:
    assert TABLE is not None
    return compile_grammar(TABLE, kind, text)


def ids(text: str) -> list[int]:
    return list(text.encode())


def allowed(state: GrammarState) -> set[bytes]:
    return {PIECES[token] for token in np.flatnonzero(state.mask()).tolist()}


def can_be(state: GrammarState, text: str) -> bool:
    """Is `text`, byte by byte, a whole text of the grammar?"""
    for token in ids(text):
        if not state.mask()[token]:
            return False
        state = state.after(token)
    return state.ended or bool(state.mask()[EOG[0]])


# --- the language -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gbnf", "pattern"),
    [
        ('root ::= word "b"\nword ::= [ab]+', "[ab]+b"),  # longest-match tokens would never end
        ('root ::= x? y\nx ::= "ab"\ny ::= "b" | "bb" | "a"', "(ab)?(b|bb|a)"),
        ('root ::= "a"{2,3} ("b"{1,2})?', "a{2,3}(b{1,2})?"),
        ('root ::= ("a" | "ab")* "b"', "(a|ab)*b"),
        ('root ::= ab-rule | ab_rule\nab-rule ::= "a"\nab_rule ::= "b" .', "a|b[ab]"),
        ('root ::= start\nstart ::= "" | "a"+', "a*"),
        ('root ::= "\\x61" [\\x61-\\u0062]{2}  # a comment', "a[ab]{2}"),
        ('root ::= (\n"a"\n| # or\n"b" "b")', "a|bb"),
        ('root ::= [^b]* "b"', "a*b"),
    ],
)
def test_gbnf_is_the_language_it_says(gbnf: str, pattern: str) -> None:
    state = grammar(gbnf)
    texts = ["".join("ab"[n >> i & 1] for i in range(length)) for length in range(6) for n in range(2**length)]
    assert [text for text in texts if can_be(state, text)] == [text for text in texts if re.fullmatch(pattern, text)]


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        ('root ::= "\\"\\\\" [\\]\\\\"^-]{5}', '"\\]\\"^-'),
        ('root ::= "\\u00e9a" "é" [à-ü] "\\U0001F331"', "éaéü🌱"),
        ('root ::= "\\t\\n" . [^a-z]', "\t\n\n\n"),
        ('root ::= "[/]" [/]', "[/]/"),
    ],
)
def test_characters_that_need_care(gbnf: str, text: str) -> None:
    state = grammar(gbnf)
    assert can_be(state, text)
    assert not can_be(state, text[:-1])


@pytest.mark.parametrize(
    ("gbnf", "named"),
    [
        ("root ::= <think>", "<think>"),  # tokens by name
        ("root ::= a", "`a` is not defined"),
        ('a ::= "x"', "`root`"),
        ('root ::= "x', "end of input"),
        ('root ::= "\\q"', r"\\q"),
        ("root ::= [a&&b]", "&&"),
        ("root ::= [+--]", "--"),
        ('root ::= "\\ud800"', r"\\ud800"),
        ("root ::= [z-a]", "grammar"),
        ("root ::= " + "(" * 2000 + '"a"' + ")" * 2000, "recursion"),
        ("", "root"),
        ('root ::= ""', "no text"),
        ("root ::= root", "no text"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(gbnf: str, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        grammar(gbnf)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("[1", "not JSON"),
        ("[]", "object is needed, not list"),
        ('{"type": "foo"}', "foo"),
        ('{"x-guidance": 1}', "x-guidance: an object is needed"),
        ('{"x-guidance": null}', "x-guidance: an object is needed"),
        ("[" * 100_000, "not JSON"),
        ('{"$ref": "http://example.com/x"}', "http://example.com/x"),
        ('{"type": "object", "propertyNames": {"minLength": 3}}', "propertyNames"),
    ],
)
def test_schemas_that_are_wrong_or_not_supported_are_refused(schema: str, named: str) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        grammar(schema, "json_schema")
    assert len(str(caught.value)) < 500


def test_all_tokenisations_of_an_allowed_text_are_allowed() -> None:
    assert allowed(grammar('root ::= "true"')) == {b"t", b"tru", b"true"}
    assert allowed(grammar("root ::= [a-c]+")) == {b"a", b"b", b"c", b"ab", b"abc"}


def test_comments_cost_no_more_than_their_length() -> None:
    """With the square of it this would take a minute."""
    assert gbnf_to_lark("#\n" * 200_000 + 'root ::= "a"')


def test_control_tokens_are_never_text() -> None:
    mask = grammar("root ::= [^x]+").mask()
    assert not mask[CONTROL]
    assert not mask[EOG].any()
    state = grammar("root ::= [^x]+").after(ids("<")[0])
    assert state.mask()[EOG].all()  # the text may end here
    assert not state.mask()[CONTROL]


def test_white_space_in_json_is_bounded() -> None:
    state = grammar(SCHEMA, "json_schema").follow(ids("{\n" + " " * 20))
    assert b" " not in allowed(state)
    assert b'"' in allowed(state)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match="extra `grammar`"):
        TokenTable(PIECES, EOG)


# --- states -------------------------------------------------------------------------------------------------------


def random_texts(state: GrammarState, rng: np.random.Generator, length: int) -> list[GrammarState]:
    states = [state]
    while len(states) <= length and not states[-1].ended:
        mask = states[-1].mask().copy()
        mask[EOG] = False
        states.append(states[-1].after(int(rng.choice(np.flatnonzero(mask)))))
    return states


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from(["json", "gbnf"]), st.data())
def test_a_state_equals_a_fresh_one_fed_its_text(seed: int, kind: str, data: st.DataObject) -> None:
    """Jumping to and fro in a tree of states, tokens of one byte and of several, through the end and back."""
    source = (SCHEMA, "json_schema") if kind == "json" else ('root ::= ("ab" | "abc" | "é" | [a-c]{2} "ing")+ "}}"?',)
    state = grammar(*source)
    rng = np.random.default_rng(seed)
    tree = random_texts(state, rng, 8)
    for _ in range(3):
        tree += random_texts(tree[int(rng.integers(len(tree)))], rng, 6)
    for visited in data.draw(st.lists(st.sampled_from(tree), max_size=12)):
        fresh = grammar(*source).follow([step.token for step in visited._path()])
        assert visited.ended == fresh.ended
        assert (visited.mask() == fresh.mask()).all()


@pytest.mark.parametrize(
    ("one", "other"),
    [('{"a" :\n ', '{"a":-0\n '), ('{"a":-0\n ', '{"a" :\n '), ('{"a": ', '{"a":1 '), ('{"a":1 ', '{"a" : ')],
)
def test_a_mask_is_not_that_of_another_text_which_is_as_far(one: str, other: str) -> None:
    """llguidance keeps its last mask beyond a rollback."""
    state = grammar(SCHEMA, "json_schema").follow(ids(one))
    state.mask()
    assert allowed(state.follow(ids(other))) == allowed(grammar(SCHEMA, "json_schema").follow(ids(other)))


def test_follow_reads_only_what_is_new() -> None:
    start = grammar("root ::= [a-z]+")
    state = start.follow(ids("abcdef"))
    assert state.follow(ids("abcdef")) is state
    longer = state.follow(ids("abcdefgh"))
    assert longer.parent is not None
    assert longer.parent.parent is state
    shorter = longer.follow(ids("abc"))
    assert shorter is state.parent.parent.parent  # type: ignore[union-attr]
    assert longer.follow(ids("abx")).depth == 3
    assert longer.follow([]) is start


def test_a_rollback_that_fails_costs_time_and_nothing_else() -> None:
    class Stubborn:
        def __init__(self, matcher: Any) -> None:
            self.matcher = matcher

        def rollback(self, n: int) -> bool:
            return False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.matcher, name)

    state = grammar('root ::= "abc" "ing" | "ax"')
    longer = state.follow(ids("abc"))
    state._cursor._matcher = Stubborn(state._cursor._matcher)
    assert allowed(longer.follow(ids("a"))) == {b"b", b"x"}
    assert allowed(longer) == {b"i", b"ing"}


def test_a_token_that_is_not_allowed_is_an_error_and_harms_nothing() -> None:
    state = grammar('root ::= "abc"').follow(ids("a"))
    with pytest.raises(EngineError, match="grammar"):
        state.after(ids("x")[0])
    assert allowed(state) == {b"b"}
    with pytest.raises(EngineError, match="grammar"):
        state.follow(ids("abx"))
    assert allowed(state.follow(ids("ab"))) == {b"c"}


def test_a_mask_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        grammar("root ::= [a-z]+").mask()[0] = True


@pytest.mark.parametrize(
    ("draft", "n_valid"),
    [
        ("abc", 3),
        ("abx", 2),
        ("x", 0),
        ("", 0),
        ("abcc", 3),  # past the end of the grammar
    ],
)
def test_a_draft_is_cut_at_its_first_invalid_token(draft: str, n_valid: int) -> None:
    state = grammar('root ::= "abc"')
    assert state.valid_len(ids(draft)) == n_valid
    assert state.valid_len([*ids(draft), N_VOCAB + 7]) == n_valid
    assert allowed(state) == {b"a", b"ab", b"abc"}  # unchanged by the question


def test_an_end_token_in_a_draft_is_valid_where_the_text_may_end() -> None:
    state = grammar("root ::= [a-z]+")
    assert state.valid_len([*ids("ab"), EOG[1]]) == 3
    assert state.valid_len([EOG[0]]) == 0


# --- verification -------------------------------------------------------------------------------------------------


def rows_of(history: Sequence[int], draft: Sequence[int], seed: int) -> NDArray[np.float32]:
    """Random logits by the last token and the position, all tokens about as likely."""
    rows = []
    for i in range(len(draft) + 1):
        text = [*history, *draft[:i]]
        rows.append(np.random.default_rng([seed, len(text), text[-1]]).normal(0, 1, N_VOCAB))
    return np.array(rows, np.float32)


def generate(state: GrammarState, sampler: Sampler, seed: int, n: int, drafted: Sequence[int], wrong: int) -> list[int]:
    """`n` tokens at most; drafts of `wrong` right tokens and then anything, out of the text `drafted`."""
    tokens: list[int] = []
    ended = False
    while not ended and len(tokens) < n:
        draft = [*drafted[len(tokens) : len(tokens) + wrong], 120, 121] if drafted else []
        state = state.follow(tokens)
        draft = draft[: state.valid_len(draft)]
        rows = rows_of([1, *tokens], draft, seed)
        verified = verify(sampler, rows, draft, [1, *tokens], len(tokens), max_tokens=n - len(tokens), constraint=state)
        assert isinstance(verified.constraint, GrammarState)
        state, ended = verified.constraint, verified.end_of_text
        tokens += verified.tokens
        assert state.depth == len([token for token in tokens if token not in EOG])
    return tokens


@settings(max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([0.0, 1.0]), st.integers(0, 6), st.sampled_from(["json", "gbnf"]))
def test_speculative_equals_plain_under_a_grammar(seed: int, temp: float, wrong: int, kind: str) -> None:
    source = (SCHEMA, "json_schema") if kind == "json" else ('root ::= [a-c]{3,9} ("ing" | "é")* "."?',)
    sampler = Sampler(SamplingParams(seed=seed, temp=temp, repeat_penalty=1.1), 0, N_VOCAB, EOG)
    plain = generate(grammar(*source), sampler, seed, 40, [], 0)
    assert generate(grammar(*source), sampler, seed, 40, plain, wrong) == plain


@pytest.mark.parametrize("seed", range(8))
def test_sampled_json_is_valid(seed: int) -> None:
    sampler = Sampler(SamplingParams(seed=seed, temp=0.5), 0, N_VOCAB, EOG)
    tokens = generate(grammar(SCHEMA, "json_schema"), sampler, seed, 500, [], 0)
    text = b"".join(PIECES[token] for token in tokens).decode()
    value = json.loads(text)
    assert isinstance(value["a"], int)
    assert set(map(str, value["b"])) <= {"x", "ab", "True"}
    assert text.endswith("}")


def test_nothing_is_sampled_or_counted_after_the_grammar_s_end() -> None:
    """The target would go on, and so does the draft; the closing brace is the last token."""
    text = ids('{"a":1}')
    state = grammar(
        '{"type":"object","properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false}', "json_schema"
    )
    rows = np.eye(N_VOCAB, dtype=np.float32)[[*text, *ids("xyz")]] * 9
    sampler = Sampler(SamplingParams(temp=0.0), 0, N_VOCAB, EOG)
    draft = [*text, *ids("xy")]
    assert state.valid_len(draft) == len(text)
    verified = verify(sampler, rows, draft, [1], 0, constraint=state)
    assert list(verified.tokens) == text
    assert (verified.accepted, verified.end_of_text) == (len(text), True)


def test_where_the_text_may_end_the_target_decides() -> None:
    state = grammar("root ::= [a-z]+").follow(ids("ab"))
    sampler = Sampler(SamplingParams(temp=0.0), 0, N_VOCAB, EOG)
    on, end = ids("c")[0], EOG[1]
    rows = np.eye(N_VOCAB, dtype=np.float32)[[on, end, on]] * 9
    verified = verify(sampler, rows, [on, end], [1, *ids("ab")], 2, constraint=state)
    assert (verified.tokens, verified.accepted, verified.end_of_text) == ((on, end), 2, True)


def test_conversion_is_pure_text() -> None:
    assert gbnf_to_lark('root ::= "a"* b\nb ::= [0-9]') == "\n".join(
        ["start: rule0", 'rule0: ((("a")){0,} rule1)', "rule1: (/[0-9]/)"]
    )
