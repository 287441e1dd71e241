"""llama.cpp's lookup files: how often which token followed an n-gram. Every length is checked before it is believed.

The file is a row of records without a header, little-endian int32 throughout: four tokens (short n-grams are padded with
-1), the number of pairs, and the pairs (token, count). Of two records of an n-gram, or two pairs of a token, the first
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.errors import SpeculatorError

#: Tokens of the longest n-gram.
NGRAM_MAX = 4

#: A larger file is refused.
MAX_BYTES = 2**30

_EMPTY: Mapping[int, int] = {}
_HEADER = NGRAM_MAX + 1
_NO_TOKEN = -1


class LookupTable:
    """The counts of a file, read-only; `len` is the number of n-grams."""

    def __init__(self, data: NDArray[np.int32], places: Mapping[bytes, int]) -> None:
        self._data = data
        self._places = places
        self.counts = lru_cache(maxsize=4096)(self._counts)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (tuple(np.frombuffer(key, np.int32).tolist()) for key in self._places)

    def _counts(self, ngram: tuple[int, ...]) -> Mapping[int, int]:
        """Count of each token that followed `ngram` (1 to 4 tokens), in the order of the file. Empty if unknown."""
        place = self._places.get(_key(ngram))
        if place is None:
            return _EMPTY
        n_pairs = int(self._data[place])
        pairs = self._data[place + 1 : place + 1 + 2 * n_pairs].reshape(n_pairs, 2)
        counts: dict[int, int] = {}
        for token, count in pairs.tolist():
            counts.setdefault(token, count)
        return counts


def _key(ngram: Sequence[int]) -> bytes:
    return np.array([*ngram, *[_NO_TOKEN] * (NGRAM_MAX - len(ngram))], np.int32).tobytes()


def read(path: str | Path) -> LookupTable:
    """Raises SpeculatorError, with the place, if the file cannot be read or is not of this form."""
    data = np.frombuffer(_read_bytes(Path(path)), "<i4").astype(np.int32, copy=False)
    places: dict[bytes, int] = {}
    start = 0
    while start < data.size:
        end = _record_end(data, start, path)
        places.setdefault(data[start : start + NGRAM_MAX].tobytes(), start + NGRAM_MAX)
        start = end
    return LookupTable(data, places)


def _read_bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise SpeculatorError(f"lookup file {path}: {size} bytes; at most {MAX_BYTES} are read")
        raw = path.read_bytes()
    except OSError as error:
        raise SpeculatorError(f"lookup file {path}: cannot be read: {error.strerror or error}") from None
    if len(raw) % 4:
        raise SpeculatorError(f"lookup file {path}: {len(raw)} bytes are no whole number of 32-bit integers")
    return raw


def _record_end(data: NDArray[np.int32], start: int, path: str | Path) -> int:
    """Index behind the record at `start`."""
    place = f"lookup file {path}, byte {4 * start}"
    if start + _HEADER > data.size:
        raise SpeculatorError(f"{place}: the file ends inside an n-gram")
    n_pairs = int(data[start + NGRAM_MAX])
    end = start + _HEADER + 2 * n_pairs
    if n_pairs < 1:
        raise SpeculatorError(f"{place}: {n_pairs} pairs; it must be at least 1")
    if end > data.size:
        raise SpeculatorError(f"{place}: {n_pairs} pairs, but the file ends before them")
    if data[start + _HEADER + 1 : end : 2].min() < 1:
        raise SpeculatorError(f"{place}: a count below 1")
    return end


def write(path: str | Path, entries: Iterable[tuple[Sequence[int], Mapping[int, int]]]) -> None:
    """Write (n-gram of 1 to 4 tokens, count of each following token) records; the counts are at least 1."""
    numbers: list[int] = []
    for ngram, counts in entries:
        if not 1 <= len(ngram) <= NGRAM_MAX or not counts or min(counts.values()) < 1:
            raise SpeculatorError(
                f"lookup file {path}: no record can be made of n-gram {list(ngram)} with {dict(counts)}"
            )
        numbers += [*ngram, *[_NO_TOKEN] * (NGRAM_MAX - len(ngram)), len(counts)]
        for pair in counts.items():
            numbers += pair
    try:
        Path(path).write_bytes(np.array(numbers, "<i4").tobytes())
    except OSError as error:
        raise SpeculatorError(f"lookup file {path}: cannot be written: {error.strerror or error}") from None
    except OverflowError:
        raise SpeculatorError(f"lookup file {path}: a token or count is no 32-bit integer") from None
