"""The draft worker: a small model proposes tokens for the sessions that ask.

    receive → handle → execute → report

`DraftWorker` takes messages and returns messages; it knows neither sockets nor threads (`outrider/worker/loop.py` does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import msgspec
import numpy as np
from numpy.typing import NDArray

from outrider.decoding.sampling import Sampler
from outrider.engine.base import Engine, Output, Span
from outrider.errors import EngineError
from outrider.speculators.model import Drafting, missing, step
from outrider.types import SamplingParams
from outrider.wire.messages import Begin, DraftRequest, DraftTokens, Message
from outrider.worker.chunk import ChunkSize
from outrider.worker.replies import failure
from outrider.worker.slots import Slot, SlotWorker


class DraftSlot(Slot):
    """A session on the draft: the request at hand and what it has cost so far.

    `sampler`: that of the target, on this model's logits, where the draft is to share its noise, or one that knows no
    ends of text where the request ignores them; None: the most probable token.
    """

    def __init__(self, begin: Begin, sampler: Sampler | None) -> None:
        super().__init__(begin)
        self.sampler = sampler
        self.request: DraftRequest | None = None
        self.drafting: Drafting | None = None
        self.last: Drafting | None = None  # the draft before, which may still be right (overlap)
        self.epoch = 0
        self.n_sent = 0  # tokens of `drafting` that were reported already
        self.decode_us = 0

    def new_draft(self, n_max: int, n_min: int, p_min: float) -> Drafting:
        """A draft behind the committed text."""
        return Drafting(n_max, n_min, p_min, len(self.history), self.choose if self.sampler else None)

    def choose(self, row: NDArray[np.float32], start: int, drafted: Sequence[int]) -> int:
        """What the target would sample if these were its logits: same settings, same noise at the same position."""
        assert self.sampler is not None
        text = [*self.history.tokens[:start], *drafted]
        return self.sampler.sample(row, text, len(text) - self.begin.prompt_len)


class DraftWorker(SlotWorker[DraftSlot]):
    """State of the process: the engine, and one slot per session."""

    role = "draft"

    def __init__(self, engine: Engine, clock: Callable[[], int] = perf_counter_ns) -> None:
        super().__init__(engine)
        self._clock = clock  # nanoseconds
        self._decode_us = 0
        self.chunk = ChunkSize(engine.n_batch)
        self.eog = frozenset(token for token in range(engine.n_vocab) if engine.tokenizer.is_eog(token))

    # --- handle --------------------------------------------------------------------------------------------------

    def make_slot(self, begin: Begin) -> DraftSlot:
        return DraftSlot(begin, self._sampler(begin))

    def _sampler(self, begin: Begin) -> Sampler | None:
        """Without the biases of tokens that this model lacks. A request that ignores ends of text is drafted without
        them: its target never samples one."""
        if begin.draft_sampling == "greedy" or begin.sampling.temp <= 0:
            no_ends = SamplingParams(temp=0.0, ignore_eos=True)
            return Sampler(no_ends, 0, self.engine.n_vocab, self.eog) if begin.sampling.ignore_eos else None
        known = [bias for bias in begin.sampling.logit_bias if bias.token < self.engine.n_vocab]
        sampling = msgspec.structs.replace(begin.sampling, logit_bias=known)
        return Sampler(sampling, begin.choice, self.engine.n_vocab, self.eog)

    def handle_other(self, message: Message) -> list[Message]:
        if isinstance(message, DraftRequest):
            return self.on_prefix(message, self._start)
        return super().handle_other(message)

    def _start(self, slot: DraftSlot, request: DraftRequest) -> list[Message]:
        if request.committed_len > self.engine.n_ctx:
            reason = f"{request.committed_len} committed tokens leave no room in n_ctx = {self.engine.n_ctx}"
            return [failure(request, "context_full", reason)]
        slot.request, slot.decode_us = request, 0
        if request.credit:
            return self._ride_on(slot, request)
        slot.cache.rewind()
        slot.drafting, slot.n_sent = slot.new_draft(request.n_max, request.n_min, request.p_min), 0
        return []

    def _ride_on(self, slot: DraftSlot, request: DraftRequest) -> list[Message]:
        """Draft up to the credit; what is there already and still fits stays, and is told again in a new epoch."""
        n_max = max(request.credit - request.committed_len, 1)
        n_taken = slot.last.n_taken(slot.history.tokens) if slot.last is not None else None
        if slot.last is None or n_taken is None:
            drafting = slot.new_draft(n_max, 0, request.p_min)
            slot.n_sent = 0
        else:
            drafting = slot.last.rest(n_taken, n_max)
            slot.n_sent = max(slot.n_sent - n_taken, 0) if request.epoch == slot.epoch else 0
        slot.cache.rewind(drafting.tokens)
        slot.drafting, slot.epoch = drafting, request.epoch
        return [self._report(slot)] if drafting.done or len(drafting.tokens) > slot.n_sent else []

    def cancel_job(self, slot: DraftSlot) -> None:
        if slot.drafting is not None:
            slot.last = slot.drafting
        slot.request = slot.drafting = None

    def missing(self, slot: DraftSlot) -> list[int]:
        return missing(slot)

    def n_waiting(self) -> int:
        return sum(slot.request is not None for slot in self.slots.values())

    # --- execute -------------------------------------------------------------------------------------------------

    def step(self) -> list[Message]:
        """One decode for all slots that miss rows, and the drafts that it finished."""
        slots = [slot for slot in self.bound_slots() if self.missing(slot)]
        self._decode_us = 0
        try:
            finished = step(self.engine, slots, self.chunk.rows, self._decode)
        except EngineError as error:
            return [reply for slot in slots for reply in self._drop_rows(slot, error)]
        for slot in slots:
            slot.decode_us += self._decode_us
        riding = [slot for slot in slots if slot not in finished and self._has_news(slot)]
        return [self._report(slot) for slot in [*finished, *riding]]

    def _decode(self, spans: Sequence[Span]) -> Output:
        """The engine's decode, measured."""
        start = self._clock()
        output = self.engine.decode(spans)
        self._decode_us = (self._clock() - start) // 1000
        self.chunk.observe(sum(len(span.tokens) for span in spans), self._decode_us)
        return output

    @staticmethod
    def _has_news(slot: DraftSlot) -> bool:
        """In overlap each token is told as it comes."""
        riding = slot.request is not None and slot.request.credit > 0
        return riding and slot.drafting is not None and len(slot.drafting.tokens) > slot.n_sent

    def _drop_rows(self, slot: DraftSlot, error: EngineError) -> list[Message]:
        """After a failed decode nothing in the slot's cache is trusted."""
        slot.cache.clear()
        request = slot.request
        self.cancel_job(slot)
        return [failure(request, "engine", str(error))] if request else []

    # --- report --------------------------------------------------------------------------------------------------

    def _report(self, slot: DraftSlot) -> Message:
        request, drafting = slot.request, slot.drafting
        assert request is not None
        assert drafting is not None
        first, slot.n_sent = slot.n_sent, len(drafting.tokens)
        reply = DraftTokens(
            request.incarnation,
            request.session,
            request.round,
            request.epoch,
            request.committed_len,
            start=drafting.start + first,
            parent=0,
            tokens=drafting.tokens[first:],
            probs=drafting.probs[first:],
            entropies=drafting.entropies[first:],
            final=drafting.done,
            n_dropped=drafting.n_dropped,
            n_evaluated=drafting.n_evaluated,
            decode_us=slot.decode_us,
        )
        drafting.n_evaluated, slot.decode_us = 0, 0
        if drafting.done:
            # Its rows stay: what is accepted of it need not be evaluated again.
            self.cancel_job(slot)
        return reply
