"""The vocabulary gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.vocab import (
    Mismatch,
    block_ids,
    check_facts,
    compare_texts,
    differing_blocks,
    find_mismatch,
)
from outrider.engine.vocab_facts import block_hash, vocab_facts
from outrider.types import VocabFacts
from tests.golden.vocab_gate import check

FILES = sorted((Path(__file__).parents[1] / "data/golden/vocab_gate").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_pairs(path: Path) -> None:
    assert check(path, json.loads(path.read_text())) == []


def test_there_are_recorded_pairs() -> None:
    assert len(FILES) > 20


def facts(texts: list[bytes], **changes: object) -> VocabFacts:
    known = {"type": "bpe", "add_bos": False, "bos": 1, "add_eos": False, "eos": 2, **changes}
    return vocab_facts(texts=texts, **known)  # type: ignore[arg-type]


def words(count: int) -> list[bytes]:
    return [b"w%d" % i for i in range(count)]


def brute_force(target: list[bytes], draft: list[bytes]) -> int | None:
    """The first common id from 5 on at which the texts differ."""
    return next((i for i in range(5, min(len(target), len(draft))) if target[i] != draft[i]), None)


def gate(target: list[bytes], draft: list[bytes]) -> Mismatch | None:
    return find_mismatch(facts(target), facts(draft), lambda i, n: target[i : i + n], lambda i, n: draft[i : i + n])


@given(st.integers(0, 128), st.booleans(), st.lists(st.integers(0, 2600), max_size=3), st.integers(1, 2500))
def test_blocks_find_what_comparing_all_finds(extra: int, larger: bool, changed: list[int], size: int) -> None:
    target, draft = words(size), words(size + (extra if larger else -min(extra, size - 1)))
    for i in changed:
        if i < len(draft):
            draft[i] = b"other"
    failed = gate(target, draft)
    assert (failed and failed.token_id) == brute_force(target, draft)
    assert failed is None or (failed.check, failed.draft) == ("text", "'other'")


def test_the_last_block_of_different_sizes_is_fetched_and_found_equal() -> None:
    target, draft = facts(words(3000)), facts(words(3100))
    assert differing_blocks(target, draft) == [2]
    assert (block_ids(target, 2), block_ids(draft, 2)) == (range(2053, 3000), range(2053, 3077))
    assert differing_blocks(facts(words(1029)), facts(words(1100))) == []
    assert differing_blocks(facts(words(3)), facts(words(100))) == []


def test_block_ids_tile_the_vocabulary() -> None:
    for size in (3, 5, 6, 1028, 1029, 1030, 5000):
        one = facts(words(size))
        ids = [i for block in range(len(one.block_hashes)) for i in block_ids(one, block)]
        assert ids == list(range(5, size))


def test_hashes_see_where_one_text_ends_and_the_next_begins() -> None:
    assert block_hash([b"ab", b"c"]) != block_hash([b"a", b"bc"])
    assert block_hash([b"", b"a"]) != block_hash([b"a", b""])
    assert 0 <= block_hash([]) < 2**64


def test_a_hash_is_the_same_on_every_machine() -> None:
    assert block_hash([b"hello", b"", "▁w".encode()]) == 0xCDDAAEB7F85D6CCC


def test_order_of_the_checks() -> None:
    """Each case repairs what the one before it was refused for."""
    target = facts(words(500), add_bos=True, add_eos=True)
    flags = {"add_bos": True, "add_eos": True}
    cases = [
        ("type", {"type": "spm", "bos": 7, "eos": 8}),
        ("bos", {"bos": 7, "eos": 8}),
        ("eos", {"eos": 8}),
        ("size", {}),
    ]
    for name, changes in cases:
        failed = check_facts(target, facts(words(700), **flags, **changes))
        assert failed is not None
        assert failed.check == name
    assert check_facts(target, facts(words(628), **flags)) is None


def test_ids_count_only_where_the_target_adds_them() -> None:
    assert check_facts(facts(words(9), bos=1), facts(words(9), bos=7)) is None
    assert check_facts(facts(words(9), eos=1), facts(words(9), eos=7)) is None
    for flag, name in (("add_bos", "bos"), ("add_eos", "eos")):
        failed = check_facts(facts(words(9)), facts(words(9), **{flag: True}))
        assert failed is not None
        assert failed.check == name


def test_no_vocabulary_on_both_sides_is_refused_by_name() -> None:
    none = vocab_facts(type="none", add_bos=False, bos=-1, add_eos=False, eos=-1, texts=[])
    failed = check_facts(none, none)
    assert failed is not None
    assert "target has no vocabulary, draft has no vocabulary" in failed.message


def test_a_message_names_check_values_and_id() -> None:
    failed = compare_texts(270, [b"a", b"same", "▁x\n".encode()], [b"a", b"same", b"\xff" * 200, b"more"])
    assert failed is not None
    assert failed.token_id == 272
    assert r"check 'text' failed at token 272: target has '▁x\n', draft has b'\xff\xff" in failed.message
    assert len(failed.message) < 300
