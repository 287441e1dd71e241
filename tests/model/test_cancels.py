"""Draft == target with random cancels, on real weights: everything is accepted to the end, in flat memory."""

from __future__ import annotations

import os

import psutil
import pytest

from coordinator.session import Session
from outrider.engine.base import Engine
from outrider.engine.numpy_llama import NumpyEngine
from outrider.engine.options import EngineOptions
from tests.crowd import Crowd, caches_are_exact
from tests.harness import make_request
from tests.model.test_lossless import MINI_DRAFT, smollm2

pytestmark = pytest.mark.model

TEXT = "The lighthouse keeper climbed the stairs every evening and"


def run_crowd(engines: list[Engine], n_requests: int, n_predict: int, n_max: int, cancels: float) -> list[Session]:
    """All sessions; asserts that caches are exact after every round and that memory does not grow."""
    tokenizer = engines[0].tokenizer
    prompt = tokenizer.encode(TEXT, add_special=True, parse_special=True)
    requests = [make_request([*prompt, 500 + i], n_predict, n_max=n_max) for i in range(n_requests)]
    process = psutil.Process(os.getpid())
    memory: list[int] = []

    def check(crowd: Crowd, session: Session) -> None:
        caches_are_exact(crowd, session)
        memory.append(process.memory_info().rss)

    sessions = Crowd(engines[0], engines[1], cancels=cancels, seed=5, check=check).run(requests)
    half = len(memory) // 2
    assert max(memory[half:]) < max(memory[:half]) + (32 << 20)
    return sessions


def assert_perfect(sessions: list[Session], n_predict: int, n_finished: int, rate: float = 1.0) -> None:
    assert any(session.finish_reason == "cancelled" for session in sessions)
    assert sum(session.finish_reason != "cancelled" for session in sessions) >= n_finished
    for session in sessions:
        assert session.counts.n_verified >= rate * session.counts.draft_n
        assert session.counts.n_resent == session.counts.n_stale == 0
        assert len(session.generated) == n_predict or session.finish_reason in ("cancelled", "stop")


@pytest.mark.timeout(600)
def test_four_sequences_on_the_numpy_engine() -> None:
    engines: list[Engine] = [NumpyEngine(smollm2(), n_ctx=256, n_seq=4) for _ in range(2)]
    try:
        sessions = run_crowd(engines, 6, n_predict=200, n_max=7, cancels=0.001)
    finally:
        for engine in engines:
            engine.close()
    assert_perfect(sessions, 200, 4)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_sixteen_sequences_on_the_llama_engine() -> None:
    """The kernels depend on the number of rows, so a near-tie may cost a token."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from outrider.engine.llama_engine import LlamaEngine
    from tests.model.llama_kit import need_kernels_for

    need_kernels_for(MINI_DRAFT)
    options = EngineOptions(n_ctx=2048, n_seq=16, cache_type_k="f32", cache_type_v="f32", flash_attn="off")
    engines: list[Engine] = [LlamaEngine(MINI_DRAFT, options) for _ in range(2)]
    try:
        sessions = run_crowd(engines, 24, n_predict=2000, n_max=4, cancels=0.0002)
    finally:
        for engine in engines:
            engine.close()
    assert_perfect(sessions, 2000, 16, rate=0.998)
