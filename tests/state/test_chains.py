"""Speculative equals plain with every mix of speculators, on texts that repeat themselves and part again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.auto import make_session
from coordinator.overlap import Overlap
from coordinator.schedule import Lockstep
from outrider.speculators.factory import make_chain
from outrider.speculators.types import NgramModParams, NgramParams, NgramSuffixParams, SpeculatorParams
from outrider.types import Grammar, SamplingParams
from tests.harness import Pair, make_request, plain, scripted

pytest.importorskip("llguidance", reason="llguidance is not installed (extra `grammar`)")

TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "ngram-suffix", "draft-simple")
SMALL = SpeculatorParams(
    ngram_simple=NgramParams(size_n=2, size_m=4),
    ngram_map_k=NgramParams(size_n=2, size_m=4),
    ngram_map_k4v=NgramParams(size_n=2, size_m=4),
    ngram_mod=NgramModParams(n_match=2, n_min=1, n_max=6),
    ngram_suffix=NgramSuffixParams(n_min=1, n_max=6),
)
TEXTS = [
    Grammar("gbnf", 'root ::= ("abc" | "abd" | "abcde" "\\n")*'),
    Grammar("gbnf", 'root ::= ("the " ("cat " | "dog ") ("sat" | "ran") ". ")*'),
]


@settings(max_examples=settings.default.max_examples // 2)
@given(
    types=st.lists(st.sampled_from(TYPES), min_size=1, unique=True),
    schedule=st.sampled_from([Lockstep, Overlap]),
    grammar=st.sampled_from(TEXTS),
    temp=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 100),
    n_max=st.integers(1, 5),
    checkpoint=st.booleans(),
    disagree=st.sampled_from([0, 40]),
    stops=st.sampled_from([(), ("dog ran",), ("de",)]),
)
def test_no_speculator_changes_the_text(
    types: list[str],
    schedule: type[Lockstep] | type[Overlap],
    grammar: Grammar,
    temp: float,
    seed: int,
    n_max: int,
    checkpoint: bool,
    disagree: int,
    stops: tuple[str, ...],
) -> None:
    sampling = SamplingParams(temp=temp, seed=seed, ignore_eos=True)
    request = make_request(
        list(b"the cat sat. abcabd"), 60, sampling, types, n_max, grammar=grammar, stops=stops, row_hashes=True
    )
    expected = plain(scripted("seed=3"), request)
    pair = Pair(scripted(f"seed=3,checkpoint={checkpoint:d}"), scripted(f"seed=3,disagree={disagree}"))
    session = make_session(request, schedule(), make_chain(types, SMALL, model_outside=True))
    for incarnation, role in enumerate(pair.workers, start=1):
        pair.connect(session, role, incarnation)
    pair.drive(session, session.start(0.0))
    assert session.generated == expected.generated
    assert session.row_hashes == expected.row_hashes
    assert (session.text.text, session.finish_reason) == (expected.text.text, expected.finish_reason)
    total = session.stats().total
    assert total.n_committed_tokens == session.counts.draft_n_accepted <= session.counts.draft_n
    assert total.n_tested_tokens == session.counts.draft_n
