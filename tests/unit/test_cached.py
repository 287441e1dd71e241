"""The rows that a cached sequence says it misses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.cached import MAX_REPLAY, CachedSequence
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


def test_a_memory_of_checkpoints_saves_its_state_now_and_then_while_nothing_is_guessed() -> None:
    engine = ScriptedEngine("scripted:checkpoint=1", n_ctx=256)
    cache, saved = CachedSequence(engine, 0), 0
    save = engine.save

    def counted(seq: int) -> object:
        nonlocal saved
        saved += 1
        return save(seq)

    engine.save = counted  # type: ignore[method-assign]
    text = [1, 2, 3]
    for token in range(4, 4 + 4 * MAX_REPLAY):
        cache.commit(text, len(text) - 1)
        cache.rewind()
        while n := cache.n_missing([]):
            n = cache.next_rows(n, 512)
            span = cache.span(cache.missing([])[:n], 1)
            engine.decode([span])
            cache.appended(span.tokens)
        text = [*text, token]
    assert 0 < saved <= 5
    cache.commit(text[:-1], len(text) - 1)
    assert cache.rewind() >= len(text) - 2 - MAX_REPLAY  # the last request once more
