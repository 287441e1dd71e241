"""The whole pipeline on the llama engine with tiny models of every kind of memory: the plain text, whatever the draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from coordinator.request import Request
from coordinator.session import Session
from outrider.engine.base import Output, Span
from outrider.engine.llama_engine import LlamaEngine
from outrider.types import SamplingParams
from tests.harness import Pair, make_request, plain
from tests.model.llama_kit import CHECKPOINT, WRITERS, opened, some_tokens, tiny_model
from tests.state.test_memory import Alternate

#: A run may fork where the two best tokens of the target are closer than this (difference of logits).
NEAR_TIE = 0.05
N_PREDICT = 420
GREEDY_PROBS = SamplingParams(temp=0.0, n_probs=2, ignore_eos=True)


@contextmanager
def poor(path: Path, every: int, **options: Any) -> Iterator[LlamaEngine]:
    """The same model as a draft that is wrong at every n-th row that it is asked for."""
    with opened(path, **options) as engine:
        decode, n_rows = engine.decode, 0

        def decode_worse(spans: Sequence[Span]) -> Output:
            nonlocal n_rows
            output = decode(spans)
            logits = output.logits.copy()
            for row in logits:
                n_rows += 1
                if n_rows % every == 0:
                    row[row.argmax()] = row.min()
            return Output(logits)

        engine.decode = decode_worse  # type: ignore[method-assign]
        yield engine


def assert_same_text(session: Session, expected: Session) -> None:
    """Up to the first fork, which must be at a near-tie."""
    pairs = zip(session.generated, expected.generated, strict=True)
    fork = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if fork is not None:
        best = expected.parts[fork].logprobs
        assert best is not None
        assert best.logprobs[0] - best.logprobs[1] < NEAR_TIE, f"token {fork}"


def request(**options: Any) -> Request:
    return make_request(some_tokens(10), N_PREDICT, GREEDY_PROBS, **options)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("lengths", [[6], [4, 0], [0, 6, 1]], ids=str)
def test_plain_text_past_the_window_with_a_poor_draft(tmp_path: Path, kind: str, lengths: list[int]) -> None:
    """Over 400 tokens; also where rounds with and without a draft alternate."""
    path = tiny_model(tmp_path, kind)
    with opened(path) as target:
        expected = plain(target, request())
    with opened(path) as target, poor(path, every=4) as draft:
        assert target.memory == ("checkpoint" if kind in CHECKPOINT else "truncate")
        session = Pair(target, draft).run(request(n_max=6), Alternate(lengths))
    assert_same_text(session, expected)
    assert len(session.generated) == N_PREDICT
    assert session.counts.draft_n_accepted > 100
    assert session.counts.n_verified < session.counts.draft_n
    assert session.counts.n_resent == session.counts.n_stale == 0


@pytest.mark.parametrize("kind", WRITERS)
def test_a_draft_like_its_target_is_accepted_to_the_end(tmp_path: Path, kind: str) -> None:
    """Sampled too: both draw with the same noise. A near-tie may cost a token now and then."""
    path = tiny_model(tmp_path, kind)
    sampling = SamplingParams(temp=0.8, seed=3, n_probs=2, ignore_eos=True)
    wanted = make_request(some_tokens(10), N_PREDICT, sampling, n_max=5, draft_sampling="coupled")
    with opened(path) as target, opened(path) as draft:
        session = Pair(target, draft).run(wanted)
    assert session.counts.n_verified > 0.99 * session.counts.draft_n
    assert session.counts.rounds < 1.05 * N_PREDICT / 6


@pytest.mark.parametrize("kind", WRITERS)
def test_a_second_turn_goes_on_from_the_first(tmp_path: Path, kind: str) -> None:
    """What a rejected draft left behind, past the window, would show in the turn after it."""
    path = tiny_model(tmp_path, kind)
    first = make_request(some_tokens(10), 80, GREEDY_PROBS, n_max=6)
    with opened(path) as target, poor(path, every=4) as draft:
        pair = Pair(target, draft)
        text = pair.run(first).history.tokens
        again = make_request([*text, *some_tokens(7, seed=9)], 60, GREEDY_PROBS, n_max=6)
        session = pair.run(again)
    assert session.counts.n_cached > 0
    with opened(path) as engine:
        assert_same_text(session, plain(engine, again))
