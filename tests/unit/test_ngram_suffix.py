"""ngram-suffix: the longest match, copies followed through edits, lengths by what held before."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outrider.errors import SpeculatorError
from outrider.speculators.base import DraftParams
from outrider.speculators.changes import MAX_CHANGE_LEN, MAX_CHANGES, Change, Changes
from outrider.speculators.copy_head import STRONG, CopyHead
from outrider.speculators.factory import make_chain
from outrider.speculators.ngram_suffix import NgramSuffix, SuffixState, Trust
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import NgramSuffixParams, SpeculatorParams
from tests.drafting import FIVE, Played, draft_once, play

SUFFIX = ("ngram-suffix",)


# --- changes --------------------------------------------------------------------------------------------------------


def test_the_longest_change_that_fits() -> None:
    changes = Changes()
    changes.learn([1], [10])
    changes.learn([1, 2], [11, 12, 13])
    assert changes.at([0, 1, 2, 3], 1) == Change((1, 2), (11, 12, 13))
    assert changes.at([1, 3], 0) == Change((1,), (10,))
    assert changes.at([2, 1], 0) is None
    assert changes.at([2, 1], 1) == Change((1,), (10,))


def test_the_last_change_counts_and_can_be_forgotten() -> None:
    changes = Changes()
    changes.learn([1], [10])
    changes.learn([1], [20])
    change = changes.at([1], 0)
    assert change == Change((1,), (20,))
    changes.forget(change)
    changes.forget(change)
    assert changes.at([1], 0) is None


def test_changes_are_bounded() -> None:
    changes = Changes()
    for length in (0, MAX_CHANGE_LEN + 1):
        changes.learn([1] * length, [2])
        changes.learn([1], [2] * length)
    assert changes.at([1] * 20, 0) is None
    for token in range(1000):
        changes.learn([token], [token + 1])
    known = [token for token in range(1000) if changes.at([token], 0) is not None]
    assert known == list(range(1000 - MAX_CHANGES, 1000))


# --- the head -------------------------------------------------------------------------------------------------------


class Output:
    """A text that grows while a head follows it."""

    def __init__(self, source: list[int], start: int = 0, matched: int = STRONG) -> None:
        self.text = list(source)
        self.head = CopyHead()
        self.head.jump(start, matched)

    def read(self, start: int, n: int) -> list[int]:
        return self.text[start : start + n]

    def feed(self, *tokens: int) -> list[bool | None]:
        results = []
        for token in tokens:
            self.text.append(token)
            results.append(self.head.feed(token, self.read))
        return results

    def ahead(self, n: int) -> list[int]:
        return self.head.ahead(n, self.read)


def test_a_copy_is_followed_to_its_end_and_into_itself() -> None:
    output = Output([1, 2, 3, 4])
    assert output.feed(1, 2) == [True, True]
    assert output.ahead(3) == [3, 4, 1]
    assert output.feed(3, 4, 1, 2, 3) == [True] * 5
    assert output.ahead(6) == [4, 1, 2, 3, 4, 1]
    assert output.head.matched == STRONG + 7


def test_a_replacement_is_learnt_when_two_tokens_agree_again() -> None:
    output = Output([1, 2, 3, 4, 5, 6, 7, 3, 4, 8, 9])
    assert output.feed(1, 2, 30, 31, 32) == [True, True, False, None, None]
    assert output.ahead(4) == []
    output.feed(5, 6)
    assert output.ahead(5) == [7, 30, 31, 32, 8]
    assert output.feed(7, 30, 31) == [True] * 3
    assert output.ahead(3) == [32, 8, 9]
    assert output.feed(32, 8) == [True] * 2


def test_insertions_and_deletions_are_passed_and_not_learnt() -> None:
    inserted = Output([1, 2, 3, 4, 5, 6, 3])
    inserted.feed(1, 2, 90, 91, 3, 4)
    assert inserted.ahead(3) == [5, 6, 3]
    deleted = Output([1, 2, 3, 4, 5, 6, 7, 3, 8])
    deleted.feed(1, 2, 5, 6)
    assert deleted.ahead(3) == [7, 3, 8]


def test_a_change_that_did_not_happen_is_forgotten() -> None:
    output = Output([1, 3, 4, 5, 6, 3, 7, 3, 8])
    output.feed(1, 30, 4, 5)
    assert output.ahead(4) == [6, 30, 7, 30]
    assert output.feed(6, 3) == [True, False]
    assert output.ahead(3) == [7, 3, 8]


def test_a_change_that_breaks_in_the_middle_ends_the_copy() -> None:
    output = Output([1, 3, 4, 5, 6, 3, 7, 8, 9], matched=40)
    output.feed(1, 30, 31, 4, 5, 6, 30)
    assert output.ahead(2) == [31, 7]
    assert output.feed(99) == [False]
    assert output.ahead(2) == []
    output.feed(7, 8)
    assert output.ahead(1) == [9]


def test_a_weak_copy_is_not_taken_up_again() -> None:
    output = Output([1, 2, 3, 4, 5, 6], matched=2)
    output.feed(1, 90, 3, 4)
    assert output.ahead(2) == []


def test_a_broken_copy_is_given_up_after_a_while() -> None:
    output = Output([1, 2, 3, 4, 5, 6])
    output.feed(1, *range(100, 130), 3, 4)
    assert output.ahead(2) == []


# --- trust ----------------------------------------------------------------------------------------------------------


def reach(trust: Trust, matched: int, limit: int) -> int:
    """How many tokens are more likely right than wrong."""
    return sum(chance >= 0.5 for chance in trust.survival(matched, limit))


def test_trust_follows_what_held() -> None:
    trust = Trust()
    assert reach(trust, 1, 48) < reach(trust, 9, 48) < reach(trust, 40, 48)
    assert len(trust.survival(40, 5)) == reach(trust, 40, 5) == 5
    for _ in range(20):
        trust.book(40, False)
    assert reach(trust, 40, 48) == 0
    for _ in range(400):
        trust.book(40, True)
        trust.book(2, True)
    assert reach(trust, 40, 48) > 8
    assert reach(trust, 2, 48) >= 1


def test_chances_fall_and_end_where_hardly_anything_is_right() -> None:
    chances = Trust().survival(1, 500)
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == pytest.approx(0.3)
    assert chances[-1] >= 0.01
    assert len(chances) < 500


@pytest.mark.parametrize("wanted", [0, 1, 3, 7])
def test_a_draft_is_as_long_as_is_worth_its_rows(wanted: int) -> None:
    """The chances are told to whoever knows what a row costs."""
    text, told = TokenArray([*range(1, 31), *range(1, 20)]), list[Sequence[float]]()

    def worth(chances: Sequence[float]) -> int:
        told.append(chances)
        return wanted

    request = DraftParams(0, 20, len(text), text, 9, worth=worth)
    NgramSuffix(NgramSuffixParams(n_min=1, n_max=16)).draft([request])
    assert request.result == list(range(21, 21 + wanted))
    assert len(told) == 1
    assert len(told[0]) == 9


# --- the speculator -------------------------------------------------------------------------------------------------


def words(rng: random.Random, n: int, n_vocab: int = 500) -> list[int]:
    return [rng.randrange(100, n_vocab) for _ in range(n)]


def edited(source: list[int], renames: dict[int, list[int]], rng: random.Random, p_line: float = 0.0) -> list[int]:
    """The source with tokens replaced, and here and there some dropped or put in."""
    out: list[int] = []
    for token in source:
        if rng.random() < p_line:
            out += words(rng, rng.randrange(1, 8)) if rng.random() < 0.5 else []
            continue
        out += renames.get(token, [token])
    return out


def copy_edit(seed: int, p_line: float = 0.0) -> tuple[list[int], list[int]]:
    """A prompt with a text of 900 tokens in which two names occur 20 times each, and that text with both renamed."""
    rng = random.Random(seed)
    source = words(rng, 900)
    for i in rng.sample(range(900), 40):
        source[i] = rng.choice([7, 8])
    return [1, 2, 3, *source, 4], [5, *edited(source, {7: [20, 21, 22], 8: [30]}, rng, p_line), 6]


def tokens_per_round(played: Played, prompt: list[int]) -> float:
    return (len(played.text) - len(prompt)) / played.n_rounds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("p_line", "factor"), [(0.0, 2.0), (0.02, 1.2)])
def test_beats_the_five_on_a_copy_with_edits(seed: int, p_line: float, factor: float) -> None:
    prompt, target = copy_edit(seed, p_line)
    best = 0.0
    for type_ in FIVE:
        best = max(best, tokens_per_round(play([type_], prompt, target, SpeculatorParams()), prompt))
    played = play(SUFFIX, prompt, target, SpeculatorParams())
    assert tokens_per_round(played, prompt) > factor * best
    n_drafted, n_accepted = sum(map(len, played.drafts)), sum(played.accepted)
    assert n_drafted - n_accepted < 0.4 * len(target)


def test_wastes_little_on_a_text_that_does_not_repeat() -> None:
    rng = random.Random(1)
    played = play(SUFFIX, words(rng, 600, 130), words(rng, 600, 130), SpeculatorParams())
    assert sum(map(len, played.drafts)) < 60


@pytest.mark.parametrize("text", [[7] * 400, [7, 8] * 200, [7, 8, 9] * 130])
def test_short_periods_are_drafted_whole(text: list[int]) -> None:
    played = play(SUFFIX, text[:40], text[40:], SpeculatorParams())
    assert tokens_per_round(played, text[:40]) > 20


def test_an_exact_prediction_is_drafted_from_the_start() -> None:
    rng = random.Random(4)
    prediction, prompt = words(rng, 200), [1, 2, 3]
    chain = make_chain(SUFFIX, SpeculatorParams())
    text = TokenArray([*prediction, *prompt], len(prediction))
    chain.begin(0, text)
    draft = draft_once(chain, text, 4)
    assert len(draft) >= 4
    assert draft == prediction[: len(draft)]


def test_nothing_is_left_of_an_earlier_text() -> None:
    chain, text = make_chain(SUFFIX, SpeculatorParams()), list(range(100, 200))
    first = TokenArray([*text, *text[:50]])
    chain.begin(0, first)
    assert draft_once(chain, first, text[50])[:4] == text[51:55]
    other = TokenArray([*range(300, 400), text[49]])
    chain.begin(0, other)
    assert draft_once(chain, other, text[50]) == []
    assert draft_once(chain, TokenArray([1, 2, text[49]]), text[50]) == []  # nor without begin


def test_rounds_of_others_are_followed_and_long_ones_skipped() -> None:
    chain, source = make_chain(SUFFIX, SpeculatorParams()), list(range(100, 900))
    text = TokenArray([*source, 1, *source[:40]])
    chain.begin(0, text)
    assert draft_once(chain, text, source[40])[:3] == source[41:44]
    text.extend(source[40:100])
    assert draft_once(chain, text, source[100])[:3] == source[101:104]
    text.extend(source[100:700])
    assert draft_once(chain, text, source[700])[:3] == source[701:704]


@pytest.mark.parametrize(("n_min", "expected"), [(1, [4]), (2, [4]), (3, [])])
def test_n_min_is_what_must_match(n_min: int, expected: list[int]) -> None:
    """Two tokens match here."""
    chain = make_chain(SUFFIX, SpeculatorParams(ngram_suffix=NgramSuffixParams(n_min=n_min)))
    speculator = chain.members[0].speculator
    assert isinstance(speculator, NgramSuffix)
    text = TokenArray([9, 1, 2, 3, 4, 5, 6, 9, 8, 2])
    chain.begin(0, text)
    trusting = Trust(right=[8.0] * 9, seen=[8.0] * 9)
    state = speculator.get_state(0)
    assert isinstance(state, SuffixState)
    state.trust = trusting
    speculator.set_state(0, state)
    assert draft_once(chain, text, 3)[:1] == expected


def test_n_min_below_one_is_refused() -> None:
    with pytest.raises(SpeculatorError, match="n_min = 0; it must be at least 1"):
        make_chain(SUFFIX, SpeculatorParams(ngram_suffix=NgramSuffixParams(n_min=0)))


def test_a_change_is_gone_on_with_although_another_fits_now() -> None:
    """(x) -> (a, b) was learnt, and (x, a, b) -> (c): which one fits depends on how much of the text can be seen."""
    head = CopyHead()
    head.changes.learn([1], [2, 3])
    head.changes.learn([1, 2, 3], [4])
    text = [9, 1]
    head.jump(1, 20)
    read = lambda at, n: text[at : at + n]  # noqa: E731
    assert head.feed(2, read) is True
    text += [2, 3]
    assert head.ahead(4, read)[:1] == [3]
    assert head.feed(3, read) is True
    assert head.src == 2
