"""The noise: right distribution, no dependence on anything but its key, and the same numbers for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.noise import gumbel_noise, mix, mix_array, position_key, uniforms

U64 = st.integers(0, 2**64 - 1)


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_hash_is_splitmix64() -> None:
    # outputs of Vigna's reference implementation for the seed 1234567
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    state = 1234567
    assert [mix((state + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) for i in range(4)] == expected


@given(st.lists(U64, min_size=1, max_size=20))
def test_array_hash_equals_integer_hash(values: list[int]) -> None:
    assert mix_array(np.array(values, np.uint64)).tolist() == [mix(value) for value in values]


def test_noise_is_pinned() -> None:
    """A change here changes every sampled text."""
    assert position_key(42, 1, 7) == 15381302289769439799
    expected = [0.8569149797267545, -0.5321643869576633, 1.7936318375034122]
    assert gumbel_noise(42, 1, 7, np.array([0, 1, 151_000])).tolist() == pytest.approx(expected, rel=1e-14)


@given(U64, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**31 - 1), max_size=30))
def test_noise_of_an_id_depends_on_its_key_only(seed: int, choice: int, position: int, ids: list[int]) -> None:
    together = gumbel_noise(seed, choice, position, np.array(ids, np.int64))
    alone = [float(gumbel_noise(seed, choice, position, np.array([i], np.int32))[0]) for i in ids]
    assert together.tolist() == alone
    assert np.isfinite(together).all()


def test_extreme_hashes_stay_inside_the_open_interval() -> None:
    bits = np.array([0, 2**64 - 1], np.uint64)
    odd = ((bits >> np.uint64(11)) | np.uint64(1)).astype(np.float64) * 2.0**-53
    assert (odd > 0).all()
    assert (odd < 1).all()
    assert np.isfinite(-np.log(-np.log(odd))).all()


@pytest.mark.parametrize("axis", ["ids", "positions", "seeds", "choices"])
def test_uniform_along_every_part_of_the_key(axis: str) -> None:
    """Neighbouring values of one part, the others fixed: flat, and neighbours are independent."""
    n = 20_000
    if axis == "ids":
        values = uniforms(3, 0, 5, np.arange(n))
    else:
        keys = {"positions": lambda i: (3, 0, i), "seeds": lambda i: (i, 0, 5), "choices": lambda i: (3, i, 5)}[axis]
        values = np.array([uniforms(*keys(i), np.array([9]))[0] for i in range(n)])
    assert chi_square(np.bincount((values * 64).astype(int), minlength=64), n / 64) < 110  # 63 degrees, p = 2e-4
    pairs = (values[:-1] * 16).astype(int) * 16 + (values[1:] * 16).astype(int)
    assert chi_square(np.bincount(pairs, minlength=256), (n - 1) / 256) < 345  # 255 degrees, p = 2e-4
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / n**0.5


def test_parts_of_the_key_are_not_exchangeable() -> None:
    ids = np.arange(50)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**63, 0, 0), (0, 2**31, 0)]
    noises = {gumbel_noise(*key, ids).tobytes() for key in keys}
    assert len(noises) == len(keys)


def test_moments_are_gumbels() -> None:
    noise = gumbel_noise(11, 0, 0, np.arange(200_000))
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.03)
