"""Each speculator's own rules, where the recorded facts do not say why, and what they do with a text that is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from outrider.errors import SpeculatorError
from outrider.speculators import lookup_file, ngram_cache, ngram_map, ngram_map_k4v
from outrider.speculators.base import DraftParams
from outrider.speculators.factory import make_chain
from outrider.speculators.ngram_cache import NgramCache, best_token
from outrider.speculators.ngram_counts import NgramCounts, SortedText
from outrider.speculators.ngram_map_k4v import NgramMapK4V
from outrider.speculators.ngram_mod import POOL_SIZE, HashPool, NgramMod
from outrider.speculators.ngram_simple import NgramSimple
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import NgramCacheParams, NgramModParams, NgramParams, SpeculatorParams
from tests.drafting import ALL, FIVE, SMALL, draft_once, play


def copied(rng: random.Random, n: int, n_vocab: int) -> list[int]:
    """A text that repeats itself."""
    text = [rng.randrange(n_vocab) for _ in range(20)]
    while len(text) < n:
        start = rng.randrange(len(text))
        text += text[start : start + rng.randrange(4, 40)] + [rng.randrange(n_vocab) for _ in range(rng.randrange(5))]
    return text[:n]


# --- ngram-simple ---------------------------------------------------------------------------------------------------


def test_simple_drops_a_draft_shorter_than_what_it_looked_up() -> None:
    params = SpeculatorParams(ngram_simple=NgramParams(size_n=3, size_m=6))
    near = [*range(20), 1, 2, 3, 4, 50, 1, 2]  # behind the nearest match of (1, 2, 3) stand 4 tokens
    assert draft_once(make_chain(["ngram-simple"], params), near, 3) == [4, 50, 1, 2]
    too_near = [*range(20), 1, 2, 3, 50, 1, 2]
    assert draft_once(make_chain(["ngram-simple"], params), too_near, 3) == [50, 1, 2]
    nearer = [*range(20), 1, 2, 3, 1, 2]
    assert draft_once(make_chain(["ngram-simple"], params), nearer, 3) == []


def test_simple_never_matches_the_first_place() -> None:
    params = SpeculatorParams(ngram_simple=NgramParams(size_n=2, size_m=3))
    assert draft_once(make_chain(["ngram-simple"], params), [7, 8, 1, 2, 3, 4, 5, 7], 8) == []
    assert draft_once(make_chain(["ngram-simple"], params), [0, 7, 8, 1, 2, 3, 4, 5, 7], 8) == [1, 2, 3]


# --- the maps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["ngram-map-k", "ngram-map-k4v"])
def test_the_table_prepared_at_begin_changes_no_draft(type_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for n_vocab in (2, 5, 40):
        text, drafts = copied(random.Random(n_vocab), 700, n_vocab), []
        for prepare_from in (0, 10**9):
            monkeypatch.setattr(ngram_map, "_PREPARE_FROM", prepare_from)
            drafts.append(play([type_], text[:400], text[400:]).drafts)
        assert drafts[0] == drafts[1]
        assert any(drafts[0])


def test_a_failed_key_is_silent_until_begin_drops_it() -> None:
    chain = make_chain(["ngram-map-k"], SpeculatorParams(ngram_map_k=NgramParams(size_n=2, size_m=3)))
    text = TokenArray([9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1])
    assert draft_once(chain, text, 2) == [3, 4, 5]
    chain.accept(0, 0)
    assert draft_once(chain, text, 2) == []
    chain.accept(0, 2)  # an accept that comes later raises the cap again
    assert draft_once(chain, text, 2) == [3, 4]
    chain.begin(0, TokenArray([9]))
    assert draft_once(chain, text, 2) == [3, 4, 5]


def test_k4v_wants_a_clear_leader() -> None:
    params = SpeculatorParams(ngram_map_k4v=NgramParams(size_n=1, size_m=1))
    tied = [0, 5, 1, 9, 5, 2, 9, 8, 8]
    assert draft_once(make_chain(["ngram-map-k4v"], params), tied, 5) == []
    led = [0, 5, 1, 9, 5, 2, 9, 5, 2, 9, 8, 8]
    assert draft_once(make_chain(["ngram-map-k4v"], params), led, 5) == [2]


def test_k4v_counts_dense_places_as_it_counts_scattered_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways to compare the continuations of many places."""
    rng, results = random.Random(5), []
    text = TokenArray([rng.randrange(2) for _ in range(600)])
    for many in (0, 10**9):
        monkeypatch.setattr(ngram_map_k4v, "_MANY", many)
        speculator = NgramMapK4V(NgramParams(size_n=1, size_m=2))
        speculator.propose(DraftParams(0, 1, len(text), text))
        results.append([(value.value_idx, value.num) for value in speculator.state(0).keys[0].values])
    assert results[0] == results[1]
    assert sum(num for _, num in results[0]) > 200


@pytest.mark.parametrize("type_", ["ngram-map-k", "ngram-map-k4v"])
def test_a_text_that_shrinks_without_begin_is_refused(type_: str) -> None:
    chain = make_chain([type_], SMALL)
    draft_once(chain, [1, 2] * 20, 1)
    with pytest.raises(SpeculatorError, match="became shorter without begin: 40 tokens before, 20 now"):
        draft_once(chain, [1, 2] * 10, 1)
    assert draft_once(make_chain([type_], SMALL), [1, 2], 1) == []


# --- ngram-mod ------------------------------------------------------------------------------------------------------


def test_mod_adds_in_pieces_and_the_last_writer_wins() -> None:
    pool = HashPool(2)
    pool.add(np.array([1, 2, 3, 1, 2, 4], np.int32))
    assert pool.used == 3  # (1, 2), (2, 3), (3, 1)
    assert pool.chain([1, 2], 5) == [4]
    assert pool.chain([2, 3], 5) == [1, 2, 4]
    assert pool.chain([2, 3], 0) == []
    assert pool.chain([9, 9], 5) == []


def test_mod_takes_no_memory_before_it_is_used() -> None:
    pool = HashPool(2)
    assert pool._slots is None
    pool.add(np.array([1, 2], np.int32))
    assert pool._slots is None
    pool.add(np.array([1, 2, 3], np.int32))
    assert pool._slots is not None
    assert pool._slots.nbytes == 16 * 2**20
    pool.clear()
    assert pool._slots is None


def test_mod_used_slots_are_counted_through_collisions() -> None:
    """n-grams whose first tokens differ by the table's size fall into one slot when they are one token long."""
    pool = HashPool(1)
    pool.add(np.array([5, 7, 5 + POOL_SIZE, 8, 5, 9], np.int32))
    assert pool.used == 3  # 5 and its alias, 7, 8
    assert pool.chain([5], 1) == [9]


def test_mod_clears_a_table_a_quarter_full_at_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.speculators.ngram_mod._MAX_USED", 40 / POOL_SIZE)
    speculator = NgramMod(NgramModParams(n_match=1, n_min=0))
    speculator.begin(0, TokenArray(range(41)))
    assert speculator.pools[0].used == 40
    speculator.begin(0, TokenArray(range(41, 50)))
    assert speculator.pools[0].used == 0
    assert speculator.states[0].i_last == 8


def test_mod_five_bad_rounds_clear_the_table() -> None:
    chain = make_chain(["ngram-mod"], SMALL)
    text = TokenArray([1, 2, 3, 4, 5, 6, 7, 8, 9, 1])
    chain.begin(0, text)
    for _ in range(5):
        assert draft_once(chain, text, 2) == [3, 4, 5, 6, 7, 8, 9, 1]
        chain.accept(0, 1)
    assert draft_once(chain, text, 2) == []


def test_mod_pool_of_another_size_is_refused() -> None:
    with pytest.raises(SpeculatorError, match="n_match = 3, but the shared pool hashes 2 tokens"):
        NgramMod(NgramModParams(n_match=3), shared=HashPool(2))


# --- ngram-cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_vocab", [2, 6, 300])
@pytest.mark.parametrize("frequent", [20, 10**9])
def test_sorted_text_answers_as_dictionaries_do(n_vocab: int, frequent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.speculators.ngram_counts._FREQUENT", frequent)
    text = copied(random.Random(n_vocab), 500, n_vocab)
    split = 400
    plain = NgramCounts()
    plain.add(text, 0)
    sorted_first = NgramCounts(SortedText(np.array(text[:split], np.int32)))
    sorted_first.add(text[split - 4 :], 4)
    assert sorted_first.n_ngrams() == plain.n_ngrams()
    assert sorted_first.total() == plain.total()
    for i in range(4, len(text)):
        for n in range(1, 5):
            ngram = tuple(text[i - n : i])
            assert list(sorted_first.get(ngram).items()) == list(plain.get(ngram).items()), ngram
    assert sorted_first.n_ngrams() == plain.n_ngrams()
    assert sorted_first.total() == plain.total()
    assert sorted_first.get((n_vocab, n_vocab)) == {}


def test_cache_drafts_the_same_from_a_sorted_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    text, drafts = copied(random.Random(8), 600, 12), []
    for sort_from in (2, 10**9):
        monkeypatch.setattr(ngram_cache, "_SORT_FROM", sort_from)
        drafts.append(play(["ngram-cache"], text[:300], text[300:]).drafts)
    assert drafts[0] == drafts[1]
    assert sum(map(len, drafts[0])) > 100


def test_cache_ties_go_to_the_token_seen_later() -> None:
    assert best_token({5: 1, 6: 1}, {}, 1, 50) == 6
    assert best_token({6: 1, 5: 1}, {}, 1, 50) == 5
    assert best_token({5: 2, 6: 1}, {}, 1, 50) == 5
    assert best_token({5: 1, 6: 1, 7: 1}, {}, 1, 50) is None
    assert best_token({5: 1}, {}, 2, 50) is None


def test_cache_weighs_with_the_static_table() -> None:
    assert best_token({5: 3, 6: 2}, {6: 1}, 1, 40) == 6  # 2 × 100 × 1 against 3
    assert best_token({5: 3, 6: 2}, {6: 1}, 1, 50) is None  # and then its own count must do
    assert best_token({5: 3, 6: 2}, {9: 1}, 1, 50) == 5
    assert best_token({1: 1, 2: 1, 14: 1}, {1: 1, 14: 1}, 1, 30) == 14  # the order of the library's hash map


def test_cache_asks_context_then_dynamic_then_static(tmp_path: Path) -> None:
    lookup_file.write(tmp_path / "static", [((1, 2), {30: 2})])
    lookup_file.write(tmp_path / "dynamic", [((1, 2), {20: 3}), ((2,), {21: 4}), ((3,), {22: 3})])
    files = NgramCacheParams(lookup_static=f"{tmp_path}/static", lookup_dynamic=f"{tmp_path}/dynamic")
    params = SpeculatorParams(ngram_cache=files)

    def first(history: list[int], last: int, params: SpeculatorParams = params) -> list[int]:
        return draft_once(make_chain(["ngram-cache"], params), history, last)[:1]

    only_static = SpeculatorParams(ngram_cache=NgramCacheParams(lookup_static=f"{tmp_path}/static"))
    assert first([1, 2, 10, 8, 1, 2, 10, 9, 1], 2) == [10]
    assert first([8, 9, 1], 2) == [20]
    assert first([8, 9, 5], 2) == [21]
    assert first([8, 9, 5], 3) == []  # three samples are too few for one token
    assert first([8, 9, 1], 2, only_static) == [30]


def test_cache_without_files_reads_none_and_a_missing_file_is_named() -> None:
    assert NgramCache().static is None
    missing = SpeculatorParams(ngram_cache=NgramCacheParams(lookup_dynamic="/no/such/file"))
    with pytest.raises(SpeculatorError, match="/no/such/file: cannot be read"):
        make_chain(["ngram-cache"], missing)
    assert make_chain(["ngram-mod"], missing)


# --- all ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-suffix"])
@pytest.mark.parametrize("seq", [-1, 1, 7])
def test_a_sequence_that_is_not_there_is_refused(type_: str, seq: int) -> None:
    with pytest.raises(SpeculatorError, match=f"no sequence {seq}"):
        make_chain([type_], SMALL).begin(seq, TokenArray([1, 2, 3]))


@pytest.mark.parametrize("type_", ALL)
def test_a_short_history_drafts_nothing(type_: str) -> None:
    for n in range(3):
        assert draft_once(make_chain([type_], SpeculatorParams()), [4] * n, 5) == []


@pytest.mark.parametrize(
    ("type_", "params"),
    [
        ("ngram-map-k", SpeculatorParams(ngram_map_k=NgramParams(size_n=0))),
        ("ngram-map-k4v", SpeculatorParams(ngram_map_k4v=NgramParams(size_n=0))),
        ("ngram-mod", SpeculatorParams(ngram_mod=NgramModParams(n_match=0))),
    ],
)
def test_looking_up_nothing_is_refused(type_: str, params: SpeculatorParams) -> None:
    with pytest.raises(SpeculatorError, match="must be at least 1"):
        make_chain([type_], params)


def test_simple_can_look_up_nothing() -> None:
    assert NgramSimple(NgramParams(size_n=0, size_m=2)).n == 0


@pytest.mark.parametrize("type_", FIVE)
def test_a_history_handed_over_anew_drafts_as_one_that_grows(type_: str) -> None:
    """What is kept from round to round must not depend on the text being the same object."""
    text = copied(random.Random(2), 500, 6)
    grown, anew = make_chain([type_], SMALL), make_chain([type_], SMALL)
    array = TokenArray(text[:60])
    grown.begin(0, array)
    anew.begin(0, TokenArray(text[:60]))
    position = 60
    while position + 10 < len(text):
        drafts = [draft_once(grown, array, text[position]), draft_once(anew, text[:position], text[position])]
        assert drafts[0] == drafts[1]
        accepted = next((i for i, t in enumerate(drafts[0]) if t != text[position + 1 + i]), len(drafts[0]))
        for chain in (grown, anew):
            if drafts[0]:
                chain.accept(0, accepted)
        array.extend(text[position : position + accepted + 1])
        position += accepted + 1
