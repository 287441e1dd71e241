"""Real weights on memory that goes back by checkpoint and replay alone: the bits of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest

from outrider.engine.base import Output, Span
from outrider.engine.numpy_llama import NumpyEngine
from outrider.types import SamplingParams
from tests.harness import Pair, make_request
from tests.model.test_lossless import MINI_DRAFT
from tests.state.test_memory import Alternate

pytestmark = pytest.mark.model

TEXT = "The lighthouse keeper climbed the stairs every evening and"
N_PREDICT = 40


def engine(stack: ExitStack, **options: Any) -> NumpyEngine:
    return stack.enter_context(closing(NumpyEngine(MINI_DRAFT, n_ctx=128, **options)))


def sometimes_wrong(engine: NumpyEngine, every: int) -> NumpyEngine:
    """Every n-th row that it is asked for names another token."""
    decode, n_rows = engine.decode, 0

    def worse(spans: Sequence[Span]) -> Output:
        nonlocal n_rows
        logits = decode(spans).logits.copy()
        for row in logits:
            n_rows += 1
            if n_rows % every == 0:
                row[row.argmax()] = row.min()
        return Output(logits)

    engine.decode = worse  # type: ignore[method-assign]
    return engine


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("temp", "lengths"), [(0.0, [5]), (0.8, [4, 0]), (0.8, [0, 6, 1])])
def test_tokens_and_logits_are_those_of_plain_decoding(stack: ExitStack, temp: float, lengths: list[int]) -> None:
    target = engine(stack, checkpoint_only=True)
    draft = sometimes_wrong(engine(stack, checkpoint_only=True), every=3)
    prompt = target.tokenizer.encode(TEXT, add_special=True, parse_special=True)
    sampling = SamplingParams(temp=temp, seed=5, ignore_eos=True)
    request = make_request(prompt, N_PREDICT, sampling, n_max=6, draft_sampling="coupled", row_hashes=True)
    session = Pair(target, draft).run(request, Alternate(lengths))
    expected = Pair(engine(stack)).run(request)
    assert session.generated == expected.generated
    assert session.row_hashes == expected.row_hashes
    assert 10 < session.counts.n_verified < session.counts.draft_n
    assert session.counts.n_resent == session.counts.n_stale == 0
