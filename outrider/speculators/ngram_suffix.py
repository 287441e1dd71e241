"""ngram-suffix, ours: goes on from where the longest run of the last tokens stood before, and follows a copy through
edits.

Unlike llama.cpp's five it has no fixed length: neither of what must match (the longest match is found), nor of the draft
(it is as long as matches of that length turned out to hold in this text), and nothing is silenced for good. A rename or
an inserted line costs one round; from then on the rename is expected. Nothing depends on where the prompt ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from outrider.errors import SpeculatorError
from outrider.speculators.base import DraftParams, LookupSpeculator
from outrider.speculators.copy_head import STRONG, CopyHead, Read
from outrider.speculators.search import longest_suffix
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import NgramSuffixParams

#: A draft ends where it is less likely than this to be right that far, unless it is known what its tokens are worth.
_MIN_PROBABILITY = 0.5

#: No draft goes on where it is less likely than this to be right.
_HARDLY = 0.01

#: Match lengths that are told apart, by their upper ends.
_CLASSES = (1, 2, 3, 4, 6, 9, 15, 31)

#: What is believed of them before anything was seen: (tokens that were right, tokens).
_PRIOR = ((0.3, 1.0), (0.5, 1.0), (1.0, 2.0), (1.5, 2.5), (2.0, 3.0), (2.5, 3.0), (3.0, 3.5), (4.0, 4.3), (5.0, 5.2))

#: After so many tokens that this speculator was not asked about, it starts afresh.
_MAX_MISSED = 256


@dataclass(slots=True)
class Trust:
    """How often the next token was right, by the length of the match before it."""

    right: list[float] = field(default_factory=lambda: [right for right, _ in _PRIOR])
    seen: list[float] = field(default_factory=lambda: [seen for _, seen in _PRIOR])

    def book(self, matched: int, is_right: bool) -> None:
        kind = bisect_left(_CLASSES, matched)
        self.seen[kind] += 1
        self.right[kind] += is_right

    def survival(self, matched: int, limit: int) -> list[float]:
        """Chances that tokens after a match of this length, and all before them, are right; of at most `limit`."""
        chances, chance = list[float](), 1.0
        for length in range(limit):
            kind = bisect_left(_CLASSES, matched + length)
            chance *= self.right[kind] / self.seen[kind]
            if chance < _HARDLY:
                break
            chances.append(chance)
        return chances


def _likely(survival: Sequence[float]) -> int:
    """How many tokens are more likely right than wrong."""
    return sum(chance >= _MIN_PROBABILITY for chance in survival)


@dataclass(slots=True)
class SuffixState:
    """Of one sequence. n_seen: tokens of the text of this stamp that the head was told, the pending one included."""

    stamp: int = 0
    n_seen: int = 0
    head: CopyHead = field(default_factory=CopyHead)
    trust: Trust = field(default_factory=Trust)


class NgramSuffix(LookupSpeculator):
    type = "ngram-suffix"

    def __init__(self, params: NgramSuffixParams, n_seq: int = 1) -> None:
        if params.n_min < 1:
            raise SpeculatorError(f"ngram-suffix: n_min = {params.n_min}; it must be at least 1")
        self.n_min, self.n_max = params.n_min, params.n_max
        self._states = [SuffixState() for _ in range(n_seq)]

    def _check(self, seq: int) -> None:
        if not 0 <= seq < len(self._states):
            raise SpeculatorError(f"ngram-suffix: no sequence {seq}; there are {len(self._states)}")

    def begin(self, seq: int, prompt: TokenArray) -> None:
        """Nothing of an earlier text is kept. A corpus is expected from its beginning."""
        self._check(seq)
        state = self._states[seq] = SuffixState(prompt.stamp, len(prompt) + 1)
        if prompt.n_corpus > 0:
            state.head.jump(0, STRONG)

    def propose(self, request: DraftParams) -> list[int]:
        self._check(request.seq)
        text, last = request.prompt, request.id_last
        if self._states[request.seq].stamp != text.stamp:
            self.begin(request.seq, text)
        state = self._states[request.seq]

        def read(start: int, n: int) -> list[int]:
            tokens: list[int] = text.tokens[start : start + n].tolist()
            return tokens if len(tokens) == n or start > len(text) else [*tokens, last]

        self._catch_up(state, len(text) + 1, read)
        head = state.head
        if head.src is None:
            match = longest_suffix(text.tokens, last, self.n_min)
            if match is not None:
                head.jump(*match)
        limit = min(self.n_max, request.n_max) if request.n_max > 0 else self.n_max
        reach = (request.worth or _likely)(state.trust.survival(head.matched, limit))
        return head.ahead(reach, read)

    def _catch_up(self, state: SuffixState, length: int, read: Read) -> None:
        """Tell the head the tokens that are new since the last draft, whoever drafted them."""
        if length - state.n_seen > _MAX_MISSED:
            state.head = CopyHead()
        else:
            for token in read(state.n_seen, length - state.n_seen):
                matched = state.head.matched
                is_right = state.head.feed(token, read)
                if is_right is not None:
                    state.trust.book(matched, is_right)
        state.n_seen = length

    def get_state(self, seq: int) -> object:
        self._check(seq)
        return deepcopy(self._states[seq])

    def set_state(self, seq: int, state: object) -> None:
        assert isinstance(state, SuffixState)
        self._check(seq)
        self._states[seq] = deepcopy(state)
