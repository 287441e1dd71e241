"""Context shift: the text goes on without a seam, with the same tokens whether drafted or not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.test_shapes import events
from tests.api.world import serving

BODY: dict[str, Any] = {"prompt": "Once upon a time", "n_predict": 150, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_long_answer_in_a_short_context(temperature: float) -> None:
    body = {**BODY, "temperature": temperature, "seed": 4, "return_tokens": True}
    with serving("--ctx-size", "64", "--context-shift", "-np", "2") as world:
        answer = world.http.post("/completion", json=body).json()
        chunks = events(world.http.post("/completion", json={**body, "stream": True}))
        plain = world.http.post("/completion", json={**body, "speculative.n_max": 0}).json()
        metrics = world.http.get("/metrics").text
    assert (answer["tokens_predicted"], len(answer["tokens"]), answer["truncated"]) == (150, 150, True)
    assert answer["tokens_evaluated"] == 16
    assert answer["tokens"] == plain["tokens"]
    assert "".join(chunk["content"] for chunk in chunks) == answer["content"] == plain["content"]
    assert "outrider:tokens_predicted_total 450.0" in metrics


def test_stop_strings_over_the_seam() -> None:
    with serving("--ctx-size", "64", "--context-shift") as world:
        text = world.http.post("/completion", json=BODY).json()["content"]
        for i in range(20, len(text) - 4, 7):
            stop = text[i : i + 4]
            stopped = world.http.post("/completion", json={**BODY, "stop": [stop]}).json()
            assert stopped["content"] == text[: text.index(stop)]


def test_without_it_the_context_ends_the_text() -> None:
    with serving("--ctx-size", "64") as world:
        answer = world.http.post("/completion", json=BODY).json()
    assert (answer["tokens_predicted"], answer["truncated"]) == (48, True)


def test_a_shifted_request_can_be_cancelled() -> None:
    with serving("--ctx-size", "64", "--context-shift", "-np", "1") as world:
        with world.http.stream("POST", "/completion", json={**BODY, "n_predict": 100_000, "stream": True}) as response:
            for i, _ in enumerate(response.iter_lines()):
                if i > 200:
                    break
        world.wait(lambda: not world.admission.running and world.n_sessions() == 0)
