"""The rolling hash: known values, associativity, and that every kind of small difference shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.wire.prefix_hash import BASE, EMPTY, MODULUS, extend, hashes

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def test_constants_are_the_protocol() -> None:
    assert (BASE, MODULUS, EMPTY) == (0xCB34D77FC9991FD, 2**61 - 1, 1)
    assert extend(EMPTY, []) == EMPTY
    assert extend(EMPTY, [0]) == BASE + 1
    assert extend(EMPTY, [5, 7]) == ((BASE + 6) * BASE + 8) % MODULUS


@given(tokens, tokens)
def test_extending_in_two_steps_is_extending_in_one(a: list[int], b: list[int]) -> None:
    assert extend(extend(EMPTY, a), b) == extend(EMPTY, a + b)


@given(tokens, tokens)
def test_the_hash_after_each_token(a: list[int], b: list[int]) -> None:
    assert hashes(extend(EMPTY, a), b) == [extend(EMPTY, a + b[: i + 1]) for i in range(len(b))]


@given(tokens, tokens)
def test_different_texts_have_different_hashes(a: list[int], b: list[int]) -> None:
    assert (extend(EMPTY, a) == extend(EMPTY, b)) == (a == b)


@given(tokens.filter(bool), st.data())
def test_one_changed_swapped_dropped_or_doubled_token_shows(text: list[int], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(text) - 1))
    mutations = [
        [*text[:i], text[i] ^ 1, *text[i + 1 :]],
        [*text[:i], *text[i + 1 :]],
        [*text[:i], text[i], *text[i:]],
        [*text[:i], *reversed(text[i:])],
    ]
    for mutated in mutations:
        assert mutated == text or extend(EMPTY, mutated) != extend(EMPTY, text)


@given(tokens)
def test_fits_an_unsigned_64_bit_integer(text: list[int]) -> None:
    assert 0 <= extend(EMPTY, text) < MODULUS < 2**64
