"""What a speculator is: something that proposes how a sequence goes on. The life cycle is llama.cpp's.

    begin(seq, prompt)   a new generation starts from this text
    process(seq, …)      committed tokens went through the target (for speculators with a cache of their own)
    draft(requests)      propose what follows the pending token of each sequence
    accept(seq, n, …)    n tokens of the last draft were right

A speculator never sees what is not committed, and what it proposes is only ever compared: a bad one costs time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.decoding.stats import SpecStats
from outrider.errors import SpeculatorError
from outrider.speculators.token_array import TokenArray

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: llama.cpp counts accepted tokens in 16 bits.
MAX_ACCEPTED = 2**16 - 1


#: Chances of the tokens of a draft, each that it and all before it are right -> how many of them are worth verifying.
Worth = Callable[[Sequence[float]], int]


@dataclass(slots=True)
class DraftParams:
    """One sequence's wish for a draft.

    seq: which sequence. id_last: its pending token, at position n_past. prompt: the committed text before it (and a
    corpus before that, which n_past does not count).
    n_max: the most tokens wanted; 0 and less mean no limit. result: the draft, empty when asked. worth: how many tokens to
    offer, for a speculator that knows their chances; None: it decides by itself.
    """

    seq: int
    id_last: int
    n_past: int
    prompt: TokenArray
    n_max: int = -1
    result: list[int] = field(default_factory=list)
    worth: Worth | None = None


class Speculator(ABC):
    """`type` is the name that users write; no draft is longer than `n_max` (0: none is made)."""

    type: str
    n_max: int

    def begin(self, seq: int, prompt: TokenArray) -> None:  # noqa: B027
        """A new generation of `seq` starts from `prompt`."""

    def process(  # noqa: B027
        self, seq: int, first_pos: int, tokens: Sequence[int], rows: NDArray[np.float32] | None = None
    ) -> None:
        """`tokens` were committed at positions first_pos …; `rows` are their hidden states (float32 [n, n_embd]).

        Idempotent: tokens that are known already change nothing."""

    @abstractmethod
    def draft(self, requests: Sequence[DraftParams]) -> None:
        """Fill `result` of each request; leave it empty where nothing is to be said. Requests are of distinct
        sequences. Raises SpeculatorError where the text contradicts what `begin` was told."""

    def accept(self, seq: int, n_accepted: int, by_other: bool) -> None:  # noqa: B027
        """The first `n_accepted` tokens of the last draft of `seq` were right; `by_other`: it was another's draft."""

    def get_state(self, seq: int) -> object:
        """What `set_state` of a speculator made alike needs to go on from here; None where nothing is kept."""
        return None

    def set_state(self, seq: int, state: object) -> None:  # noqa: B027
        """Go back to what `get_state` returned. The same state may be set again later."""


class LookupSpeculator(Speculator):
    """A speculator that makes the drafts of its sequences one by one."""

    def draft(self, requests: Sequence[DraftParams]) -> None:
        for request in requests:
            request.result.extend(self.propose(request))

    @abstractmethod
    def propose(self, request: DraftParams) -> list[int]:
        """The draft of one sequence, before any limit of the request."""


@dataclass(slots=True)
class Counters:
    """What one speculator did so far; names are llama.cpp's. Times in µs."""

    n_call_begin: int = 0
    n_call_draft: int = 0
    n_call_accept: int = 0
    n_made_tokens: int = 0  # before the request's limit cut them
    n_gen_drafts: int = 0
    n_gen_tokens: int = 0
    n_acc_drafts: int = 0
    n_acc_tokens: int = 0
    n_acc_tokens_per_pos: list[int] = field(default_factory=list)
    t_begin_us: int = 0
    t_draft_us: int = 0
    t_accept_us: int = 0

    def generated(self, n_made: int, n_offered: int) -> None:
        self.n_gen_drafts += 1
        self.n_made_tokens += n_made
        self.n_gen_tokens += n_offered

    def accepted(self, n_accepted: int) -> None:
        self.n_call_accept += 1
        self.n_acc_drafts += n_accepted > 0
        self.n_acc_tokens += n_accepted
        per_pos = self.n_acc_tokens_per_pos
        per_pos.extend([0] * (n_accepted - len(per_pos)))
        for position in range(n_accepted):
            per_pos[position] += 1

    def stats(self) -> SpecStats:
        """As a value that adds up. What the target tested and what was committed is the coordinator's to add."""
        return SpecStats(
            n_call_begin=self.n_call_begin,
            n_call_draft=self.n_call_draft,
            n_call_accept=self.n_call_accept,
            n_made_tokens=self.n_made_tokens,
            n_gen_drafts=self.n_gen_drafts,
            n_gen_tokens=self.n_gen_tokens,
            n_acc_drafts=self.n_acc_drafts,
            n_acc_tokens=self.n_acc_tokens,
            n_acc_tokens_per_pos=tuple(self.n_acc_tokens_per_pos),
            t_begin_us=self.t_begin_us,
            t_draft_us=self.t_draft_us,
            t_accept_us=self.t_accept_us,
        )


def check_accepted(n_accepted: int) -> None:
    """Raise SpeculatorError unless this many tokens can have been accepted."""
    if not 0 <= n_accepted <= MAX_ACCEPTED:
        raise SpeculatorError(f"accept: {n_accepted} tokens accepted; it must be 0 to {MAX_ACCEPTED}")
