"""Synthetic acceptance through the pipeline: as many tokens as asked for, and nobody can take the text for real."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.result import result, summary
from coordinator.session import Session
from outrider.decoding.synthetic import resolve_rates
from outrider.types import SamplingParams
from tests.harness import Pair, make_request, plain, scripted


def run(rates: list[float], disagree: int = 100, **options: Any) -> Session:
    pair = Pair(scripted("seed=7"), scripted(f"seed=7,disagree={disagree}"))
    return pair.run(make_request(n_predict=600, n_max=len(rates), synth_rates=rates, **options))


def test_all_or_nothing() -> None:
    everything = run([1.0, 1.0, 1.0]).counts
    assert (everything.rounds, everything.accepted_per_pos) == (150, [150, 150, 150])
    nothing = run([0.0, 0.0]).counts
    assert (nothing.rounds, nothing.draft_n_accepted) == (600, 0)


@pytest.mark.parametrize("length", [1.5, 2.0, 3.0])
def test_the_mean_length_is_what_was_asked_for(length: float) -> None:
    counts = run(resolve_rates(3, length, None)).counts
    assert 1 + counts.draft_n_accepted / counts.rounds == pytest.approx(length, rel=0.12)


def test_the_same_seed_gives_the_same_lengths() -> None:
    rates = [0.7, 0.4]
    sampling = SamplingParams(temp=0.0, seed=11)
    first, second = (run(rates, sampling=sampling) for _ in range(2))
    assert first.generated == second.generated
    assert first.counts.rounds == second.counts.rounds


def test_the_text_is_marked_invalid_wherever_it_is_told() -> None:
    answer = result(run([0.5]))
    assert answer["valid"] is False
    assert answer["speculation"]["synthetic"] is True
    assert summary(answer).startswith("INVALID")
    real = result(plain(scripted(), make_request(n_predict=3)))
    assert (real["valid"], real["speculation"]["synthetic"]) == (True, False)
    assert "INVALID" not in summary(real)


def test_a_draft_is_never_longer_than_the_rates() -> None:
    counts = run([1.0], disagree=0).counts
    assert counts.drafted_per_pos == [300]
    pair = Pair(scripted("seed=7"), scripted("seed=7"))
    session = pair.run(make_request(n_predict=40, n_max=5, synth_rates=[1.0, 1.0]))
    assert len(session.counts.drafted_per_pos) == 2
