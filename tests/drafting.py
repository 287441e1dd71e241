"""What the tests of the look-up speculators share: playing a token stream through a chain or a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.speculators.base import DraftParams
from outrider.speculators.chain import Chain
from outrider.speculators.factory import make_chain
from outrider.speculators.session import SessionSpeculators
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import (
    NgramCacheParams,
    NgramModParams,
    NgramParams,
    NgramSuffixParams,
    SpeculatorParams,
)

FIVE = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
ALL = (*FIVE, "ngram-suffix")

#: Small sizes, so that short streams draft.
SMALL = SpeculatorParams(
    ngram_simple=NgramParams(size_n=2, size_m=6),
    ngram_map_k=NgramParams(size_n=2, size_m=4),
    ngram_map_k4v=NgramParams(size_n=2, size_m=3),
    ngram_mod=NgramModParams(n_match=2, n_min=0, n_max=8),
    ngram_cache=NgramCacheParams(),
    ngram_suffix=NgramSuffixParams(n_min=2, n_max=12),
)


def draft_once(
    chain: Chain, history: TokenArray | Sequence[int], id_last: int, n_max: int = -1, seq: int = 0
) -> list[int]:
    text = history if isinstance(history, TokenArray) else TokenArray(history)
    request = DraftParams(seq, id_last, len(text), text, n_max)
    chain.draft([request])
    return request.result


def agreed(draft: Sequence[int], coming: Sequence[int]) -> int:
    """How many tokens of `draft` are what comes."""
    return next((i for i, token in enumerate(draft) if i >= len(coming) or token != coming[i]), len(draft))


@dataclass
class Played:
    """Of one stream: the drafts, round by round, and how much of each was right."""

    drafts: list[list[int]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    text: list[int] = field(default_factory=list)

    @property
    def n_rounds(self) -> int:
        return len(self.drafts)


def play(
    types: Sequence[str],
    prompt: Sequence[int],
    target: Sequence[int],
    params: SpeculatorParams = SMALL,
    *,
    budget: int = 10**6,
    after: Callable[[Chain, TokenArray, int], None] | None = None,
) -> Played:
    """One sequence whose target goes on with `target`. `after` is called after each round with the chain, the text and
    the pending token."""
    chain = make_chain(types, params)
    text, pending, coming = TokenArray(prompt[:-1]), prompt[-1], list(target)
    chain.begin(0, text)
    played = Played(text=list(prompt))
    while coming:
        draft = draft_once(chain, text, pending, min(budget, len(coming)))
        accepted = agreed(draft, coming)
        if draft:
            chain.accept(0, accepted)
        new = coming[: accepted + 1]
        del coming[: accepted + 1]
        text.extend([pending, *new[:-1]])
        pending = new[-1]
        played.drafts.append(draft)
        played.accepted.append(min(accepted, len(new)))
        played.text += new
        if after is not None:
            after(chain, text, pending)
    return played


def play_session(session: SessionSpeculators, target: Sequence[int], n_predict: int | None = None) -> Played:
    """The rounds of a session, as a coordinator has them: no draft is longer than what may still be committed."""
    left = list(target[:n_predict])
    played = Played()
    while left:
        found = session.draft(len(left) - 1)
        draft = [] if found is None else found.tokens
        accepted = agreed(draft, left)
        new = left[: accepted + 1]
        del left[: accepted + 1]
        session.accept(accepted)
        session.commit(new)
        played.drafts.append(draft)
        played.accepted.append(accepted)
        played.text += new
    return played
