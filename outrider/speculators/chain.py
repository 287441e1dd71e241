"""Several speculators as one: each sequence's draft comes from the first of them that has one.

The order is fixed (`types.PRIORITY`). Who finds a draft ends the search for that sequence; the later ones are not asked
and so learn nothing from that round. The outcome is told to all, with a mark for whose draft it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.errors import SpeculatorError
from outrider.speculators.base import Counters, DraftParams, Speculator, check_accepted
from outrider.speculators.token_array import TokenArray

Clock = Callable[[], int]


def no_clock() -> int:
    """For where nothing is measured: all times are 0."""
    return 0


@dataclass(slots=True)
class Member:
    """A place in the chain. `speculator` is None where another process drafts (see `Chain.drafted_outside`)."""

    type: str
    n_max: int
    speculator: Speculator | None
    counters: Counters = field(default_factory=Counters)


class Chain:
    """`n_seq` sequences; the members are asked in the given order. `clock` gives microseconds.

    Empty chains are allowed: nobody ever drafts.
    """

    def __init__(self, members: Sequence[Member], n_seq: int = 1, clock: Clock = no_clock) -> None:
        self.members = list(members)
        self.n_seq = n_seq
        self._clock = clock
        self._last: list[Member | None] = [None] * n_seq  # whose draft the next `accept` is about; never cleared

    def __bool__(self) -> bool:
        return bool(self.members)

    @property
    def n_max(self) -> int:
        """The longest draft that the members make."""
        return max((max(0, member.n_max) for member in self.members), default=0)

    def last_type(self, seq: int) -> str | None:
        """The type whose draft was the last one of `seq`."""
        member = self._last[self._checked(seq)]
        return None if member is None else member.type

    def begin(self, seq: int, prompt: TokenArray) -> None:
        """A new generation of `seq` starts from `prompt`. The members check `seq`, those that keep something of it."""
        for member in self.members:
            start = self._clock()
            if member.speculator is not None:
                member.speculator.begin(seq, prompt)
            member.counters.n_call_begin += 1
            member.counters.t_begin_us += self._clock() - start

    def process(self, seq: int, first_pos: int, tokens: Sequence[int]) -> None:
        """`tokens` were committed at positions first_pos ….  After the first member that fails none is told."""
        for member in self.members:
            if member.speculator is not None:
                member.speculator.process(self._checked(seq), first_pos, tokens)

    def draft(self, requests: Sequence[DraftParams]) -> None:
        """Fill the results, which must be empty. One that is empty afterwards has no draft here.

        Raises SpeculatorError for a request that is not of this chain, and where a member refuses.
        """
        self._check(requests)
        waiting = sorted(requests, key=lambda request: request.seq)
        for member in self.members:
            if waiting and member.speculator is not None:
                waiting = self._ask(member, member.speculator, waiting)

    def _check(self, requests: Sequence[DraftParams]) -> None:
        seqs = [self._checked(request.seq) for request in requests]
        if len(set(seqs)) < len(seqs):
            raise SpeculatorError(f"draft: a sequence asks twice in one call: {sorted(seqs)}")
        for request in requests:
            if request.result:
                raise SpeculatorError(f"draft: the result of sequence {request.seq} is not empty")

    def _ask(self, member: Member, speculator: Speculator, waiting: list[DraftParams]) -> list[DraftParams]:
        """The requests that `member` has no draft for."""
        start = self._clock()
        speculator.draft(waiting)
        member.counters.n_call_draft += 1
        member.counters.t_draft_us += self._clock() - start
        for request in waiting:
            if request.result:
                self._take(member, request)
        return [request for request in waiting if not request.result]

    def _take(self, member: Member, request: DraftParams) -> None:
        n_made = len(request.result)
        if request.n_max > 0:
            del request.result[request.n_max :]
        member.counters.generated(n_made, len(request.result))
        self._last[request.seq] = member

    def drafted_outside(self, seq: int, type: str, n_tokens: int, us: int = 0, n_dropped: int = 0) -> None:
        """A member that drafts in another process was asked for `seq`, and offered this many tokens; others it dropped."""
        member = next((member for member in self.members if member.type == type), None)
        if member is None or member.speculator is not None:
            raise SpeculatorError(f"no speculator of type {type} drafts outside of this chain")
        member.counters.n_call_draft += 1
        member.counters.t_draft_us += us
        member.counters.n_made_tokens += n_dropped
        if n_tokens > 0:
            member.counters.generated(n_tokens, n_tokens)
            self._last[self._checked(seq)] = member

    def accept(self, seq: int, n_accepted: int) -> None:
        """The first `n_accepted` tokens of the last draft of `seq` were right.

        After a round without a draft this counts for the one who drafted before, as in llama.cpp; whoever wants that
        not counted does not call.
        """
        check_accepted(n_accepted)
        last = self._last[self._checked(seq)]
        if last is None:
            if n_accepted:
                raise SpeculatorError(f"accept: sequence {seq} has no draft of which {n_accepted} tokens can be right")
            return
        start = self._clock()
        last.counters.accepted(n_accepted)
        if last.speculator is not None:
            last.speculator.accept(seq, n_accepted, by_other=False)
        last.counters.t_accept_us += self._clock() - start
        for member in self.members:
            if member is not last and member.speculator is not None:
                member.speculator.accept(seq, n_accepted, by_other=True)

    def get_state(self, seq: int) -> object:
        """What the members keep of `seq`, and whose draft is the last one. Counters are not part of it."""
        last = self._last[self._checked(seq)]
        states = [member.speculator and member.speculator.get_state(seq) for member in self.members]
        return states, last and self.members.index(last)

    def set_state(self, seq: int, state: object) -> None:
        """Go back to what `get_state` of a chain made alike returned."""
        assert isinstance(state, tuple)
        states, last = state
        for member, kept in zip(self.members, states, strict=True):
            if member.speculator is not None:
                member.speculator.set_state(seq, kept)
        self._last[self._checked(seq)] = None if last is None else self.members[last]

    def _checked(self, seq: int) -> int:
        if not 0 <= seq < self.n_seq:
            raise SpeculatorError(f"no sequence {seq}; there are {self.n_seq}")
        return seq
