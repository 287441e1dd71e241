"""The speculators of one session, and the text that they search. Made for a request and gone with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.decoding.stats import SpecStats
from outrider.speculators.base import DraftParams, Worth
from outrider.speculators.chain import Chain
from outrider.speculators.token_array import TokenArray

log = logging.getLogger("outrider.coordinator")


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens to verify, and the type that proposes them."""

    tokens: list[int]
    type: str


class SessionSpeculators:
    """`committed` is the session's text so far; its last token is the pending one. `prediction`: tokens that the output
    is expected to repeat in parts. It stands before the committed text in what all look-up speculators search.

    Calls, round by round: `draft`, then (if that gave nothing and a draft model was asked) `drafted_outside`, then
    `accept`, then `commit`.
    """

    def __init__(self, chain: Chain, committed: Sequence[int], prediction: Sequence[int] = ()) -> None:
        assert chain.n_seq == 1
        assert committed
        self.chain = chain
        self._n_corpus = len(prediction)
        self._text = TokenArray([*prediction, *committed[:-1]], self._n_corpus)
        self._pending = committed[-1]
        self._n_drafted = 0
        self._asks = any(member.speculator is not None for member in chain.members)
        chain.begin(0, self._text)

    def draft(self, n_max: int, worth: Worth | None = None) -> Draft | None:
        """What follows the pending token, at most `n_max` tokens (0 or less: nobody is asked), and no more than are `worth`
        their rows. None: nobody of ours has anything to say, so a draft model may be asked."""
        self._n_drafted = 0
        if n_max <= 0 or not self._asks:
            return None
        n_past = len(self._text) - self._n_corpus
        request = DraftParams(0, self._pending, n_past, self._text, n_max, worth=worth)
        try:
            self.chain.draft([request])
        except Exception:  # a fault of ours: it must cost drafts, not the answers of everybody
            log.exception("looking a draft up has failed; this session goes on without")
            self._asks = False
            return None
        if not request.result:
            return None
        self._n_drafted = len(request.result)
        drafter = self.chain.last_type(0)
        assert drafter is not None
        return Draft(request.result, drafter)

    def drafted_outside(self, type: str, n_tokens: int, us: int = 0, n_dropped: int = 0) -> None:
        """A draft model was asked and made this many tokens (in `us` microseconds), and others that it withheld."""
        self.chain.drafted_outside(0, type, n_tokens, us, n_dropped)
        self._n_drafted = n_tokens

    def accept(self, n_accepted: int) -> None:
        """So many tokens of this round's draft were right. Without a draft there is nothing to tell."""
        if self._n_drafted:
            self.chain.accept(0, n_accepted)
        self._n_drafted = 0

    def commit(self, tokens: Sequence[int]) -> None:
        """The text goes on with these tokens; the last one is pending now."""
        if tokens:
            self._text.extend([self._pending, *tokens[:-1]])
            self._pending = tokens[-1]

    def stats(self) -> dict[str, SpecStats]:
        """What each speculator did, by type, in the order in which they are asked."""
        return {member.type: member.counters.stats() for member in self.chain.members}
