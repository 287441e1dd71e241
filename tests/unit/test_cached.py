"""The rows that a cached sequence says it misses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.cached import CachedSequence
from outrider.engine.scripted import ScriptedEngine

TOKENS = st.lists(st.integers(0, 255), max_size=6)


@given(rows=TOKENS, committed=TOKENS, uncertain=st.none() | TOKENS)
def test_the_number_of_missing_rows_is_that_of_missing_tokens(
    rows: list[int], committed: list[int], uncertain: list[int] | None
) -> None:
    cache = CachedSequence(ScriptedEngine(), 0)
    cache.appended(rows)
    cache.commit(committed, 0)
    assert cache.n_missing(uncertain) == len(cache.missing(uncertain))
