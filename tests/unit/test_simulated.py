"""The simulated engine: what its decodes cost, and how often its drafts are right."""

from __future__ import annotations

import time

import numpy as np
import pytest

from outrider.decoding.sampling import Sampler
from outrider.engine import simulated
from outrider.engine.base import Span
from outrider.engine.factory import create_engine
from outrider.engine.scripted import EOS
from outrider.engine.simulated import SimulatedEngine, Simulation
from outrider.errors import ConfigError
from outrider.types import SamplingParams

PROMPT = list(b"Once upon a time")
N = 3000


def texts(path: str, n: int = N) -> tuple[SimulatedEngine, list[int]]:
    """A target's greedy text, and a draft engine at `path` that has not read it."""
    target = SimulatedEngine("simulated:seed=5", n_ctx=n + 100)
    tokens = list(PROMPT)
    target.decode([Span(0, 0, tokens[:-1])])
    for _ in range(n):
        logits = target.decode([Span(0, target.length(0), tokens[-1:], 1)]).logits
        tokens.append(int(logits[0].argmax()))
    return SimulatedEngine(path, n_ctx=n + 100, n_batch=n + 100), tokens


def ranks(path: str) -> tuple[np.ndarray, np.ndarray]:
    """For each position the rank of the target's token in the draft, and the probabilities of the draft's first row."""
    draft, tokens = texts(path)
    logits = draft.decode([Span(0, 0, tokens[:-1], N)]).logits
    own = logits[np.arange(N), tokens[len(PROMPT) :]]
    probs = np.exp(logits[0].astype(float))
    return (logits > own[:, None]).sum(axis=1), probs


def test_a_target_writes_one_text_whatever_the_batches() -> None:
    engine, tokens = texts("simulated:seed=5")
    logits = engine.decode([Span(0, 0, tokens[:-1], N)]).logits
    assert logits.argmax(axis=1).tolist() == tokens[len(PROMPT) :]
    assert len(set(tokens)) > 300
    assert EOS not in tokens
    other = SimulatedEngine("simulated:seed=6")
    assert other.decode([Span(0, 0, PROMPT, 1)]).logits.argmax() != tokens[len(PROMPT)]


@pytest.mark.parametrize("alpha", [0.6, 0.8, 0.9])
def test_the_target_s_token_is_where_the_draft_s_probabilities_say(alpha: float) -> None:
    found, probs = ranks(f"simulated:seed=5,alpha={alpha},tau=0.7")
    assert probs.sum() == pytest.approx(1, abs=1e-4)
    for rank, expected in enumerate([alpha, 0.7 * (1 - alpha) * 2 / 3, 0.7 * (1 - alpha) / 3]):
        assert np.sort(probs)[-1 - rank] == pytest.approx(expected, rel=1e-4)
        assert np.mean(found == rank) == pytest.approx(expected, abs=4 * np.sqrt(expected / N))
    assert np.mean(found > 2) == pytest.approx(0.3 * (1 - alpha), abs=0.03)


def test_right_drafts_come_independently_of_one_another() -> None:
    found, _ = ranks("simulated:seed=5,alpha=0.8")
    right = found == 0
    assert np.mean(right[1:][right[:-1]]) == pytest.approx(0.8, abs=0.03)
    assert np.mean(right[1:][~right[:-1]]) == pytest.approx(0.8, abs=0.06)


def test_the_poorest_draft_s_best_is_its_most_probable_token() -> None:
    found, _ = ranks("simulated:seed=5,alpha=0.01,tau=1")
    assert np.mean(found == 0) < 0.03


def test_a_stale_row_shows_in_the_text() -> None:
    draft, tokens = texts("simulated:seed=5", n=10)
    wrong = [*tokens[:20], (tokens[20] + 1) % 200, *tokens[21:-1]]
    draft.decode([Span(0, 0, wrong)])
    draft.truncate(0, 21)
    stale = draft.decode([Span(0, 21, tokens[21:-1], 1)]).logits.argmax()
    draft.truncate(0, 20)
    assert draft.decode([Span(0, 20, tokens[20:-1], 1)]).logits.argmax() == tokens[-1] != stale


def test_copies_are_decoded_together() -> None:
    _, tokens = texts("simulated:seed=5", n=10)
    draft = SimulatedEngine("simulated:seed=5", n_seq=2)
    draft.decode([Span(0, 0, tokens[:20])])
    draft.copy(0, 1)
    logits = draft.decode([Span(0, 20, tokens[20:21], 1), Span(1, 20, [7], 1)]).logits
    assert logits[0].argmax() == tokens[21] != logits[1].argmax()


def test_costs() -> None:
    target = Simulation.parse("simulated:decode_ms=40,beta=0.25,slow_from=100,slow_to=110,slowdown=20")
    assert target.decode_s(1, 50) == pytest.approx(0.04)
    assert target.decode_s(5, 50) == pytest.approx(0.08)
    assert target.decode_s(0, 50) == pytest.approx(0.04)
    assert [target.decode_s(1, end) for end in (99, 100, 109, 110)] == pytest.approx([0.04, 0.8, 0.8, 0.04])


def test_a_decode_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of our own, which wakes 0.5 ms late: the next wait is shorter by as much."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds + 0.0005

    monkeypatch.setattr(simulated, "time", type("Time", (), {"sleep": sleep, "perf_counter": lambda: now[0]}))
    engine = create_engine("simulated", "simulated:decode_ms=40,beta=0.5")
    engine.decode([Span(0, 0, [1, 2, 3])])
    engine.decode([Span(0, 3, [4, 5, 6], 3)])
    engine.decode([Span(0, 6, [7], 1)])
    assert slept == pytest.approx([0.04, 0.0795, 0.0395])


def test_a_refused_decode_costs_nothing() -> None:
    engine, start = create_engine("simulated", "simulated:decode_ms=60000"), time.monotonic()
    with pytest.raises(Exception, match="row 5 given"):
        engine.decode([Span(0, 5, [1], 1)])
    assert time.monotonic() - start < 30
    assert engine.length(0) == 0


def test_sampling_at_a_temperature_keeps_a_sure_target_sure() -> None:
    engine, tokens = texts("simulated:seed=5", n=50)
    logits = engine.decode([Span(0, 0, tokens[:-1], 50)]).logits
    sampler = Sampler(SamplingParams(temp=0.8), 0, engine.n_vocab, frozenset({EOS}))
    sampled = [sampler.sample(row, tokens[: len(PROMPT) + i], i) for i, row in enumerate(logits)]
    assert sampled == tokens[len(PROMPT) :]


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("simulated:speed=1", "speed"),
        ("simulated:seed=0.5", "seed=0.5"),
        ("simulated:alpha=1.5", "0.01 to 1"),
        ("simulated:alpha=nan", "alpha=nan"),
        ("simulated:vocab=100", "vocab"),
        ("simulated:decode_ms", "decode_ms"),
    ],
)
def test_what_is_wrong_with_a_path_is_named(path: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        SimulatedEngine(path)
