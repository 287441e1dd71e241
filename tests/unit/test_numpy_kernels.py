"""Each kernel gives a row the same bits wherever it lies: in a batch, in memory, on a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from outrider.engine import numpy_kernels
from outrider.engine.numpy_kernels import (
    BLOCK,
    Arena,
    Linear,
    Matrix,
    aligned_rows,
    aligned_zeros,
    attend,
    rms_norm,
    set_blas_threads,
    silu_product,
    softmax,
)
from outrider.engine.rope import Rope, RopeParams
from outrider.engine.work_pool import WorkPool

SHAPES = [(1, 7), (16, 16), (33, 50), (160, 1000), (71, 4864), (300, 64)]
OFFSETS = (0, 1, 2, 3, 5, 8, 13)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small matrices are shared out among threads."""
    monkeypatch.setattr(numpy_kernels, "MIN_PIECE_BYTES", 1)
    set_blas_threads(1)


@pytest.fixture
def pool() -> Iterator[WorkPool]:
    pool = WorkPool(1)
    yield pool
    pool.close()


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def displaced(x: np.ndarray, offset: int) -> np.ndarray:
    """A copy that starts `offset` floats behind a multiple of 64 bytes."""
    copy = aligned_zeros(x.size + offset)[offset:].reshape(x.shape)
    copy[:] = x
    return copy


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype == np.float32 and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_multiplies(shape: tuple[int, int], pool: WorkPool) -> None:
    weights, x = random(*shape), random(5, shape[1], seed=1)
    found = Matrix([weights])(x, pool)
    assert found.shape == (5, shape[0])
    assert np.allclose(found, x.astype(float) @ weights.T.astype(float), atol=1e-3)


def test_parts_of_a_matrix_follow_each_other(pool: WorkPool) -> None:
    parts = [random(5, 9), random(20, 9, seed=1), random(1, 9, seed=2)]
    matrix = Matrix(parts)
    assert same_bits(matrix.rows, np.concatenate(parts))
    assert same_bits(matrix(random(3, 9), pool), Matrix([np.concatenate(parts)])(random(3, 9), pool))


def test_matrices_of_one_arena_do_not_touch(pool: WorkPool) -> None:
    parts = [random(n, 9, seed=n) for n in (5, 20, 3, 16)]
    arena = Arena([part.shape for part in parts])
    matrices = [Matrix(parts[:2], arena), Matrix(parts[2:3], arena), Matrix(parts[3:], arena)]
    x = random(2, 9)
    for matrix, wanted in zip(matrices, [np.concatenate(parts[:2]), *parts[2:]], strict=True):
        assert same_bits(matrix.rows, wanted)
        assert same_bits(matrix(x, pool), Matrix([wanted])(x, pool))
        assert matrix.blocks.ctypes.data % 64 == 0


def test_a_linear_adds_its_bias(pool: WorkPool) -> None:
    matrix, x, bias = Matrix([random(20, 9)]), random(3, 9), random(20, seed=4)
    assert same_bits(Linear(matrix, bias)(x, pool), matrix(x, pool) + bias)
    assert matrix.nbytes == 2 * BLOCK * 9 * 4


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tile", [3, 64])
def test_a_product_is_the_same_in_every_batch(
    shape: tuple[int, int], tile: int, pool: WorkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, x = Matrix([random(*shape)]), random(70, shape[1], seed=1)
    one_by_one = np.concatenate([matrix(x[i : i + 1], pool) for i in range(len(x))])
    monkeypatch.setattr(numpy_kernels, "TILE", tile)
    for n in (2, 3, 4, 7, 8, 9, 16, 31, 70):
        assert same_bits(matrix(x[:n], pool), one_by_one[:n]), n
        assert same_bits(matrix(x[-n:], pool), one_by_one[-n:]), n


@pytest.mark.parametrize("n_threads", [2, 3, 5])
def test_a_product_is_the_same_on_any_number_of_threads(n_threads: int, pool: WorkPool) -> None:
    many = WorkPool(n_threads)
    try:
        for shape in SHAPES:
            matrix, x = Matrix([random(*shape)]), random(9, shape[1], seed=1)
            assert same_bits(matrix(x, many), matrix(x, pool)), shape
    finally:
        many.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_the_same_wherever_its_vector_lies(shape: tuple[int, int], pool: WorkPool) -> None:
    matrix, x = Matrix([random(*shape)]), random(3, shape[1], seed=1)
    for offset in OFFSETS:
        assert same_bits(matrix(displaced(x, offset), pool), matrix(x, pool)), offset
    assert same_bits(matrix(np.asfortranarray(x), pool), matrix(x, pool))


def test_threads_of_blas_are_what_we_keep_away(pool: WorkPool) -> None:
    matrix, x = Matrix([random(160, 1000)]), random(1, 1000, seed=1)
    wanted = matrix(x, pool)
    if not set_blas_threads(3):
        pytest.skip("numpy's BLAS here cannot be told how many threads to use")
    try:
        matrix(x, pool)  # whatever comes out
    finally:
        set_blas_threads(1)
    assert same_bits(matrix(x, pool), wanted)


def test_aligned_arrays() -> None:
    for width in (1, 16, 50):
        rows = aligned_rows(random(3, width))
        assert same_bits(rows, random(3, width))
        assert all(row.ctypes.data % 64 == 0 for row in rows)
    zeros = aligned_zeros(2, 3, 4)
    assert zeros.shape == (2, 3, 4)
    assert not zeros.any()
    assert zeros.ctypes.data % 64 == 0


# --- kernels that look at a row or an element -----------------------------------------------------------------------


def normed(x: np.ndarray) -> np.ndarray:
    return rms_norm(x, random(x.shape[-1], seed=9), np.float32(1e-5))


def activated(x: np.ndarray) -> np.ndarray:
    return silu_product(20 * x, x)


def turned(x: np.ndarray) -> np.ndarray:
    rope = Rope(RopeParams(n_rot=x.shape[-1] // 2 * 2, base=1e4, scale=1.0, neox=True), 100)
    return rope(x[:, None], np.full(len(x), 99))[:, 0]


def attended(x: np.ndarray) -> np.ndarray:
    keys, values = random(2, 37, x.shape[-1], seed=8), random(2, 37, x.shape[-1], seed=9)
    return np.stack([attend(np.stack([row, row, -row, row]), keys, values)[2] for row in x])


KERNELS = {f.__name__: f for f in (normed, activated, turned, attended)}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize("width", [2, 7, 16, 50, 576])
@np.errstate(over="ignore")
def test_a_row_is_the_same_in_every_batch_and_place(kernel: Callable[[np.ndarray], np.ndarray], width: int) -> None:
    x = random(20, width)
    one_by_one = np.concatenate([kernel(x[i : i + 1]) for i in range(len(x))])
    for n in (2, 3, 5, 8, 20):
        assert same_bits(kernel(x[:n]), one_by_one[:n]), n
        assert same_bits(kernel(x[-n:]), one_by_one[-n:]), n
    for offset in OFFSETS:
        assert same_bits(kernel(displaced(x, offset)), one_by_one), offset
    beside = np.concatenate([x, x], axis=1)  # as the parts of a fused projection lie
    assert same_bits(kernel(beside[:, width:]), one_by_one)


@pytest.mark.parametrize("n_rows", [1, 2, 5, 16, 37])
def test_attention_is_the_same_wherever_its_cache_lies(n_rows: int) -> None:
    query, keys, values = random(4, 18), random(2, 40, 18, seed=1), random(2, 40, 18, seed=2)
    wanted = attend(query, keys[:, :n_rows], values[:, :n_rows])
    for offset in OFFSETS:
        k, v = displaced(keys, offset), displaced(values, offset)
        assert same_bits(attend(displaced(query, offset), k[:, :n_rows], v[:, :n_rows]), wanted), offset
    longer = [np.concatenate([part, part], axis=1)[:, :n_rows] for part in (keys, values)]
    assert same_bits(attend(query, *longer), wanted)


def test_softmax_sums_to_one_and_survives_large_scores() -> None:
    x = random(3, 4, 33) * 500
    assert np.allclose(softmax(x).sum(axis=-1), 1, atol=1e-6)
    assert np.array_equal(softmax(x).argmax(axis=-1), x.argmax(axis=-1))


@np.errstate(over="ignore")
def test_silu_of_large_values() -> None:
    found = silu_product(np.array([-1000, -50, 0, 50, 1000], np.float32), np.full(5, 2, np.float32))
    assert np.allclose(found, [0, 0, 0, 100, 2000])


@pytest.mark.parametrize("neox", [True, False])
def test_values_past_the_turned_ones_stay(neox: bool) -> None:
    rope = Rope(RopeParams(n_rot=6, base=1e4, scale=1.0, neox=neox), 10)
    x = random(2, 3, 10)
    found = rope(x, np.array([0, 7]))
    assert same_bits(found[..., 6:], x[..., 6:])
    assert same_bits(found[0], x[0])
    assert not np.allclose(found[1, :, :6], x[1, :, :6])
    assert np.allclose(np.linalg.norm(found, axis=-1), np.linalg.norm(x, axis=-1))
