"""The target worker: verifies drafts, samples every committed token, and tokenizes.

    receive → handle → execute → report

`TargetWorker` takes messages and returns messages; it knows neither sockets nor threads (`outrider/worker/loop.py` does).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from outrider.decoding.row_costs import RowCosts
from outrider.decoding.sampling import Sampler
from outrider.decoding.verify import Verified, row_hash
from outrider.engine.base import Engine, Span
from outrider.errors import EngineError, RequestError
from outrider.wire.messages import (
    Begin,
    Detokenize,
    Message,
    Progress,
    Push,
    RenderChat,
    Tokenize,
    Verdict,
    VerifyRequest,
)
from outrider.worker.chunk import ChunkSize
from outrider.worker.replies import failure
from outrider.worker.slots import PrefixT, SlotWorker
from target_worker.comeback import longest_wait
from target_worker.constraint import Grammars
from target_worker.logprobs import logprobs
from target_worker.padding import n_padding
from target_worker.slot import MIXED, Shared, TargetSlot, Verification
from target_worker.text import answer

#: One in so many decodes that would be padded is not, to see whether that is still the longer way.
UNPADDED_EVERY = 32

log = logging.getLogger("outrider.worker")


class TargetWorker(SlotWorker[TargetSlot]):
    """State of the process: the engine, and one slot per session."""

    role = "target"

    def __init__(self, engine: Engine, clock: Callable[[], int] = perf_counter_ns) -> None:
        super().__init__(engine)
        self._clock = clock  # nanoseconds
        self.chunk = ChunkSize(engine.n_batch)
        self._decode_us = 0  # of the last decode
        self._n_padded = 0
        self._costs = RowCosts(engine.facts.row_times)  # of decodes in which every row has its logits
        self.eog = frozenset(token for token in range(engine.n_vocab) if engine.tokenizer.is_eog(token))
        self.grammars = Grammars(engine.tokenizer, engine.n_vocab, self.eog)

    # --- handle --------------------------------------------------------------------------------------------------

    def make_slot(self, begin: Begin) -> TargetSlot:
        never = self.engine.tokenizer.suppressed
        sampler = Sampler(begin.sampling, begin.choice, self.engine.n_vocab, self.eog, never)
        return TargetSlot(begin, sampler, self.grammars.compile(begin.grammar) if begin.grammar else None)

    def handle_other(self, message: Message) -> list[Message]:
        match message:
            case VerifyRequest():
                return self.on_prefix(message, self._start)
            case Push():
                self._take(message)
                return []
            case Tokenize() | Detokenize() | RenderChat():
                return [answer(self.engine.tokenizer, message)]
        return super().handle_other(message)

    def on_prefix(self, request: PrefixT, then: Callable[[TargetSlot, PrefixT], list[Message]]) -> list[Message]:
        replies = super().on_prefix(request, then)
        slot = self.slots.get(request.session)
        if slot is None or slot.bound is None:
            return replies
        slot.last = request
        return [*replies, *self._progress(slot)]

    def _start(self, slot: TargetSlot, request: VerifyRequest) -> list[Message]:
        if any(token >= self.engine.n_vocab for token in request.draft):
            return [failure(request, "bad_request", f"draft holds an id beyond n_vocab = {self.engine.n_vocab}")]
        if request.committed_len + len(request.draft) > self.engine.n_ctx:
            return [
                failure(
                    request,
                    "context_full",
                    f"{request.committed_len} committed tokens and a draft of "
                    f"{len(request.draft)} do not fit n_ctx = {self.engine.n_ctx}",
                )
            ]
        slot.comeback.came()
        slot.pushed.clear()
        held, slot.held = slot.held, None
        job = slot.verification(request)
        if held is not None and held.serves(job):
            return self._finish(slot, held.serving(job))
        slot.cache.rewind()
        slot.job = job
        return []

    def _take(self, push: Push) -> None:
        """Keep what may come next; a push that came late, or for text that we do not have, is of no use and no harm."""
        slot = self.slots.get(push.session)
        if slot is None or slot.bound is None:
            return
        for branch in push.branches:
            if max(branch.tokens) < self.engine.n_vocab:
                slot.pushed[branch.start, branch.tokens[0]] = branch.tokens[1:]
        self._begin_ahead(slot)

    def _begin_ahead(self, slot: TargetSlot) -> None:
        request = slot.continuation() if slot.job is None else None
        if request is None:
            return
        slot.comeback.came()
        try:
            slot.begin_ahead(request)
        except (EngineError, RequestError) as error:
            log.debug("not begun ahead: %s", error)  # the request will get this answer

    def cancel_job(self, slot: TargetSlot) -> None:
        slot.job = None
        slot.answered = None

    def missing(self, slot: TargetSlot) -> list[int]:
        return slot.cache.missing(slot.job.draft if slot.job else None)

    def n_missing(self, slot: TargetSlot) -> int:
        return slot.cache.n_missing(slot.job.draft if slot.job else None)

    def n_waiting(self) -> int:
        return sum(slot.job is not None and not slot.job.ahead for slot in self.slots.values())

    # --- execute -------------------------------------------------------------------------------------------------

    def patience_s(self) -> float:
        """How long to wait for sessions that will probably ask again in a moment."""
        if len(self.slots) < 2:
            return 0.0
        now, longest = self._clock(), longest_wait(self._decode_us)
        return max((slot.comeback.wait(now, longest) for slot in self.bound_slots()), default=0) / 1e9

    def step(self) -> list[Message]:
        """One decode for all slots that miss rows: verifications first, prompts in the room that is left."""
        work = self._batch()
        if not work:
            return []
        spans = [span for _, span in work]
        n_rows = sum(len(span.tokens) for span in spans)
        # No row of a prompt is in it.
        is_verification = sum(span.n_outputs for span in spans) == n_rows
        n_padded = self._pad(spans, n_rows) if is_verification else 0
        start = self._clock()
        try:
            output = self.engine.decode(spans)
        except EngineError as error:
            return [reply for slot, _ in work for reply in self.drop_rows(slot, error)]
        self._decode_us = elapsed_us = (self._clock() - start) // 1000
        self.chunk.observe(n_rows + n_padded, elapsed_us)
        if is_verification:
            self._costs.add(n_rows + n_padded, elapsed_us / 1e6)
        shared = Shared(len(spans), n_rows) if is_verification else MIXED
        replies: list[Message] = []
        row = 0
        for (slot, span), decoded in zip(work, spans, strict=True):
            slot.cache.appended(decoded.tokens)  # rows of padding are in the cache until it is rewound
            rows = output.logits[row : row + span.n_outputs]
            row += span.n_outputs
            replies += [*self._progress(slot), *self._advance(slot, span, rows, elapsed_us, shared)]
        return replies

    def _pad(self, spans: list[Span], n_rows: int) -> int:
        """Make the decode larger where that makes it shorter, by rows behind the last ones; by how many."""
        if self.engine.memory != "truncate":
            return 0
        last = spans[-1]
        most = min(self.engine.n_batch - n_rows, self.engine.n_ctx - last.start - len(last.tokens))
        n_added = n_padding(n_rows, most, self._costs)
        self._n_padded += n_added > 0
        if not n_added or self._n_padded % UNPADDED_EVERY == 0:
            return 0
        tokens = [*last.tokens, *[last.tokens[-1]] * n_added]
        spans[-1] = Span(last.seq, last.start, tokens, len(tokens))
        return n_added

    def drop_rows(self, slot: TargetSlot, error: EngineError) -> list[Message]:
        """After a failed decode nothing in the slot's cache is trusted."""
        slot.cache.clear()
        job, slot.job = slot.job, None
        if job is not None and job.ahead:
            return []
        return [failure(job.request, "engine", str(error))] if job else []

    def _batch(self) -> list[tuple[TargetSlot, Span]]:
        room = self.engine.n_batch
        work: list[tuple[TargetSlot, Span]] = []
        for slot in sorted(self.bound_slots(), key=self.n_missing):
            tokens = self.missing(slot)
            if not tokens or room <= 0:
                continue
            n_certain = slot.cache.n_certain
            # A long prompt goes in chunks, and the rows that are sampled never ride with one.
            n = slot.cache.next_rows(len(tokens), min(room, self.chunk.rows if n_certain > self.chunk.rows else room))
            room -= n
            n_outputs = min(n, max(n - n_certain, 0)) if slot.job else 0
            work.append((slot, slot.cache.span(tokens[:n], n_outputs)))
        return work

    def _advance(
        self, slot: TargetSlot, span: Span, rows: NDArray[np.float32], elapsed_us: int, shared: Shared
    ) -> list[Message]:
        job = slot.job
        if job is None:
            return []
        job.shared = shared if job.shared is None else MIXED
        job.n_evaluated += len(span.tokens)
        job.decode_us += elapsed_us
        if self.n_missing(slot) or job.ahead:
            job.rows += [row.copy() for row in rows]  # the view dies with the next decode
            if not self.n_missing(slot):
                slot.job, slot.held = None, job
                slot.comeback.answered()  # its request is on its way, or here and not yet taken in
            return []
        slot.job = None
        return self._finish(slot, job, rows)

    def _finish(self, slot: TargetSlot, job: Verification, rows: Iterable[NDArray[np.float32]] = ()) -> list[Message]:
        """All rows are there, `rows` behind those of the job."""
        rows_of_job = [*job.rows, *rows]
        try:
            outcome = slot.verify(job, rows_of_job)
            verdict = self._verdict(slot, job, outcome, rows_of_job)
        except EngineError as error:
            return [failure(job.request, "engine", str(error))]
        slot.answered = job.request, outcome
        self._begin_ahead(slot)
        if slot.job is None:
            slot.comeback.answered()
        return [verdict]

    # --- report --------------------------------------------------------------------------------------------------

    def _progress(self, slot: TargetSlot) -> list[Message]:
        """How far the prompt is read, if that was asked for and is news."""
        prompt_len, request = slot.begin.prompt_len, slot.last
        if not slot.begin.report_progress or request is None or request.committed_len > prompt_len:
            return []
        n_held = min(len(slot.cache), prompt_len)
        if n_held <= slot.n_reported:
            return []
        slot.n_reported = n_held
        stamp = (request.incarnation, request.session, request.round, request.epoch, request.committed_len)
        return [Progress(*stamp, n_held)]

    def _verdict(
        self, slot: TargetSlot, job: Verification, outcome: Verified, rows: Sequence[NDArray[np.float32]]
    ) -> Verdict:
        request, piece, shared = job.request, self.engine.tokenizer.piece, job.shared or MIXED
        n_generated = request.committed_len - slot.begin.prompt_len
        return Verdict(
            request.incarnation,
            request.session,
            request.round,
            request.epoch,
            request.committed_len,
            ahead=job.ahead,
            n_tested=len(job.draft),
            accepted=outcome.accepted,
            tokens=list(outcome.tokens),
            pieces=[piece(token) for token in outcome.tokens],
            end_of_text=outcome.end_of_text,
            row_hashes=[row_hash(row) for row in rows[: len(outcome.tokens)]] if slot.begin.row_hashes else [],
            n_reused=slot.n_reused,
            n_evaluated=job.n_evaluated,
            decode_us=job.decode_us,
            n_sessions=shared.n_sessions,
            n_rows=shared.n_rows,
            logprobs=logprobs(slot.sampler, outcome, rows, slot.history.tokens, n_generated, piece, job.constraint),
        )
