"""Speculative decoding equals plain decoding, token by token, for every sampler; and the counts of a verification."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from outrider.decoding.sampling import Sampler, TokenLogprobs, token_logprobs
from outrider.decoding.verify import Constraint, Verified, row_hash, verify
from outrider.errors import EngineError
from outrider.types import LogitBias, SamplingParams

N_VOCAB = 12
EOG = 2
Row = NDArray[np.float32]
Model = Callable[[Sequence[int]], Row]
GREEDY = SamplingParams(temp=0.0)


# --- models whose next logits are a function of the text ---------------------------------------------------------


def chain_model(successors: dict[int, int]) -> Model:
    """`successors[t]` follows t for certain (as far as greedy goes); the others by ascending id."""

    def row(history: Sequence[int]) -> Row:
        logits = -np.arange(N_VOCAB, dtype=np.float32) / 8
        logits[successors.get(history[-1], EOG)] = 3.0
        return logits

    return row


def random_model(seed: int) -> Model:
    """Random logits that depend on the last two tokens and the position."""

    def row(history: Sequence[int]) -> Row:
        rng = np.random.default_rng([seed, len(history) % 5, *history[-2:]])
        return rng.normal(0, 1.5, N_VOCAB).astype(np.float32)

    return row


def rows_of(model: Model, history: Sequence[int], draft: Sequence[int]) -> Row:
    """What a target gives for [pending] + draft."""
    return np.stack([model([*history, *draft[:i]]) for i in range(len(draft) + 1)])


@dataclass(frozen=True)
class Text:
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    ended: bool


def plain(model: Model, sampler: Sampler, prompt: Sequence[int], n: int, constraint: Constraint | None = None) -> Text:
    """The oracle: one row at a time, by `Sampler.sample` alone."""
    tokens: list[int] = []
    logprobs = []
    while len(tokens) < n:
        history = [*prompt, *tokens]
        row = model(history)
        token = sampler.sample(row, history, len(tokens), constraint.mask() if constraint else None)
        tokens.append(token)
        logprobs.append(token_logprobs(row, token, sampler.params.n_probs))
        constraint = constraint.after(token) if constraint and not sampler.is_eog(token) else constraint
        if sampler.is_eog(token) or (constraint and constraint.ended):
            return Text(tuple(tokens), tuple(logprobs), True)
    return Text(tuple(tokens), tuple(logprobs), False)


Drafter = Callable[[Sequence[int]], Sequence[int]]


def speculative(
    model: Model,
    sampler: Sampler,
    prompt: Sequence[int],
    n: int,
    drafter: Drafter,
    constraint: Constraint | None = None,
) -> tuple[Text, list[Verified]]:
    """The same text by rounds of verification."""
    tokens: list[int] = []
    rounds: list[Verified] = []
    while len(tokens) < n and not (rounds and rounds[-1].end_of_text):
        history = [*prompt, *tokens]
        draft = list(drafter(history))
        verified = verify(
            sampler,
            rows_of(model, history, draft),
            draft,
            history,
            len(tokens),
            max_tokens=n - len(tokens),
            constraint=constraint,
        )
        check_counts(verified, draft)
        constraint = verified.constraint
        rounds.append(verified)
        tokens.extend(verified.tokens)
    logprobs = tuple(entry for verified in rounds for entry in verified.logprobs)
    return Text(tuple(tokens), logprobs, rounds[-1].end_of_text), rounds


def check_counts(verified: Verified, draft: Sequence[int]) -> None:
    """The rule of `Verified`."""
    tokens, accepted = verified.tokens, verified.accepted
    assert list(tokens[:accepted]) == list(draft[:accepted])
    assert len(tokens) == accepted + 1 or (len(tokens) == accepted and verified.end_of_text)


def perfect(model: Model, sampler: Sampler, prompt_len: int, n_max: int) -> Drafter:
    """A draft that is the target itself."""

    def draft(history: Sequence[int]) -> list[int]:
        text = list(history)
        for _ in range(n_max):
            text.append(sampler.sample(model(text), text, len(text) - prompt_len))
        return text[len(history) :]

    return draft


# --- the property -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parity:
    """A toy grammar: the next token has the other parity than the last, and the text ends after `left` tokens."""

    odd: bool
    left: int

    @property
    def ended(self) -> bool:
        return self.left == 0

    def mask(self) -> NDArray[np.bool_]:
        assert not self.ended
        return np.arange(N_VOCAB) % 2 == self.odd

    def after(self, token: int) -> Parity:
        assert self.mask()[token]
        return Parity(not self.odd, self.left - 1)


SAMPLERS = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**64 - 1),
    temp=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([1.0, 0.6, 0.95]),
    min_p=st.sampled_from([0.0, 0.1]),
    typical_p=st.sampled_from([1.0, 0.5]),
    repeat_penalty=st.sampled_from([1.0, 1.5, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.6]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 3, 64]),
    logit_bias=st.lists(st.builds(LogitBias, st.integers(0, N_VOCAB - 1), st.floats(-3, 3)), max_size=3),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 12),
    n_probs=st.sampled_from([0, 2]),
)


CASES = st.tuples(SAMPLERS, st.integers(0, 5), st.integers(1, 25), st.integers(0, 3), st.booleans())


def check_speculative_equals_plain(case: tuple[SamplingParams, int, int, int, bool], data: st.DataObject) -> None:
    params, model_seed, n, choice, with_grammar = case
    prompt = data.draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=6))
    model, sampler = random_model(model_seed), Sampler(params, choice, N_VOCAB, [EOG])
    constraint = Parity(odd=True, left=data.draw(st.integers(1, 30))) if with_grammar else None
    expected = plain(model, sampler, prompt, n, constraint)

    def drafter(history: Sequence[int]) -> list[int]:
        right = expected.tokens[len(history) - len(prompt) :]
        n_right = data.draw(st.integers(0, 6))
        return [*right[:n_right], *data.draw(st.lists(st.integers(0, N_VOCAB + 3), max_size=3))]

    text, rounds = speculative(model, sampler, prompt, n, drafter, constraint)
    assert text.tokens == expected.tokens
    assert text.ended == expected.ended
    assert text.logprobs == (expected.logprobs if params.n_probs else ())
    assert len(rounds) <= len(text.tokens)


@settings(max_examples=300)
@given(CASES, st.data())
def test_speculative_equals_plain(case: tuple[SamplingParams, int, int, int, bool], data: st.DataObject) -> None:
    """For every sampler, grammar, budget, and for drafts that are right, wrong, half right, short or absent."""
    check_speculative_equals_plain(case, data)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=10_000)
@given(CASES, st.data())
def test_speculative_equals_plain_at_length(
    case: tuple[SamplingParams, int, int, int, bool], data: st.DataObject
) -> None:
    check_speculative_equals_plain(case, data)


OPTIONS: list[tuple[float, dict[str, Any]]] = [
    (0.0, {"temp": 2.0}),
    (2.0, {"temp": 0.5}),
    (2.0, {"seed": 99}),
    (2.0, {"top_k": 2}),
    (2.0, {"top_p": 0.5}),
    (2.0, {"min_p": 0.5}),
    (2.0, {"typical_p": 0.5}),
    (0.0, {"repeat_penalty": 3.0}),
    (0.0, {"presence_penalty": 3.0}),
    (0.0, {"frequency_penalty": 1.0}),
    (0.0, {"frequency_penalty": 1.0, "repeat_last_n": 3}),
    (0.0, {"logit_bias": [LogitBias(7, 2.5)]}),
]


@pytest.mark.parametrize(("temp", "options"), OPTIONS, ids=str)
@pytest.mark.parametrize("n_max", [1, 2, 4])
def test_every_option_alone_is_honoured_under_speculation(temp: float, options: dict[str, Any], n_max: int) -> None:
    base = SamplingParams(temp=temp, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    model = random_model(1)
    texts = []
    for params in (base, replace(base, **options)):
        sampler = Sampler(params, 0, N_VOCAB, [EOG])
        expected = plain(model, sampler, [1, 3], 60)
        text, _ = speculative(model, sampler, [1, 3], 60, perfect(model, sampler, 2, n_max))
        assert text == Text(expected.tokens, (), False)
        texts.append(text.tokens)
    assert texts[0] != texts[1]


def test_one_seed_one_text_whatever_the_draft_length() -> None:
    model = random_model(3)
    params = SamplingParams(temp=0.9, seed=42, ignore_eos=True)
    sampler = Sampler(params, 0, N_VOCAB, [EOG])
    texts = {
        speculative(model, sampler, [1], 80, perfect(model, sampler, 1, n_max))[0].tokens
        for n_max in (0, 1, 2, 8)
        for _ in range(2)
    }
    assert len(texts) == 1
    other = Sampler(replace(params, seed=43), 0, N_VOCAB, [EOG])
    assert plain(model, other, [1], 80).tokens not in texts


# --- what is kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_draft", [1, 2, 4])
def test_the_first_draft_token_is_checked(n_draft: int) -> None:
    """The target says 5 → 9, the draft repeats 5: nothing is accepted, 9 is committed."""
    model, history = chain_model({5: 9}), [5, 5, 5]
    draft = [5] * n_draft
    verified = verify(Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows_of(model, history, draft), draft, history, 0)
    assert (verified.tokens, verified.accepted) == ((9,), 0)


def test_the_draft_has_no_say_in_the_target_s_choice() -> None:
    """A has 0.35, B has 0.45: greedy takes B, however sure the draft is of A."""
    row = np.log(np.array([0.2, 0.35, 0.45], np.float32))
    verified = verify(Sampler(GREEDY, 0, 3, []), np.stack([row, row]), [1], [0], 0)
    assert (verified.tokens, verified.accepted) == ((2,), 0)


def test_full_acceptance_brings_a_bonus() -> None:
    model = chain_model({3: 4, 4: 5, 5: 6, 6: 7, 7: 8})
    sampler, draft = Sampler(GREEDY, 0, N_VOCAB, [EOG]), [4, 5, 6, 7]
    verified = verify(sampler, rows_of(model, [3], draft), draft, [3], 0)
    assert (verified.tokens, verified.accepted, verified.end_of_text) == ((4, 5, 6, 7, 8), 4, False)


def test_a_mismatch_brings_the_replacement() -> None:
    model = chain_model({3: 4, 4: 5, 5: 6, 6: 7})
    draft = [4, 5, 9, 7]
    verified = verify(Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows_of(model, [3], draft), draft, [3], 0)
    assert (verified.tokens, verified.accepted) == ((4, 5, 6), 2)


@pytest.mark.parametrize("n_max", [1, 3, 7])
def test_a_perfect_draft_saves_rounds(n_max: int) -> None:
    sampler = Sampler(SamplingParams(temp=1.0, ignore_eos=True), 0, N_VOCAB, [EOG])
    model = random_model(5)
    _, rounds = speculative(model, sampler, [1], 200, perfect(model, sampler, 1, n_max))
    assert len(rounds) == math.ceil(200 / (n_max + 1))
    assert all(verified.accepted == n_max for verified in rounds[:-1])


def test_an_empty_draft_is_a_plain_step() -> None:
    verified = verify(Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows_of(chain_model({1: 8}), [1], []), [], [1], 0)
    assert verified == Verified((8,), 0, False)


def test_draft_tokens_that_the_target_lacks_are_mismatches() -> None:
    rows = rows_of(chain_model({1: 8}), [1], [N_VOCAB + 5])
    assert verify(Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows, [N_VOCAB + 5], [1], 0).tokens == (8,)


def test_rows_beyond_the_draft_are_not_looked_at() -> None:
    rows = np.stack([chain_model({1: 8})([1]), np.full(N_VOCAB, np.nan, np.float32)])
    assert verify(Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows, [], [1], 0).tokens == (8,)
    assert verify(Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows, [5], [1], 0).tokens == (8,)


def test_a_broken_row_inside_the_accepted_part_fails_the_verification() -> None:
    rows = np.stack([chain_model({1: 8})([1]), np.full(N_VOCAB, np.nan, np.float32)])
    with pytest.raises(EngineError, match="position 2"):
        verify(Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows, [8], [1], 0)


def test_committed_tokens_follow_the_target_s_distribution() -> None:
    """p = (0.5, 0.3, 0.2), a draft that is drawn from q = (0.2, 0.2, 0.6): first token of 10,000 texts at T = 0.7."""
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    rng = np.random.default_rng(0)
    drafts = rng.choice(3, 10_000, p=[0.2, 0.2, 0.6]).tolist()
    counts: Counter[int] = Counter()
    for seed, drafted in enumerate(drafts):
        sampler = Sampler(SamplingParams(seed=seed, temp=0.7, top_k=0, top_p=1.0, min_p=0.0), 0, 3, [])
        counts[verify(sampler, np.stack([row, row]), [drafted], [0], 0).tokens[0]] += 1
    wanted = np.array([0.5, 0.3, 0.2]) ** (1 / 0.7)
    wanted *= 10_000 / wanted.sum()
    assert sum((counts[i] - wanted[i]) ** 2 / wanted[i] for i in range(3)) < 18.4  # 2 degrees, p = 1e-4


# --- end of text --------------------------------------------------------------------------------------------------

ENDING = {5: 6, 6: 7, 7: EOG, EOG: 8, 8: 9}


@pytest.mark.parametrize(
    ("draft", "tokens", "accepted"),
    [
        ([6, 7, EOG, 8, 9], (6, 7, EOG), 3),  # in the middle: it counts, and nothing comes after it
        ([6, 7, EOG], (6, 7, EOG), 3),  # at the end: the same; no bonus token
        ([6, 7, 9, 8], (6, 7, EOG), 2),  # as replacement
        ([6, 7], (6, 7, EOG), 2),  # as bonus
        ([], (6,), 0),
    ],
)
def test_an_end_token_ends_the_round(draft: list[int], tokens: tuple[int, ...], accepted: int) -> None:
    sampler = Sampler(GREEDY, 0, N_VOCAB, [EOG])
    verified = verify(sampler, rows_of(chain_model(ENDING), [5], draft), draft, [5], 0)
    assert (verified.tokens, verified.accepted) == (tokens, accepted)
    assert verified.end_of_text == (tokens[-1] == EOG)


def test_an_ignored_end_token_does_not_end_the_text() -> None:
    sampler = Sampler(replace(GREEDY, ignore_eos=True), 0, N_VOCAB, [EOG])
    model = chain_model(ENDING)
    text, _ = speculative(model, sampler, [5], 30, perfect(model, sampler, 1, 8))
    assert not text.ended
    assert len(text.tokens) == 30
    assert EOG not in text.tokens


@pytest.mark.parametrize("n_max", [0, 1, 2, 4, 8])
def test_min_tokens_counts_tokens_not_rounds(n_max: int) -> None:
    """The target wants to end after two tokens; it may after ten."""
    sampler = Sampler(replace(GREEDY, min_tokens=10), 0, N_VOCAB, [EOG])
    model = chain_model(ENDING)
    text, _ = speculative(model, sampler, [5], 40, perfect(model, sampler, 1, n_max))
    assert text.tokens.index(EOG) >= 10
    assert text.tokens == plain(model, sampler, [5], 40).tokens


@pytest.mark.parametrize("n_max", [1, 2, 4])
def test_penalties_count_every_accepted_token(n_max: int) -> None:
    """5 → 6 → 7 → 5 …: the loop breaks at the step at which the penalty of a third visit is too much."""
    sampler = Sampler(replace(GREEDY, frequency_penalty=1.2, ignore_eos=True), 0, N_VOCAB, [EOG])
    model = chain_model({5: 6, 6: 7, 7: 5})
    text, rounds = speculative(model, sampler, [5], 12, perfect(model, sampler, 1, n_max))
    # 3 - 1.2 × count falls below the 0 of token 0 at the fourth visit; 5 has its first visit in the prompt
    assert text.tokens[:8] == (6, 7, 5, 6, 7, 5, 6, 7)
    assert text.tokens[8] == 0
    assert max(verified.accepted for verified in rounds) == n_max


def test_each_row_is_sampled_on_the_whole_text_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, dict[int, int], int]] = []
    original = Sampler.pick

    def spy(self: Sampler, row: Row, counts: Counter[int], position: int, n_generated: int, mask: Any = None) -> int:
        seen.append((position, dict(counts), n_generated))
        return original(self, row, counts, position, n_generated, mask)

    monkeypatch.setattr(Sampler, "pick", spy)
    sampler = Sampler(replace(GREEDY, presence_penalty=0.01), 0, N_VOCAB, [EOG])
    draft = [4, 5, 6]
    verify(sampler, rows_of(chain_model({3: 4, 4: 5, 5: 6}), [7, 3], draft), draft, [7, 3], 1)
    assert seen == [
        (2, {7: 1, 3: 1}, 1),
        (3, {7: 1, 3: 1, 4: 1}, 2),
        (4, {7: 1, 3: 1, 4: 1, 5: 1}, 3),
        (5, {7: 1, 3: 1, 4: 1, 5: 1, 6: 1}, 4),
    ]


# --- budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 13))
def test_no_token_past_the_budget(n: int) -> None:
    sampler = Sampler(SamplingParams(temp=1.0, ignore_eos=True), 0, N_VOCAB, [EOG])
    model = random_model(2)
    text, rounds = speculative(model, sampler, [1], n, perfect(model, sampler, 1, 4))
    assert len(text.tokens) == n
    assert text.tokens == plain(model, sampler, [1], n).tokens
    assert sum(len(verified.tokens) for verified in rounds) == n


def test_a_draft_past_the_budget_is_not_counted() -> None:
    model = chain_model({3: 4, 4: 5, 5: 6, 6: 7, 7: 8})
    sampler, draft = Sampler(GREEDY, 0, N_VOCAB, [EOG]), [4, 5, 6, 7]
    verified = verify(sampler, rows_of(model, [3], draft), draft, [3], 0, max_tokens=2)
    assert (verified.tokens, verified.accepted) == ((4, 5), 1)
    assert verify(sampler, rows_of(model, [3], draft), draft, [3], 0, max_tokens=1).tokens == (4,)


# --- grammar ------------------------------------------------------------------------------------------------------


def test_the_end_of_a_grammar_ends_the_text() -> None:
    """Two tokens complete it; the draft goes on and so would the target."""
    model = chain_model({0: 1, 1: 4, 4: 5, 5: 6})
    draft = [1, 4, 5, 6]
    verified = verify(
        Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows_of(model, [0], draft), draft, [0], 0, constraint=Parity(True, 2)
    )
    assert (verified.tokens, verified.accepted, verified.end_of_text) == ((1, 4), 2, True)
    assert verified.constraint == Parity(True, 0)


def test_a_rejected_token_leaves_no_trace_in_the_grammar() -> None:
    model = chain_model({0: 1, 1: 4})
    draft = [1, 3, 3]
    verified = verify(
        Sampler(GREEDY, 0, N_VOCAB, [EOG]), rows_of(model, [0], draft), draft, [0], 0, constraint=Parity(True, 9)
    )
    assert verified.tokens == (1, 4)
    assert verified.constraint == Parity(True, 7)


# --- log-probabilities, hashes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_one_logprob_entry_per_token_of_the_row_it_came_from(temp: float) -> None:
    params = SamplingParams(temp=temp, n_probs=3, ignore_eos=True, repeat_penalty=1.3)
    sampler, model = Sampler(params, 0, N_VOCAB, [EOG]), random_model(4)
    text, rounds = speculative(model, sampler, [1], 30, perfect(model, sampler, 1, 4))
    expected = plain(model, sampler, [1], 30)
    assert text.logprobs == expected.logprobs
    assert max(verified.accepted for verified in rounds) == 4
    for i, entry in enumerate(text.logprobs):
        row = model([1, *text.tokens[:i]]).astype(np.float64)
        logs = row - np.log(np.exp(row).sum())
        assert entry.logprob == pytest.approx(logs[text.tokens[i]], abs=1e-5)
        assert [p for _, p in entry.top] == pytest.approx(sorted(logs)[:-4:-1], abs=1e-5)


def test_a_row_hash_sees_every_bit() -> None:
    row = np.arange(1000, dtype=np.float32)
    other = row.copy()
    other[-1] = np.nextafter(other[-1], np.float32(0))
    assert 0 <= row_hash(row) < 2**64
    assert row_hash(row) == row_hash(np.stack([row, other])[0])
    assert row_hash(row) != row_hash(other)
    assert row_hash(np.array([1.5, -2.0], np.float32)) == 8540456881415867208
