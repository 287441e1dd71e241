"""Lookup files: what is written is read again, and nothing in a bad file is believed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from outrider.errors import SpeculatorError
from outrider.speculators import lookup_file

ENTRIES = [((5,), {6: 2, 7: 1}), ((5, 6), {7: 3}), ((1, 2, 3, 4), {5: 1}), ((9, 9), {8: 2**31 - 1})]


def numbers(path: Path, values: list[int]) -> Path:
    path.write_bytes(np.array(values, "<i4").tobytes())
    return path


def test_round_trip(tmp_path: Path) -> None:
    lookup_file.write(tmp_path / "table", ENTRIES)
    table = lookup_file.read(tmp_path / "table")
    assert len(table) == len(ENTRIES)
    for ngram, counts in ENTRIES:
        assert list(table.counts(ngram).items()) == list(counts.items())
    assert table.counts((5, 7)) == {}
    assert table.counts((9,)) == {}


def test_bytes_are_llama_cpps(tmp_path: Path) -> None:
    lookup_file.write(tmp_path / "table", [((5, 6), {7: 3, 8: 1})])
    expected = [5, 6, -1, -1, 2, 7, 3, 8, 1]
    assert (tmp_path / "table").read_bytes() == b"".join(n.to_bytes(4, "little", signed=True) for n in expected)


def test_the_first_record_and_the_first_pair_count(tmp_path: Path) -> None:
    twice = [5, -1, -1, -1, 2, 7, 3, 7, 9, 5, -1, -1, -1, 1, 8, 1]
    table = lookup_file.read(numbers(tmp_path / "table", twice))
    assert dict(table.counts((5,))) == {7: 3}
    assert len(table) == 1


def test_an_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    assert len(lookup_file.read(numbers(tmp_path / "table", []))) == 0


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([5, -1, -1, -1], "ends inside an n-gram"),
        ([5, -1, -1, -1, 1], "the file ends before them"),
        ([5, -1, -1, -1, 1, 7], "the file ends before them"),
        ([5, -1, -1, -1, 2**31 - 1, 7, 1], "the file ends before them"),
        ([5, -1, -1, -1, 0], "0 pairs"),
        ([5, -1, -1, -1, -3, 7, 1], "-3 pairs"),
        ([5, -1, -1, -1, 1, 7, 0], "a count below 1"),
        ([5, -1, -1, -1, 2, 7, 1, 8, -1], "a count below 1"),
        ([5, -1, -1, -1, 1, 7, 1, 5], "byte 28: the file ends inside"),
    ],
)
def test_a_bad_record_is_refused_with_its_place(tmp_path: Path, values: list[int], reason: str) -> None:
    path = numbers(tmp_path / "table", values)
    with pytest.raises(SpeculatorError, match=reason) as caught:
        lookup_file.read(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"1234567")
    for name, reason in (("none", "cannot be read"), (".", "cannot be read"), ("odd", "no whole number")):
        with pytest.raises(SpeculatorError, match=reason):
            lookup_file.read(tmp_path / name)


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_file, "MAX_BYTES", 24)
    with pytest.raises(SpeculatorError, match="at most 24 are read"):
        lookup_file.read(numbers(tmp_path / "table", [5, -1, -1, -1, 1, 7, 1]))


def test_any_bytes_are_read_or_refused(tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "table"
    lookup_file.write(path, ENTRIES)
    good = path.read_bytes()
    for _ in range(300):
        bad = bytearray(good[: rng.randrange(len(good) + 1)])
        for _ in range(rng.randrange(4) if bad else 0):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        path.write_bytes(bad)
        try:
            table = lookup_file.read(path)
        except SpeculatorError:
            continue
        assert all(count > 0 for ngram in table for count in table.counts(ngram).values())


@pytest.mark.parametrize(
    "entry", [((), {1: 1}), ((1, 2, 3, 4, 5), {1: 1}), ((1,), {}), ((1,), {2: 0}), ((2**31,), {1: 1})]
)
def test_what_makes_no_record_is_not_written(tmp_path: Path, entry: tuple[tuple[int, ...], dict[int, int]]) -> None:
    with pytest.raises(SpeculatorError, match="lookup file"):
        lookup_file.write(tmp_path / "table", [entry])


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpeculatorError, match="cannot be written"):
        lookup_file.write(tmp_path / "none" / "table", ENTRIES)
