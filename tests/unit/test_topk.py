"""The ten best tokens of a row, by the fast way, against the slow one."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.errors import EngineError
from outrider.speculators.topk import top_k


@pytest.mark.parametrize("n_vocab", [1, 5, 10, 63, 64, 640, 641, 1000, 32768, 151936])
@pytest.mark.parametrize("levels", [3, 50, None])
def test_equals_sorting(n_vocab: int, levels: int | None) -> None:
    """With few levels nearly everything ties: the lower id goes first."""
    rng = np.random.default_rng(n_vocab)
    row = rng.standard_normal(n_vocab).astype(np.float32)
    if levels:
        row = np.round(row * levels / 6).astype(np.float32)
    ids, probs = top_k(row, 10)
    expected = np.argsort(-row, kind="stable")[:10]
    assert ids == expected.tolist()
    weights = np.exp(row[expected].astype(np.float64) - row[expected[0]])
    np.testing.assert_allclose(probs, weights / weights.sum(), rtol=1e-6)


@pytest.mark.parametrize("n_vocab", [5, 300, 32768])
def test_a_row_without_numbers_is_an_error(n_vocab: int) -> None:
    with pytest.raises(EngineError, match="nan"):
        top_k(np.full(n_vocab, np.nan, np.float32), 10)


def test_tokens_that_are_excluded_have_probability_0() -> None:
    row = np.full(32768, -np.inf, np.float32)
    row[[7, 30000]] = 1.0
    ids, probs = top_k(row, 10)
    assert ids == [7, 30000, 0, 1, 2, 3, 4, 5, 6, 8]
    assert probs == [0.5, 0.5] + 8 * [0.0]
