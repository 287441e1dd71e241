"""A session on the target: its sampler and grammar, the verification at hand, and what may be asked for next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from outrider.decoding.sampling import Sampler
from outrider.decoding.synthetic import conditional_rates, uniform_draws, verify_synthetic
from outrider.decoding.verify import Verified, verify
from outrider.wire.messages import Begin, Prefix, VerifyRequest
from outrider.worker.slots import Slot
from target_worker.comeback import Comeback
from target_worker.constraint import Constrained

if TYPE_CHECKING:
    from outrider.decoding.verify import Constraint


@dataclass(frozen=True, slots=True)
class Shared:
    """A decode: how many sessions had rows in it, and how many rows that were."""

    n_sessions: int
    n_rows: int


#: Several decodes, or one in which a prompt was read: it says nothing of what a verification costs.
MIXED = Shared(0, 0)


@dataclass(slots=True)
class Verification:
    """A VerifyRequest being worked on."""

    request: VerifyRequest
    draft: Sequence[int]  # of the request, up to the first token that cannot be accepted
    constraint: Constraint | None = None  # the grammar's state after the committed text
    ahead: bool = False  # it is not asked for yet
    n_evaluated: int = 0
    decode_us: int = 0
    shared: Shared | None = None  # None while there was no decode for it
    #: Rows from the pending token on that came out of earlier batches, where one batch was too small for all; all of them
    #: where the verification was done ahead.
    rows: list[NDArray[np.float32]] = field(default_factory=list)

    def serves(self, job: Verification) -> bool:
        """Are the rows for this one among ours?"""
        n = min(len(self.draft), len(job.draft))
        same_text = self.request.prefix_hash == job.request.prefix_hash
        return same_text and list(self.draft[:n]) == list(job.draft[:n])

    def serving(self, job: Verification) -> Verification:
        """`job`, as far as its rows are among ours."""
        n = min(len(self.draft), len(job.draft))
        return Verification(
            job.request,
            job.draft[:n],
            job.constraint,
            True,
            self.n_evaluated,
            self.decode_us,
            self.shared,
            self.rows[: n + 1],
        )


class TargetSlot(Slot):
    """A session on the target: its sampler and grammar, and the verification at hand."""

    def __init__(self, begin: Begin, sampler: Sampler, constrained: Constrained | None) -> None:
        super().__init__(begin)
        self.sampler = sampler
        self.constrained = constrained
        self.synthetic: tuple[list[float], Iterator[float]] | None = None
        if begin.synth_rates:
            self.synthetic = conditional_rates(begin.synth_rates), uniform_draws(begin.sampling.seed)
        self.job: Verification | None = None
        #: What may be asked for next, by the position and the token that the verdict at hand may end with.
        self.pushed: dict[tuple[int, int], list[int]] = {}
        self.answered: tuple[VerifyRequest, Verified] | None = None  # the last request, while nothing came after it
        self.held: Verification | None = None  # done ahead, for a request that is to come
        self.comeback = Comeback()
        self.last: Prefix | None = None  # the last request that named text
        self.n_reported = -1  # by the last Progress

    @property
    def generated(self) -> list[int]:
        """Committed tokens that were not given."""
        return self.history.tokens[self.begin.prompt_len :]

    def verification(self, request: VerifyRequest) -> Verification:
        """The work on `request`. Raises EngineError or RequestError where the grammar allows no text from here."""
        draft: Sequence[int] = request.draft
        if self.synthetic is not None:
            draft = draft[: len(self.begin.synth_rates)]
        if self.constrained is None:
            return Verification(request, draft)
        state = self.constrained.after(self.generated)
        return Verification(request, draft[: state.valid_len(draft)], state)

    def continuation(self) -> VerifyRequest | None:
        """What will probably be asked for next, if that is known and the last request's credit has room for it."""
        if self.answered is None:
            return None
        last, outcome = self.answered
        if outcome.end_of_text:
            return None
        end = last.committed_len + len(outcome.tokens)
        draft = self.pushed.get((end - 1, outcome.tokens[-1]), [] if last.goes_on else None)
        if draft is None or end + len(draft) > last.credit:
            return None
        return msgspec.structs.replace(last, committed_len=end, draft=draft)

    def begin_ahead(self, request: VerifyRequest) -> None:
        """Work on it as if it had been asked for. Raises as `verification`."""
        assert self.answered is not None
        last, outcome = self.answered
        self.answered = None
        self.history.extend(outcome.tokens)
        self.cache.commit(self.history.tokens, last.committed_len)
        self.cache.rewind()
        self.job = self.verification(msgspec.structs.replace(request, prefix_hash=self.history.hash))
        self.job.ahead = True

    def verify(self, job: Verification, rows: Sequence[NDArray[np.float32]]) -> Verified:
        """The target's tokens. rows: [pending] + draft. Raises EngineError where a row leaves no choice."""
        history, n_generated = self.history.tokens, len(self.history) - self.begin.prompt_len
        if self.synthetic is not None:
            return verify_synthetic(self.sampler, rows, job.draft, history, n_generated, *self.synthetic)
        return verify(self.sampler, rows, job.draft, history, n_generated, constraint=job.constraint)
