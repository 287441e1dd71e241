"""Random streams through every speculator: nothing raises, drafts come from the text, states can be set back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.speculators.chain import Chain
from outrider.speculators.factory import make_chain
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import NgramModParams, NgramParams, NgramSuffixParams, SpeculatorParams
from tests.drafting import ALL, agreed, draft_once

sizes = st.builds(NgramParams, size_n=st.integers(1, 4), size_m=st.integers(1, 9), min_hits=st.integers(1, 3))
some_params = st.builds(
    SpeculatorParams,
    ngram_simple=sizes,
    ngram_map_k=sizes,
    ngram_map_k4v=sizes,
    ngram_mod=st.builds(NgramModParams, n_match=st.integers(1, 4), n_min=st.integers(0, 4), n_max=st.integers(0, 12)),
    ngram_suffix=st.builds(NgramSuffixParams, n_min=st.integers(1, 3), n_max=st.integers(1, 20)),
)
some_types = st.one_of(
    st.sampled_from(ALL).map(lambda type_: [type_]), st.lists(st.sampled_from(ALL), min_size=1, unique=True)
)


@st.composite
def repeating_streams(draw: st.DrawFn) -> list[int]:
    """Tokens, and passages from before."""
    n_vocab = draw(st.sampled_from([2, 3, 8, 1000]))
    stream = draw(st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=20))
    for _ in range(draw(st.integers(0, 12))):
        start = draw(st.integers(0, len(stream) - 1))
        stream += stream[start : start + draw(st.integers(1, 40))]
        stream += draw(st.lists(st.integers(0, n_vocab - 1), max_size=3))
    return stream


class Run:
    """A stream with turns (a new begin now and then, on a text that may be shorter), rounds and budgets."""

    def __init__(self, chain: Chain, stream: list[int], data: st.DataObject) -> None:
        self.chain, self.stream, self.data = chain, stream, data
        self.corpus = set(stream)
        self.text, self.position = TokenArray(), 0
        self.begin()

    def begin(self) -> None:
        self.position = self.data.draw(st.integers(0, len(self.stream) - 1))
        self.text = TokenArray(self.stream[: self.position])
        self.chain.begin(0, self.text)

    def round(self) -> list[int]:
        n_max = self.data.draw(st.sampled_from([-1, 0, 1, 3, 100]))
        draft = draft_once(self.chain, self.text, self.stream[self.position], n_max)
        assert len(draft) <= (n_max if n_max > 0 else self.chain.n_max)
        assert set(draft) <= self.corpus
        accepted = agreed(draft, self.stream[self.position + 1 :])
        if draft or (self.chain.last_type(0) and self.data.draw(st.booleans())):
            self.chain.accept(0, accepted)
        self.go_on(accepted + 1)
        return draft

    def go_on(self, n: int) -> None:
        n = min(n, len(self.stream) - 1 - self.position)
        self.text.extend(self.stream[self.position : self.position + n])
        self.position += n

    @property
    def ended(self) -> bool:
        return self.position >= len(self.stream) - 1


@settings(max_examples=200)
@given(some_types, some_params, repeating_streams(), st.data())
def test_any_stream(types: list[str], params: SpeculatorParams, stream: list[int], data: st.DataObject) -> None:
    run = Run(make_chain(types, params), stream, data)
    for _ in range(data.draw(st.integers(1, 12))):
        if run.ended or data.draw(st.integers(0, 9)) == 0:
            run.begin()
        run.round()
    for member in run.chain.members:
        counters = member.counters
        assert counters.n_gen_tokens <= counters.n_made_tokens
        assert counters.n_acc_tokens == sum(counters.n_acc_tokens_per_pos)


def rest(chain: Chain, text: list[int], stream: list[int], n_rounds: int) -> list[Any]:
    """What the chain does from here on, all told."""
    drafts = []
    array, position = TokenArray(text), len(text)
    for _ in range(n_rounds):
        if position >= len(stream) - 1:
            break
        draft = draft_once(chain, array, stream[position])
        accepted = agreed(draft, stream[position + 1 :])
        if draft:
            chain.accept(0, accepted)
        n = min(accepted + 1, len(stream) - 1 - position)
        array.extend(stream[position : position + n])
        position += n
        drafts.append((draft, chain.last_type(0)))
    return drafts


@settings(max_examples=200)
@given(some_types, some_params, repeating_streams(), st.data())
def test_a_state_set_back_goes_on_as_before(
    types: list[str], params: SpeculatorParams, stream: list[int], data: st.DataObject
) -> None:
    chain = make_chain(types, replace(params, ngram_mod=replace(params.ngram_mod, shared_pool=False)))
    run = Run(chain, stream, data)
    for _ in range(data.draw(st.integers(0, 5))):
        if not run.ended:
            run.round()
    text = run.text.tokens.tolist()
    kept = chain.get_state(0)
    first = rest(chain, text, stream, 6)
    chain.begin(0, TokenArray(stream[:3]))
    chain.set_state(0, kept)
    second = rest(chain, text, stream, 6)
    other = make_chain(types, params)
    other.set_state(0, kept)
    assert first == second == rest(other, text, stream, 6)


@pytest.mark.parametrize("type_", ALL)
def test_setting_a_state_does_not_tie_it_to_what_follows(type_: str) -> None:
    """The same state can be set twice, whatever happened after the first time."""
    params = SpeculatorParams(
        ngram_simple=NgramParams(size_n=1, size_m=3),
        ngram_map_k=NgramParams(size_n=1, size_m=3),
        ngram_map_k4v=NgramParams(size_n=1, size_m=3),
        ngram_mod=NgramModParams(n_match=1, n_min=0, n_max=3),
    )
    chain, stream = make_chain([type_], params), [1, 2, 3, 4, 5, 1, 2, 6, 7, 1, 2, 3, 4, 8, 1, 2, 3, 4, 5, 1] * 4
    kept = chain.get_state(0)
    runs = []
    for _ in range(3):
        chain.set_state(0, kept)
        runs.append(rest(chain, stream[:20], stream, 20))
    assert runs[0] == runs[1] == runs[2]
    assert any(draft for draft, _ in runs[0])
