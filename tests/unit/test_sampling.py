"""The sampler chain against a slow restatement of its rules, and the sampled tokens against the probabilities."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.decoding.noise import gumbel_noise
from outrider.decoding.penalties import Window
from outrider.decoding.sampling import Sampler, token_logprobs
from outrider.decoding.truncation import nucleus, top
from outrider.errors import EngineError, RequestError
from outrider.types import LogitBias, SamplingParams

Row = NDArray[np.float32]
OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
EOG = [2, 5]


def make_row(*logits: float) -> Row:
    return np.array(logits, np.float32)


def sampler(n_vocab: int = 10, choice: int = 0, **params: Any) -> Sampler:
    return Sampler(SamplingParams(**params), choice, n_vocab, [i for i in EOG if i < n_vocab])


# --- an oracle: one candidate at a time, python floats, from the definitions ------------------------------------


def oracle(params: SamplingParams, row: Row, history: list[int], n_generated: int, mask: Any) -> dict[int, float]:
    """Survivors and their probabilities."""
    logits = {i: float(x) for i, x in enumerate(row) if (mask is None or mask[i]) and x > -math.inf}
    if params.ignore_eos or n_generated < params.min_tokens:
        logits = {i: x for i, x in logits.items() if i not in EOG}
    for bias in params.logit_bias:
        if bias.token in logits:
            logits[bias.token] += bias.bias
    last = params.repeat_last_n
    for token, count in Counter(history if last < 0 else history[len(history) - min(last, len(history)) :]).items():
        if token in logits:
            old = logits[token]
            new = old * params.repeat_penalty if old <= 0 else old / params.repeat_penalty
            logits[token] = new - count * params.frequency_penalty - params.presence_penalty
    ranked = sorted(logits.items(), key=lambda item: (-item[1], item[0]))
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.typical_p < 1:
        probs = normalised(ranked)
        entropy = -sum(p * math.log(p) for p in probs if p > 0)
        order = sorted(range(len(ranked)), key=lambda i: (abs(-math.log(probs[i] or 1e-320) - entropy), i))
        ranked = [ranked[i] for i in sorted(prefix(order, probs, lambda total: total > params.typical_p))]
    if params.top_p < 1:
        probs = normalised(ranked)
        ranked = [ranked[i] for i in prefix(list(range(len(ranked))), probs, lambda total: total >= params.top_p)]
    if params.min_p > 0:
        ranked = [item for item in ranked if item[1] >= ranked[0][1] + math.log(params.min_p)]
    scaled = normalised([(i, x / params.temp) for i, x in ranked])
    return {i: p for (i, _), p in zip(ranked, scaled, strict=True)}


def normalised(ranked: list[tuple[int, float]]) -> list[float]:
    best = max(x for _, x in ranked)
    powers = [math.exp(x - best) for _, x in ranked]
    return [power / sum(powers) for power in powers]


def prefix(order: list[int], probs: list[float], enough: Any) -> list[int]:
    total = 0.0
    for n, i in enumerate(order):
        total += probs[i]
        if enough(total):
            return order[: n + 1]
    return order


# quarters are exact in float32 and make many ties; the odd thresholds keep clear of exact sums
LOGITS = st.integers(-40, 40).map(lambda quarter: quarter / 4)
PARAMS = st.builds(
    SamplingParams,
    temp=st.sampled_from([0.25, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 3, 7, 100]),
    typical_p=st.sampled_from([1.0, 1.0, 0.0, 0.317, 0.911]),
    top_p=st.sampled_from([1.0, 0.0, 0.113, 0.617, 0.953]),
    min_p=st.sampled_from([0.0, 0.0513, 0.317, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 0.5, 2.0]),
    frequency_penalty=st.sampled_from([0.0, -0.5, 0.25]),
    presence_penalty=st.sampled_from([0.0, -1.0, 1.5]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 2, 5, 64]),
    logit_bias=st.lists(st.builds(LogitBias, st.integers(0, 5), LOGITS), max_size=3),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 4),
)


@given(
    PARAMS,
    st.lists(LOGITS | st.just(-math.inf), min_size=6, max_size=30),
    st.lists(st.integers(0, 7), max_size=12),
    st.data(),
)
def test_candidates_equal_the_oracle(
    params: SamplingParams, logits: list[float], history: list[int], data: st.DataObject
) -> None:
    row = make_row(0.0, *logits[1:])  # one candidate at least, unless it is masked
    mask = np.array([True, *(data.draw(st.booleans()) for _ in logits[1:])]) if data.draw(st.booleans()) else None
    n_generated = data.draw(st.integers(0, 5))
    before = row.copy()
    expected = oracle(params, row, history, n_generated, mask)
    ours = Sampler(params, 0, len(row), EOG)
    ids, probs = ours.candidates(row, history, n_generated, mask)
    assert ids.tolist() == list(expected)
    assert probs.tolist() == pytest.approx(list(expected.values()), rel=1e-5)
    assert ours.sample(row, history, n_generated, mask) in expected
    assert (row == before).all()


# --- selections -------------------------------------------------------------------------------------------------


@given(st.lists(LOGITS | st.just(-math.inf), min_size=1, max_size=700), st.integers(1, 800))
def test_top_is_a_stable_sort_cut_at_k(logits: list[float], k: int) -> None:
    row = make_row(*logits)
    expected = [int(i) for i in np.argsort(-row, kind="stable")[:k] if row[i] > -math.inf]
    ids, values = top(row, k)
    assert ids.tolist() == expected
    assert values.tolist() == row[expected].tolist()


@pytest.mark.parametrize("k", [1, 40, 500, 4999, 5000])
@pytest.mark.parametrize("n_levels", [1, 3, 10_000])
def test_top_of_large_rows_with_ties(k: int, n_levels: int) -> None:
    row = np.random.default_rng(k).integers(0, n_levels, 5000).astype(np.float32)
    assert top(row, k)[0].tolist() == np.argsort(-row, kind="stable")[:k].tolist()


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("n_levels", [1, 4, 100_000])
@pytest.mark.parametrize("spread", [0.001, 12.0])
def test_nucleus_equals_sorting_everything(top_p: float, n_levels: int, spread: float) -> None:
    """Both ways through it: few candidates suffice, or the whole row is needed; equal logits at the cut."""
    levels = np.random.default_rng(n_levels).integers(0, n_levels, 3000)
    row = (levels * (spread / n_levels)).astype(np.float32)
    row[7::500] = -np.inf
    order = np.argsort(-row, kind="stable")
    powers = np.exp(row[order].astype(np.float64) - float(row.max()))
    n_kept = min(int(np.searchsorted(np.cumsum(powers / powers.sum()), top_p)) + 1, int(np.isfinite(row).sum()))
    ids, logits = nucleus(row, top_p)
    assert abs(len(ids) - n_kept) <= 1  # sums in another order
    assert sorted(ids.tolist()) == sorted(order[: len(ids)].tolist())
    assert (logits == row[ids]).all()


def test_thresholds_met_exactly() -> None:
    """Two equal candidates: top_p stops where the sum reaches it, typical_p where the sum is above it."""
    row = make_row(1, 1)
    assert sampler(2, temp=1.0, **OFF | {"top_p": 0.5}).candidates(row, [], 0)[0].tolist() == [0]
    assert sampler(2, temp=1.0, top_k=2, top_p=0.5, min_p=0.0).candidates(row, [], 0)[0].tolist() == [0]
    assert sampler(2, temp=1.0, **OFF | {"typical_p": 0.5}).candidates(row, [], 0)[0].tolist() == [0, 1]
    assert sampler(2, temp=1.0, **OFF | {"min_p": 1.0}).candidates(row, [], 0)[0].tolist() == [0, 1]


# --- the draw ---------------------------------------------------------------------------------------------------


def draws(tested: Sampler, row: Row, n: int) -> list[int]:
    """Samples at n positions."""
    return [tested.pick(row, Counter(), position, 0) for position in range(n)]


@pytest.mark.parametrize("temp", [0.7, 1.0, 1.6])
def test_samples_follow_the_softmax(temp: float) -> None:
    """p = (0.5, 0.3, 0.2) before temperature, over positions, seeds and choices alike."""
    row = np.log(make_row(0.5, 0.3, 0.2))
    wanted = np.array([0.5, 0.3, 0.2]) ** (1 / temp)
    wanted = wanted / wanted.sum() * 6000
    by_position = draws(sampler(3, temp=temp, seed=1, **OFF), row, 6000)
    by_seed = [sampler(3, temp=temp, seed=seed, **OFF).sample(row, [], 0) for seed in range(6000)]
    by_choice = [sampler(3, choice=c, temp=temp, seed=1, **OFF).sample(row, [], 0) for c in range(6000)]
    for tokens in (by_position, by_seed, by_choice):
        counts = np.bincount(tokens, minlength=3)
        assert ((counts - wanted) ** 2 / wanted).sum() < 18.4  # 2 degrees, p = 1e-4
    assert by_position != by_seed != by_choice


def test_samples_follow_the_truncated_softmax() -> None:
    row = np.random.default_rng(3).normal(0, 2, 300).astype(np.float32)
    tested = sampler(300, temp=0.9, top_k=12, top_p=0.9, min_p=0.02, seed=8)
    ids, probs = tested.candidates(row, [], 0)
    counts = Counter(draws(tested, row, 5000))
    assert counts.keys() <= set(ids.tolist())
    chi = sum((counts[i] - 5000 * p) ** 2 / (5000 * p) for i, p in zip(ids.tolist(), probs, strict=True))
    assert 3 < len(ids) <= 12
    assert chi < 37  # 11 degrees, p = 1e-4


def test_consecutive_samples_are_independent() -> None:
    tokens = draws(sampler(2, temp=1.0, seed=5, **OFF), make_row(0, 0), 8000)
    pairs = Counter(pairwise(tokens))
    assert sum((pairs[a, b] - 2000) ** 2 / 2000 for a in (0, 1) for b in (0, 1)) < 21  # 3 degrees, p = 1e-4


def test_a_draft_can_share_the_noise() -> None:
    """The token is argmax(logit / T + noise) over the survivors, computed by anyone who has the logits."""
    row = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    tested = sampler(500, choice=3, temp=0.8, top_k=50, top_p=1.0, min_p=0.0, seed=2**64 - 1)
    for position in range(50):
        ids = np.argsort(-row)[:50]
        scores = row[ids] / 0.8 + gumbel_noise(2**64 - 1, 3, position, ids)
        assert tested.pick(row, Counter(), position, 0) == ids[scores.argmax()]


def test_same_key_same_token_whatever_came_between() -> None:
    row = np.random.default_rng(1).normal(0, 1, 1000).astype(np.float32)
    tested = sampler(1000, temp=1.5, top_k=0, seed=4)
    first = [tested.sample(row, [0] * n, n) for n in range(30)]
    again = [sampler(1000, temp=1.5, top_k=0, seed=4).sample(row, [0] * n, n) for n in reversed(range(30))]
    assert first == again[::-1]
    assert len(set(first)) > 10


@pytest.mark.parametrize("temp", [1e-6, 1e-300, 5e-324])
def test_low_temperatures_end_at_greedy(temp: float) -> None:
    row = make_row(1.0, 1.5, 1.4999)
    assert draws(sampler(3, temp=temp, **OFF), row, 50) == [1] * 50


# --- greedy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temp", [0.0, -1.0])
def test_greedy_takes_the_best_and_the_lowest_of_equals(temp: float) -> None:
    assert sampler(temp=temp).sample(make_row(1, 7, 3, 7, 7), [], 0) == 1
    assert sampler(temp=temp, repeat_penalty=2.0).sample(make_row(1, 7, 3, 7, 7), [1], 0) == 3


def test_greedy_needs_no_seed() -> None:
    row = np.random.default_rng(1).normal(0, 1, 100).astype(np.float32)
    assert {sampler(100, temp=0.0, seed=seed).sample(row, [1] * seed, 0) for seed in range(20)} == {int(row.argmax())}


def test_greedy_among_the_typical() -> None:
    """typical_p may drop the best token: greedy then takes the best of what is left."""
    row = np.log(make_row(0.6, 0.1, 0.1, 0.1, 0.1))
    assert sampler(temp=0.0, typical_p=0.15).sample(row, [], 0) == next(iter(oracle_typical(row, 0.15)))


def oracle_typical(row: Row, typical_p: float) -> dict[int, float]:
    return oracle(SamplingParams(temp=1.0, typical_p=typical_p, **OFF), row, [], 0, None)


def test_a_draw_at_temperature_zero_is_refused_by_no_setting() -> None:
    row = make_row(0, 3, 2)
    for params in ({"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"typical_p": 0.99}):
        assert sampler(3, temp=0.0, **params).sample(row, [], 0) == 1


# --- single options ---------------------------------------------------------------------------------------------


def test_bias_moves_a_token_and_adds_up() -> None:
    row = make_row(5, 4, 0)
    assert sampler(3, temp=0.0, logit_bias=[LogitBias(1, 2.0)]).sample(row, [], 0) == 1
    assert sampler(3, temp=0.0, logit_bias=[LogitBias(2, 3.0), LogitBias(2, 3.0)]).sample(row, [], 0) == 2
    assert sampler(3, temp=0.0, logit_bias=[LogitBias(0, -1e9)]).sample(row, [], 0) == 1


def test_bias_of_an_unknown_token_is_refused() -> None:
    with pytest.raises(RequestError, match=r"logit_bias.*token 10 .*n_vocab = 10"):
        sampler(10, logit_bias=[LogitBias(10, 1.0)])


def test_end_tokens_wait_for_min_tokens() -> None:
    row = make_row(0, 1, 9, 2, 3, 8)  # both end tokens on top
    tested = sampler(6, temp=0.0, min_tokens=3)
    assert [tested.sample(row, [0] * n, n) for n in range(5)] == [4, 4, 4, 2, 2]


def test_ignored_end_tokens_never_come() -> None:
    row = make_row(0, 1, 99, 0, 0, 99)
    assert set(draws(sampler(6, temp=1.0, ignore_eos=True, **OFF), row, 200)) <= {0, 1, 3, 4}
    assert not sampler(6).is_eog(1)
    assert sampler(6).is_eog(2)


def test_mask_limits_the_candidates_before_the_truncations() -> None:
    row = make_row(9, 8, 0, 1, 0.5)
    mask = np.array([False, False, True, True, True])
    ids, _ = sampler(5, temp=1.0, top_k=2, top_p=1.0, min_p=0.0).candidates(row, [], 0, mask)
    assert ids.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("params", "changed"),
    [
        ({"repeat_penalty": 2.0}, [4.0, -8.0, 2.0]),
        ({"presence_penalty": 1.0}, [7.0, -5.0, 2.0]),
        ({"frequency_penalty": 1.0}, [6.0, -5.0, 2.0]),
        ({"repeat_penalty": 2.0, "presence_penalty": 1.0, "frequency_penalty": 1.0}, [1.0, -10.0, 2.0]),
        ({"frequency_penalty": 1.0, "repeat_last_n": 2}, [7.0, -5.0, 2.0]),
        ({"frequency_penalty": 1.0, "repeat_last_n": 1}, [8.0, -5.0, 2.0]),
        ({"frequency_penalty": 1.0, "repeat_last_n": 0}, [8.0, -4.0, 2.0]),
        ({"frequency_penalty": 1.0, "repeat_last_n": -1}, [6.0, -5.0, 2.0]),
    ],
)
def test_penalties_by_hand(params: dict[str, Any], changed: list[float]) -> None:
    """Token 0 (logit 8) twice, token 1 (logit -4) last; token 7 of the prompt is beyond the vocabulary."""
    row = make_row(8, -4, 2)
    _, probs = sampler(3, temp=1.0, **OFF | params).candidates(row, [7, 0, 0, 1], 0)
    expected = np.exp(np.array(changed))
    assert sorted(probs) == pytest.approx(sorted(expected / expected.sum()), rel=1e-6)


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5), max_size=20), st.integers(-1, 8))
def test_a_pushed_window_equals_counting_afresh(history: list[int], pushed: list[int], size: int) -> None:
    window = Window(history, size)
    text = list(history)
    for token in pushed:
        window.push(token)
        text.append(token)
        assert window.counts == Counter(text if size < 0 else text[max(len(text) - size, 0) :])
    assert window.counts == Window(text, size).counts


# --- what cannot be sampled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 3, 9])
@pytest.mark.parametrize("params", [{"temp": 0.0}, {}, OFF, {"repeat_penalty": 1.5}, {"ignore_eos": True}])
def test_a_broken_row_is_an_error_and_never_a_token(bad: float, where: int, params: dict[str, Any]) -> None:
    row = np.arange(10, dtype=np.float32)
    row[where] = bad
    with pytest.raises(EngineError, match=r"position 4: the logits hold (nan|inf)"):
        sampler(**params).sample(row, [1, 2, 3, 4], 4)


def test_nan_does_not_hide_behind_a_mask() -> None:
    row = make_row(1, math.nan, 2)
    with pytest.raises(EngineError, match="nan"):
        sampler(3).sample(row, [], 0, np.array([True, False, True]))


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_nothing_left_is_an_error(temp: float) -> None:
    with pytest.raises(EngineError, match="no candidate token is left"):
        sampler(3, temp=temp).sample(make_row(*[-math.inf] * 3), [], 0)
    with pytest.raises(EngineError, match="no candidate token is left"):
        sampler(3, temp=temp).sample(make_row(1, 2, 3), [], 0, np.zeros(3, bool))
    with pytest.raises(EngineError, match="no candidate token is left"):
        sampler(3, temp=temp, ignore_eos=True).sample(make_row(-math.inf, -math.inf, 3), [], 0)


def test_impossible_tokens_are_never_sampled() -> None:
    row = make_row(-math.inf, -50, -math.inf, -50.5)
    assert set(draws(sampler(4, temp=5.0, **OFF), row, 100)) == {1, 3}


# --- log-probabilities ------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_row() -> None:
    row = np.log(make_row(0.5, 0.2, 0.3))
    result = token_logprobs(row + 3, 1, 2)
    assert result.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert [token for token, _ in result.top] == [0, 2]
    assert [p for _, p in result.top] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-6)


def test_logprobs_without_a_list_and_with_more_than_there_are() -> None:
    row = make_row(1, -math.inf, 0)
    assert token_logprobs(row, 0, 0).top == ()
    assert [token for token, _ in token_logprobs(row, 0, 100).top] == [0, 2]


def test_logprobs_add_up_to_one() -> None:
    row = np.random.default_rng(2).normal(5, 8, 4000).astype(np.float32)
    result = token_logprobs(row, 17, 4000)
    assert sum(math.exp(p) for _, p in result.top) == pytest.approx(1, abs=1e-5)
    assert dict(result.top)[17] == result.logprob


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_what_the_model_forbids_is_never_sampled(temp: float) -> None:
    params = SamplingParams(temp=temp, logit_bias=[LogitBias(2, 50.0)], **OFF)
    forbidding = Sampler(params, 0, 3, frozenset(), never=[2])
    assert 2 not in {forbidding.sample(make_row(0, 0, 9), [0] * n, n) for n in range(200)}
