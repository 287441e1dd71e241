"""Searching and hashing n-grams, against the obvious loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.speculators import search
from outrider.speculators.bucket_table import FACTOR, N_BUCKETS, BucketTable
from outrider.speculators.search import find_all, find_newest, hash_windows, longest_suffix, match_mask
from outrider.speculators.token_array import TokenArray
from outrider.speculators.unordered import iteration_order

few = st.integers(0, 2)
texts = st.lists(few, min_size=1, max_size=60)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def places(tokens: list[int], pattern: list[int], first: int, last: int) -> list[int]:
    return [j for j in range(first, last + 1) if tokens[j : j + len(pattern)] == pattern]


@given(texts, st.lists(few, min_size=1, max_size=6), st.data())
def test_finds_what_a_loop_finds(tokens: list[int], pattern: list[int], data: st.DataObject) -> None:
    end = len(tokens) - len(pattern)
    first = data.draw(st.integers(0, max(end, 0)))
    last = data.draw(st.integers(first - 1, max(end, first - 1))) if end >= first else first - 1
    expected = places(tokens, pattern, first, last)
    assert find_all(array(tokens), array(pattern), first, last).tolist() == expected
    assert find_newest(array(tokens), array(pattern), first, last) == (expected[-1] if expected else -1)
    mask = match_mask(array(tokens), array(pattern), first, last)
    assert (mask.nonzero()[0] + first).tolist() == expected


def test_finds_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_FIRST_BLOCK", 4)
    tokens = [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]
    assert [find_newest(array(tokens), array([a, a + 1]), 0, 10) for a in (1, 2, 3)] == [0, 1, 2]


def ends(tokens: list[int], last: int) -> dict[int, int]:
    """For each place of `last`, how many tokens agree with the end of the text, up to 32."""
    whole = [*tokens, last]
    return {
        e: next((k for k in range(32) if k > e or tokens[e - k] != whole[-1 - k]), 32)
        for e, token in enumerate(tokens)
        if token == last
    }


@given(texts, few, st.integers(1, 4))
def test_longest_suffix_is_the_newest_of_the_longest(tokens: list[int], last: int, n_min: int) -> None:
    lengths = ends(tokens, last)
    longest = max(lengths.values(), default=0)
    newest = max((e for e, length in lengths.items() if length == longest), default=-1)
    expected = (newest + 1, longest) if longest >= n_min else None
    assert longest_suffix(array(tokens), last, n_min) == expected


def test_longest_suffix_of_a_repeated_text_goes_up_to_its_bound() -> None:
    tokens = [*range(50), 99, *range(50)]
    assert longest_suffix(array(tokens), 99, 2) == (51, 32)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=80), st.integers(1, 70))
@pytest.mark.parametrize("base", [FACTOR, 6364136223846793005])
def test_hashes_are_those_of_the_loop(base: int, tokens: list[int], n: int) -> None:
    expected = []
    for j in range(len(tokens) - n + 1):
        value = 0
        for token in tokens[j : j + n]:
            value = (value * base + token) % 2**32
        expected.append(value)
    assert hash_windows(array(tokens), n, base).tolist() == expected


@given(st.lists(few, min_size=3, max_size=40), st.integers(1, 3))
def test_bucket_table_keeps_the_highest_index_of_one_filling(tokens: list[int], n: int) -> None:
    table, last = BucketTable(n), len(tokens) - n
    table.fill(array(tokens), 1, last)
    for j in range(1, last + 1):
        pattern = tokens[j : j + n]
        assert table.lookup(array(pattern)) == places(tokens, pattern, 1, last)[-1]


def test_bucket_table_keeps_what_was_first_and_forgets_from_an_index_on() -> None:
    tokens, table = array([5, 6, 7, 5, 6, 7, 8]), BucketTable(2)
    table.fill(tokens, 1, 2)
    table.fill(tokens, 3, 5)
    assert [table.lookup(array(pair)) for pair in ([6, 7], [7, 5], [5, 6], [7, 8])] == [1, 2, 3, 5]
    copy = table.copy()
    table.cut(3)
    assert [table.lookup(array(pair)) for pair in ([6, 7], [7, 5], [5, 6], [7, 8])] == [1, 2, 0, 0]
    assert table.last_idx == 2
    assert copy.lookup(array([7, 8])) == 5
    assert table.slots.size == N_BUCKETS


def test_iteration_order_is_that_of_the_library() -> None:
    """Written down from a program that was linked with it: new buckets first, new tokens first in their bucket, and the
    tokens anew when the table of 13 grows to 29."""
    assert iteration_order([1, 2, 14]) == [2, 14, 1]
    assert iteration_order(list(range(13))) == list(range(12, -1, -1))
    assert iteration_order(list(range(14))) == [13, *range(13)]
    assert iteration_order([0, 13, 26, 1, 14, 2]) == [2, 14, 1, 26, 13, 0]


def test_token_array_appends_and_names_its_text() -> None:
    text = TokenArray([1, 2, 3], n_corpus=2)
    stamp = text.stamp
    text.extend(range(1000))
    assert text.tokens.tolist() == [1, 2, 3, *range(1000)]
    assert (len(text), text.stamp, text.n_corpus) == (1003, stamp, 2)
    text.truncate(1003)
    assert text.stamp == stamp
    text.truncate(2)
    text.extend([9])
    assert text.tokens.tolist() == [1, 2, 9]
    assert text.stamp != stamp
    assert text.tail(2, 7).tolist() == [9, 7]
    assert text.tail(1, 7).tolist() == [7]
    assert TokenArray([1]).stamp != TokenArray([1]).stamp
