"""The draft worker: a small model proposes tokens for the sessions that ask.

    receive → handle → execute → report

`DraftWorker` takes messages and returns messages; it knows neither sockets nor threads (`outrider/worker/loop.py` does).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns

import msgspec
import numpy as np
from numpy.typing import NDArray

from draft_worker.branches import MAX_DEPTH, Branch, Opening, n_worthwhile, openings
from outrider.decoding.row_costs import RowCosts
from outrider.decoding.sampling import Sampler
from outrider.engine.base import Engine, Output, Span
from outrider.engine.cached import CachedSequence
from outrider.errors import EngineError
from outrider.speculators.hold import Due
from outrider.speculators.model import Choose, Drafting, missing, n_missing, step
from outrider.wire.messages import Begin, DraftRequest, DraftTokens, Measure, Message, Ready, Verifying
from outrider.worker.chunk import ChunkSize
from outrider.worker.measure import row_times
from outrider.worker.replies import failure
from outrider.worker.slots import Slot, SlotWorker

log = logging.getLogger("outrider.worker")


class DraftSlot(Slot):
    """A session on the draft: the request at hand and what it has cost so far.

    `sampler`: that of the target, on this model's logits, where the draft is to share its noise; None: the most probable
    token that is not in `never`.
    """

    def __init__(self, begin: Begin, sampler: Sampler | None, never: frozenset[int] = frozenset()) -> None:
        super().__init__(begin)
        self.sampler, self.never = sampler, never
        self.request: DraftRequest | None = None
        self.drafting: Drafting | None = None
        self.last: Drafting | None = None  # the draft before, which may still be right (overlap)
        self.branches: list[Branch] = []
        self.due: Due | None = None  # the verdict that is expected next
        self.epoch = 0
        self.n_sent = 0  # tokens of `drafting` that were reported already
        self.decode_us = 0

    def new_draft(self, request: DraftRequest, n_max: int, n_min: int) -> Drafting:
        """A draft behind the committed text."""
        return self._draft(request, n_max, n_min, len(self.history), self.choose)

    def _draft(self, request: DraftRequest, n_max: int, n_min: int, start: int, choose: Choose) -> Drafting:
        with_probs = request.with_probs or request.p_min > 0
        chosen_by = choose if self.sampler else None
        return Drafting(n_max, n_min, request.p_min, start, chosen_by, self.never, with_probs)

    def choose(self, row: NDArray[np.float32], start: int, drafted: Sequence[int]) -> int:
        """What the target would sample if these were its logits: same settings, same noise at the same position."""
        assert self.sampler is not None
        if self.sampler.reads_text:
            return self.sample(row, [*self.history.tokens[:start], *drafted])
        position = start + len(drafted)
        return self.sampler.pick(row, Counter(), position, position - self.begin.prompt_len)

    def sample(self, row: NDArray[np.float32], text: Sequence[int]) -> int:
        assert self.sampler is not None
        return self.sampler.sample(row, text, len(text) - self.begin.prompt_len)

    def open(self, opening: Opening, cache: CachedSequence) -> Branch:
        """Follow another token than the chain's, in this sequence. Raises CacheError."""
        chain = self.drafting
        assert chain is not None
        stem = [*chain.tokens[: opening.index], opening.token]
        text = [*self.history.tokens[: chain.start], *stem]
        cache.fork(self.cache, text)
        request = self.request
        assert request is not None
        depth = min(request.n_max, MAX_DEPTH)
        drafting = self._draft(
            request, depth, 0, len(text), lambda row, _, drafted: self.sample(row, [*text, *drafted])
        )
        branch = Branch(cache, chain.start, stem, opening.prob, opening.reach, drafting)
        self.branches.append(branch)
        return branch

    def forget_told(self) -> None:
        """All that is drafted is to be told again."""
        self.n_sent = 0
        for branch in self.branches:
            branch.n_told = 0

    @property
    def follows_branches(self) -> bool:
        return self.request is not None and self.request.n_branches > 0 and self.drafting is not None

    @property
    def chain_weight(self) -> float:
        """Probability that the chain's next token is wanted."""
        return math.prod(self.drafting.probs) if self.drafting is not None else 1.0

    @property
    def has_news(self) -> bool:
        """In overlap each token is told as it comes."""
        if self.request is None or self.request.credit == 0 or self.drafting is None:
            return False
        return len(self.drafting.tokens) > self.n_sent or any(branch.has_news for branch in self.branches)


class DraftWorker(SlotWorker[DraftSlot]):
    """State of the process: the engine, and one slot per session."""

    role = "draft"

    def __init__(self, engine: Engine, clock: Callable[[], int] = perf_counter_ns) -> None:
        super().__init__(engine)
        self._clock = clock  # nanoseconds
        self._decode_us = 0
        self._costs = RowCosts(engine.facts.row_times, hopeful=True)
        self._spare = [CachedSequence(engine, engine.n_seq + i) for i in range(engine.n_branches)]
        self.chunk = ChunkSize(engine.n_batch)
        self.eog = frozenset(token for token in range(engine.n_vocab) if engine.tokenizer.is_eog(token))

    # --- handle --------------------------------------------------------------------------------------------------

    def make_slot(self, begin: Begin) -> DraftSlot:
        """A request that ignores ends of text is drafted without them, and every one without what the model forbids: the
        target never samples them."""
        if begin.draft_sampling == "greedy" or begin.sampling.temp <= 0:
            never = self.eog if begin.sampling.ignore_eos else frozenset[int]()
            return DraftSlot(begin, None, never.union(self.engine.tokenizer.suppressed))
        return DraftSlot(begin, self._sampler(begin))

    def _sampler(self, begin: Begin) -> Sampler:
        """Without the biases of tokens that this model lacks."""
        known = [bias for bias in begin.sampling.logit_bias if bias.token < self.engine.n_vocab]
        sampling = msgspec.structs.replace(begin.sampling, logit_bias=known)
        return Sampler(sampling, begin.choice, self.engine.n_vocab, self.eog, self.engine.tokenizer.suppressed)

    def handle_other(self, message: Message) -> list[Message]:
        match message:
            case DraftRequest():
                return self.on_prefix(message, self._start)
            case Verifying():
                self._expect(message)
                return []
            case Measure():
                return [self._measured(message)]
        return super().handle_other(message)

    def _expect(self, verifying: Verifying) -> None:
        slot = self.slots.get(verifying.session)
        if slot is not None:
            slot.due = Due(1000 * verifying.due_us, verifying.committed_len, verifying.n_tested)

    def _measured(self, request: Measure) -> Ready:
        """What this model's decodes take, where no session needs the sequences."""
        engine = self.engine
        if not self.slots:
            for cache in (*self._free, *self._spare):
                cache.clear()
            try:
                engine.facts = msgspec.structs.replace(engine.facts, row_times=row_times(engine, "draft", self._clock))
            except EngineError as error:
                log.warning("its decodes were not measured: %s", error)
            self._costs = RowCosts(engine.facts.row_times, hopeful=True)
        return Ready(request.incarnation, engine.facts)

    def _start(self, slot: DraftSlot, request: DraftRequest) -> list[Message]:
        if request.committed_len > self.engine.n_ctx:
            reason = f"{request.committed_len} committed tokens leave no room in n_ctx = {self.engine.n_ctx}"
            return [failure(request, "context_full", reason)]
        slot.request, slot.decode_us = request, 0
        if request.credit:
            return self._ride_on(slot, request)
        slot.cache.rewind()
        slot.drafting, slot.n_sent = slot.new_draft(request, request.n_max, request.n_min), 0
        return []

    def _ride_on(self, slot: DraftSlot, request: DraftRequest) -> list[Message]:
        """Draft up to the credit; what is there already and still fits stays, and is told again in a new epoch."""
        n_max = max(request.credit - request.committed_len, 1)
        drafting, n_taken = self._go_on(slot)
        if drafting is None:
            slot.drafting, slot.n_sent = slot.new_draft(request, n_max, 0), 0
        else:
            slot.drafting = drafting.rest(n_taken, n_max, request.p_min)
            slot.n_sent = max(slot.n_sent - n_taken, 0)
            if request.epoch != slot.epoch:
                slot.forget_told()
        slot.cache.rewind(slot.drafting.tokens)
        slot.epoch = request.epoch
        if len(slot.drafting.tokens) > slot.n_sent or not self._has_work(slot):
            return [self._report(slot)]
        return []

    def _go_on(self, slot: DraftSlot) -> tuple[Drafting | None, int]:
        """The draft that the committed text has followed, and how many of its tokens that took; it is the chain now."""
        text = slot.history.tokens
        n_taken = slot.last.n_taken(text) if slot.last is not None else None
        if n_taken is not None:
            self._drop_branches(slot, [branch for branch in slot.branches if branch.position < len(text)])
            return slot.last, n_taken
        taken = next((branch for branch in slot.branches if branch.n_taken(text) is not None), None)
        if taken is not None:
            taken.cache, slot.bound = slot.cache, taken.cache
            slot.cache.commit(text, taken.base)
            slot.n_sent = 0  # it was told as a branch; whether that is still known is not known here
        self._drop_branches(slot, list(slot.branches))
        return (None, 0) if taken is None else (taken.drafting, len(text) - taken.drafting.start)

    def _drop_branches(self, slot: DraftSlot, dropped: list[Branch]) -> None:
        for branch in dropped:
            branch.cache.clear()
            self._spare.append(branch.cache)
            slot.branches.remove(branch)

    def cancel_job(self, slot: DraftSlot) -> None:
        if slot.drafting is not None:
            slot.last = slot.drafting
        slot.request = slot.drafting = None

    def end_slot(self, slot: DraftSlot) -> None:
        self._drop_branches(slot, list(slot.branches))

    def missing(self, slot: DraftSlot) -> list[int]:
        return missing(slot)

    def n_missing(self, slot: DraftSlot) -> int:
        return n_missing(slot)

    def has_work(self) -> bool:
        return any(self._has_work(slot) for slot in self.bound_slots())

    def _has_work(self, slot: DraftSlot) -> bool:
        if n_missing(slot):
            return True
        return slot.follows_branches and (bool(self._growing(slot)) or next(self._openings(slot), None) is not None)

    @staticmethod
    def _growing(slot: DraftSlot) -> list[Branch]:
        """Branches that could have another token, of a slot that follows branches."""
        return [branch for branch in slot.branches if not branch.drafting.done]

    def _openings(self, slot: DraftSlot) -> Iterator[Opening]:
        """Branches that could be opened, of a slot that follows branches."""
        if not self._spare or self.engine.memory != "truncate":
            return
        assert slot.request is not None
        assert slot.drafting is not None
        room = slot.request.n_branches - len(slot.branches)
        known = {(branch.position, branch.stem[-1]) for branch in slot.branches}
        new = (
            opening
            for opening in openings(slot.drafting)
            if (position := slot.drafting.start + opening.index) + 1 < self.engine.n_ctx
            and (position, opening.token) not in known
        )
        yield from sorted(new, key=lambda opening: -opening.reach)[: max(room, 0)]

    def n_waiting(self) -> int:
        return sum(slot.request is not None for slot in self.slots.values())

    # --- execute -------------------------------------------------------------------------------------------------

    def patience_s(self) -> float:
        """How long to wait for a verdict that would find the next step wrong. (Branches profit from a step all the same, and
        so do other sessions.)"""
        if not any(slot.due for slot in self.slots.values()):
            return 0.0
        slots = [slot for slot in self.bound_slots() if n_missing(slot)]
        if len(slots) != 1 or (slot := slots[0]).due is None or slot.drafting is None:
            return 0.0
        if slot.follows_branches or n_missing(slot) > 1:
            return 0.0
        step_ns = 1e9 * (self._costs.seconds(1) or 0.0)
        return slot.due.hold(self._clock(), step_ns, slot.drafting.start, slot.drafting.probs) / 1e9

    def step(self) -> list[Message]:
        """One decode for all slots that miss rows and the branches that are worth it, and what there is to tell then."""
        slots = self.bound_slots()
        chains, branches = self._choose(slots)
        work: list[DraftSlot | Branch] = [*chains, *branches]
        self._decode_us = 0
        try:
            finished = step(self.engine, work, self.chunk.rows, self._decode)
        except EngineError as error:
            return [reply for slot in slots for reply in self._drop_rows(slot, error)]
        for slot in slots:
            slot.decode_us += self._decode_us
        return [self._report(slot) for slot in slots if slot.has_news or slot in finished or self._is_idle(slot)]

    def _choose(self, slots: Sequence[DraftSlot]) -> tuple[list[DraftSlot], list[Branch]]:
        """What the next step evaluates. A chain is always gone on with; the branches that pay ride along with it."""
        chains = [slot for slot in slots if n_missing(slot)]
        followed = [slot for slot in slots if slot.follows_branches and n_missing(slot) <= 1]
        nodes: list[tuple[float, DraftSlot, Branch | Opening]] = []
        for slot in followed:
            nodes += [(branch.weight, slot, branch) for branch in self._growing(slot)]
            nodes += [(opening.reach, slot, opening) for opening in self._openings(slot)]
        if not nodes:
            return chains, []
        nodes.sort(key=lambda node: -node[0])
        del nodes[max(2 * max(self._costs.rows, default=0) + 1 - len(chains), 0) :]  # to find out costs little
        sure = [slot.chain_weight for slot in chains]
        n = n_worthwhile([weight for weight, _, _ in nodes], sure, self._cost)
        return chains, list(self._opened(nodes[:n]))

    def _opened(self, nodes: Sequence[tuple[float, DraftSlot, Branch | Opening]]) -> Iterator[Branch]:
        for _, slot, node in nodes:
            if isinstance(node, Branch):
                yield node
            elif self._spare:
                yield slot.open(node, self._spare.pop())

    def _cost(self, n_rows: int) -> float:
        return self._costs.seconds(n_rows) or float(n_rows)

    def _is_idle(self, slot: DraftSlot) -> bool:
        """It rides, and there is nothing that it could do before the next request."""
        return slot.request is not None and slot.request.credit > 0 and not self._has_work(slot)

    def _decode(self, spans: Sequence[Span]) -> Output:
        """The engine's decode, measured."""
        start = self._clock()
        output = self.engine.decode(spans)
        self._decode_us = (self._clock() - start) // 1000
        n_rows = sum(len(span.tokens) for span in spans)
        self.chunk.observe(n_rows, self._decode_us)
        if n_rows == len(spans):
            self._costs.add(n_rows, max(self._decode_us, 1) / 1e6)
        return output

    def _drop_rows(self, slot: DraftSlot, error: EngineError) -> list[Message]:
        """After a failed decode nothing in the slot's cache is trusted."""
        slot.cache.clear()
        self._drop_branches(slot, list(slot.branches))
        request = slot.request
        self.cancel_job(slot)
        return [failure(request, "engine", str(error))] if request else []

    # --- report --------------------------------------------------------------------------------------------------

    def _report(self, slot: DraftSlot) -> Message:
        request, drafting = slot.request, slot.drafting
        assert request is not None
        assert drafting is not None
        first, slot.n_sent = slot.n_sent, len(drafting.tokens)
        final = drafting.done and not self._has_work(slot)
        reply = DraftTokens(
            request.incarnation,
            request.session,
            request.round,
            request.epoch,
            request.committed_len,
            start=drafting.start + first,
            tokens=drafting.tokens[first:],
            probs=drafting.probs[first:],
            entropies=drafting.entropies[first:],
            branches=[branch.told() for branch in slot.branches if branch.has_news],
            final=final,
            n_dropped=drafting.n_dropped,
            n_evaluated=drafting.n_evaluated,
            decode_us=slot.decode_us,
        )
        drafting.n_evaluated, slot.decode_us = 0, 0
        if final:
            # Its rows stay: what is accepted of it need not be evaluated again.
            self.cancel_job(slot)
        return reply
