"""Log-probabilities: the target's own, one entry per delivered token, the same with drafts as without."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from coordinator.result import result
from outrider.types import SamplingParams
from tests.harness import Pair, make_request, plain, scripted

SCRIPT = "seed=7"


@pytest.mark.parametrize("after_sampling", [False, True])
@pytest.mark.parametrize("temp", [0.0, 1.0])
@pytest.mark.parametrize("n_max", [1, 3, 8])
def test_every_token_has_the_entry_of_plain_decoding(temp: float, n_max: int, after_sampling: bool) -> None:
    sampling = SamplingParams(temp=temp, n_probs=3, seed=5, repeat_penalty=1.2, post_sampling_probs=after_sampling)
    request = make_request(sampling=sampling, n_max=n_max, n_predict=60, stops=("w290",))
    expected = plain(scripted(SCRIPT), request)
    actual = Pair(scripted(SCRIPT), scripted(f"{SCRIPT},disagree=30")).run(request)
    assert [replace(part, accepted=False) for part in actual.parts] == expected.parts
    assert len(actual.parts) == len(actual.generated)
    assert actual.counts.draft_n_accepted > 5
    if not after_sampling:
        assert all(part.logprobs is not None and part.logprobs.logprob < -1e-6 for part in actual.parts)


def test_they_are_the_logarithms_of_the_softmax_of_the_row() -> None:
    engine = scripted("seed=7")
    request = make_request(n_predict=1, sampling=SamplingParams(temp=0.0, n_probs=4))
    (part,) = plain(engine, request).parts
    row = np.empty(engine.n_vocab)
    engine._fill(row, engine._states[0][-1])
    logs = row - math.log(np.exp(row).sum())
    best = np.argsort(-logs, kind="stable")[:4]
    assert part.logprobs is not None
    assert part.logprobs.tokens == best.tolist()
    assert part.logprobs.logprobs == pytest.approx(logs[best].tolist(), abs=1e-5)
    assert part.logprobs.logprob == pytest.approx(logs[part.token], abs=1e-5)


def test_the_result_has_one_entry_per_delivered_token() -> None:
    """Also where a stop string cuts what the target had verified."""
    sampling = SamplingParams(temp=0.0, n_probs=2)
    session = Pair(scripted("seed=7"), scripted("seed=7")).run(make_request(sampling=sampling, stops=(" w2",), n_max=6))
    answer = json.loads(json.dumps(result(session)))
    assert [entry["id"] for entry in answer["logprobs"]] == answer["tokens"]
    first = answer["logprobs"][0]
    assert first.keys() == {"id", "token", "bytes", "logprob", "top_logprobs"}
    assert len(first["top_logprobs"]) == 2
    assert "logprobs" not in result(plain(scripted(), make_request(n_predict=3)))
