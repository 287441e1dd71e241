from __future__ import annotations

import numpy as np
import pytest

from outrider.engine.kv_cache import KvCache
from outrider.errors import CacheError

LAYERS, KV, CTX, HEAD = 2, 3, 10, 4


@pytest.fixture
def cache() -> KvCache:
    return KvCache(2, LAYERS, KV, CTX, HEAD)


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    keys = np.random.default_rng(seed).standard_normal((n, KV, HEAD)).astype(np.float32)
    return keys, -keys


def append(cache: KvCache, seq: int, n: int, seed: int) -> None:
    for layer in range(LAYERS):
        cache.write(seq, layer, cache.length(seq), *rows(n, seed + layer))
    cache.extend(seq, n)


def held(cache: KvCache, seq: int) -> list[bytes]:
    n = cache.length(seq)
    return [part.tobytes() for layer in range(LAYERS) for part in cache.read(seq, layer, n)]


def test_what_was_written_is_read(cache: KvCache) -> None:
    append(cache, 0, 3, 1)
    append(cache, 0, 2, 5)
    keys, values = cache.read(0, 1, 5)
    assert np.array_equal(keys[:, :3], rows(3, 2)[0].swapaxes(0, 1))
    assert np.array_equal(values[:, 3:], rows(2, 6)[1].swapaxes(0, 1))
    assert cache.length(1) == 0


def test_rows_that_were_not_added_do_not_count(cache: KvCache) -> None:
    append(cache, 0, 3, 1)
    before = held(cache, 0)
    cache.write(0, 0, 3, *rows(4, 9))
    assert cache.length(0) == 3
    assert held(cache, 0) == before


def test_truncate_then_extend_is_as_never_truncated(cache: KvCache) -> None:
    append(cache, 0, 3, 1)
    append(cache, 0, 4, 5)
    cache.truncate(0, 3)
    append(cache, 0, 2, 7)
    append(cache, 1, 3, 1)
    append(cache, 1, 2, 7)
    assert held(cache, 0) == held(cache, 1)


def test_a_copy_is_equal_and_independent(cache: KvCache) -> None:
    append(cache, 0, 5, 1)
    append(cache, 1, 7, 3)
    cache.copy(0, 1)
    assert held(cache, 1) == held(cache, 0)
    before = held(cache, 0)
    cache.truncate(1, 2)
    append(cache, 1, 4, 8)
    assert held(cache, 0) == before
    cache.copy(0, 0)
    assert held(cache, 0) == before


def test_restore_brings_back_overwritten_rows(cache: KvCache) -> None:
    append(cache, 0, 5, 1)
    before, checkpoint = held(cache, 0), cache.save(0)
    cache.truncate(0, 1)
    append(cache, 0, 6, 8)
    cache.restore(0, checkpoint)
    assert held(cache, 0) == before
    cache.restore(1, checkpoint)
    assert held(cache, 1) == before


@pytest.mark.parametrize("length", [-1, 4])
def test_truncate_refuses_and_changes_nothing(cache: KvCache, length: int) -> None:
    append(cache, 0, 3, 1)
    before = held(cache, 0)
    with pytest.raises(CacheError, match=f"cannot keep {length} of 3 rows"):
        cache.truncate(0, length)
    assert held(cache, 0) == before


def test_foreign_checkpoints_are_refused(cache: KvCache) -> None:
    append(cache, 0, 3, 1)
    before = held(cache, 0)
    other = KvCache(1, LAYERS, KV + 1, CTX, HEAD)
    longer = KvCache(1, LAYERS, KV, CTX + 5, HEAD)
    for layer in range(LAYERS):
        longer.write(0, layer, 0, *rows(CTX + 1, 1))
    longer.extend(0, CTX + 1)
    for checkpoint in (None, b"bytes", other.save(0), longer.save(0)):
        with pytest.raises(CacheError, match="checkpoint"):
            cache.restore(0, checkpoint)
    assert held(cache, 0) == before


@pytest.mark.parametrize("seq", [-1, 2])
def test_unknown_sequences_are_refused(cache: KvCache, seq: int) -> None:
    for call in (cache.length, cache.save, lambda s: cache.truncate(s, 0), lambda s: cache.copy(0, s)):
        with pytest.raises(CacheError, match=rf"sequence {seq} is not in 0\.\.1"):
            call(seq)


def test_nbytes(cache: KvCache) -> None:
    assert cache.nbytes == 2 * 2 * LAYERS * KV * CTX * HEAD * 4
