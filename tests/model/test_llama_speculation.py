"""Speculation over the llama engine writes the plain text, for every kind of memory."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from outrider.engine.llama_engine import LlamaEngine
from outrider.errors import CacheError
from tests.model.llama_kit import NEAR, WRITERS, extend, need_kernels_for, opened, smollm2, some_tokens, tiny_model


def plain(engine: LlamaEngine, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """`count` greedy tokens one by one, and by how many standard deviations each was ahead of the second best."""
    text, gaps = list(prompt), []
    while len(text) < len(prompt) + count:
        row = extend(engine, text[engine.length(0) :], n_outputs=1)[0]
        first, second = np.sort(row)[:-3:-1]
        gaps.append(float((first - second) / row.std()))
        text.append(int(row.argmax()))
    return text[len(prompt) :], gaps


class Speculation:
    """Rounds of drafts over one sequence, going back by whatever the memory offers."""

    def __init__(self, engine: LlamaEngine, prompt: list[int]) -> None:
        self.engine = engine
        self.text = list(prompt)
        extend(engine, prompt[:-1], n_outputs=0)
        self.point: object = None
        self.n_accepted = 0

    def round(self, draft: list[int]) -> None:
        engine = self.engine
        tail = self.text[engine.length(0) :]  # what was rolled back with a rejected draft, and the pending token
        if engine.memory == "checkpoint":
            self.point = engine.save(0)
        rows = extend(engine, tail + draft, n_outputs=1 + len(draft))
        sampled = [int(row.argmax()) for row in rows]
        accepted = next((i for i, token in enumerate(draft) if token != sampled[i]), len(draft))
        self.n_accepted += accepted
        self.text += sampled[: accepted + 1]
        if accepted < len(draft):
            self.go_back(len(self.text) - 1)

    def go_back(self, length: int) -> None:
        try:
            self.engine.truncate(0, length)
        except CacheError:
            self.engine.restore(0, self.point)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("n_rs_seq", [0, 6])
def test_speculation_writes_the_plain_text_past_the_window(tmp_path: Path, kind: str, n_rs_seq: int) -> None:
    """400 tokens with a poor draft, and rounds without a draft between rounds with one."""
    path, prompt, rng = tiny_model(tmp_path, kind), some_tokens(10), random.Random(5)
    with opened(path) as engine:
        wanted, gaps = plain(engine, prompt, 400)
    with opened(path, n_rs_seq=n_rs_seq) as engine:
        run = Speculation(engine, prompt)
        while len(run.text) < len(prompt) + 393:
            done = len(run.text) - len(prompt)
            guess = wanted[done : done + rng.choice([0, 1, 4, 6])]
            run.round([token if rng.random() < 0.75 else 3 + token % 250 for token in guess])
            assert engine.length(0) < len(run.text)
    got = run.text[len(prompt) :]
    fork = next((i for i, token in enumerate(got) if token != wanted[i]), None)
    assert fork is None or gaps[fork] < NEAR, f"token {fork}"
    assert run.n_accepted > 100


@pytest.mark.model
def test_speculation_on_a_real_model() -> None:
    need_kernels_for(smollm2())
    with opened(smollm2(), n_seq=2) as engine:
        prompt = engine.tokenizer.encode("The capital of France is", add_special=True, parse_special=True)
        wanted, gaps = plain(engine, prompt, 32)
        engine.truncate(0, 0)
        run, rng = Speculation(engine, prompt), random.Random(3)
        while len(run.text) < len(prompt) + 26:
            guess = wanted[len(run.text) - len(prompt) :][: rng.choice([0, 2, 5])]
            run.round([token if rng.random() < 0.8 else token + 1 for token in guess])
    got = run.text[len(prompt) :]
    fork = next((i for i, token in enumerate(got) if token != wanted[i]), None)
    assert fork is None or gaps[fork] < 0.05
    assert run.n_accepted > 5
