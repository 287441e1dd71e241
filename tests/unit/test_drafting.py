"""The draws of a draft: the same tokens whether their probabilities are wanted or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.errors import EngineError
from outrider.speculators.model import Choose, Drafting


def drafted(rows: NDArray[np.float32], *, with_probs: bool, choose: Choose | None, never: frozenset[int]) -> Drafting:
    drafting = Drafting(len(rows), 0, 0.0, choose=choose, never=never, with_probs=with_probs)
    for row in rows:
        drafting.take(row)
    assert drafting.done
    return drafting


@given(
    seed=st.integers(0, 1000),
    n_vocab=st.sampled_from([3, 300, 2000]),
    n_levels=st.integers(1, 50),
    share_excluded=st.sampled_from([0.0, 0.5, 0.99]),
    never=st.frozensets(st.integers(0, 300), max_size=5),
    chooses=st.booleans(),
)
def test_a_draft_without_probabilities_has_the_same_tokens(
    seed: int, n_vocab: int, n_levels: int, share_excluded: float, never: frozenset[int], chooses: bool
) -> None:
    """Few levels: nearly everything ties, and the best tokens are often those that must not be drafted."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, n_levels, (4, n_vocab)).astype(np.float32)
    rows[rng.random(rows.shape) < share_excluded] = -np.inf
    rows[:, -1] = 0.0
    never |= frozenset(rows.argmax(axis=1)[:2].tolist())
    choose: Choose | None = (lambda row, start, drafted: len(row) - 1 - len(drafted) % 2) if chooses else None
    told = drafted(rows, with_probs=True, choose=choose, never=never)
    untold = drafted(rows, with_probs=False, choose=choose, never=never)
    assert untold.tokens == told.tokens
    assert len(told.probs) == len(told.entropies) == len(told.draws) == len(rows)
    assert untold.probs == untold.entropies == untold.draws == []


def test_what_must_not_be_drafted_is_drafted_only_where_the_ten_best_are_all_such() -> None:
    row = np.arange(20, dtype=np.float32)[None]
    for with_probs in (True, False):
        of = {n: frozenset(range(20 - n, 20)) for n in (0, 1, 9, 10)}
        tokens = {n: drafted(row, with_probs=with_probs, choose=None, never=never).tokens for n, never in of.items()}
        assert tokens == {0: [19], 1: [18], 9: [10], 10: [19]}


@pytest.mark.parametrize("with_probs", [True, False])
def test_rows_of_nan_are_an_error(with_probs: bool) -> None:
    with pytest.raises(EngineError, match="nan"):
        Drafting(1, 0, 0.0, with_probs=with_probs).take(np.full(300, np.nan, np.float32))
