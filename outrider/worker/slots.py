"""What both workers share: sessions in slots, bound to sequences of the engine, and the messages about committed text.

A slot gets its sequence with the first request that names text: the free one whose rows share the longest prefix with it.
The rows of an ended session stay until another one needs the sequence, so a prompt that comes again is not read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from outrider.engine.base import Engine, common_prefix_len
from outrider.engine.cached import CachedSequence
from outrider.errors import EngineError, OutriderError, RequestError
from outrider.history import History
from outrider.types import VOCAB_BLOCK_FIRST, VOCAB_BLOCK_SIZE
from outrider.wire.messages import (
    Accept,
    Begin,
    End,
    Message,
    Prefix,
    Process,
    Rollback,
    VocabBlock,
    VocabRequest,
)
from outrider.worker.replies import failure


class Slot:
    """One session in a worker."""

    def __init__(self, begin: Begin) -> None:
        self.begin = begin
        self.history = History()
        self.bound: CachedSequence | None = None
        self.n_reused = 0  # rows of an earlier session that this one could keep

    @property
    def cache(self) -> CachedSequence:
        assert self.bound is not None
        return self.bound


SlotT = TypeVar("SlotT", bound=Slot)
PrefixT = TypeVar("PrefixT", bound=Prefix)


class SlotWorker(ABC, Generic[SlotT]):
    """Messages in, messages out. `step` does the next piece of work, one decode at most."""

    role: str

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.slots: dict[int, SlotT] = {}
        self._free = [CachedSequence(engine, seq) for seq in range(engine.n_seq)]

    @abstractmethod
    def make_slot(self, begin: Begin) -> SlotT: ...

    @abstractmethod
    def cancel_job(self, slot: SlotT) -> None:
        """Forget what the slot is doing."""

    @abstractmethod
    def n_waiting(self) -> int:
        """Requests not yet answered."""

    @abstractmethod
    def step(self) -> list[Message]: ...

    def patience_s(self) -> float:
        """How long the next step should wait for messages although there is work."""
        return 0.0

    def wait_s(self) -> float | None:
        """How long to wait for messages before the next step. None: for ever, there is none to do."""
        return self.patience_s() if self.has_work() else None

    def has_work(self) -> bool:
        return any(self.n_missing(slot) for slot in self.bound_slots())

    @abstractmethod
    def missing(self, slot: SlotT) -> list[int]:
        """Tokens whose rows are to be evaluated next."""

    @abstractmethod
    def n_missing(self, slot: SlotT) -> int:
        """How many `missing` has; asked far more often."""

    def bound_slots(self) -> list[SlotT]:
        """Sessions that have a sequence, oldest first."""
        return [slot for slot in self.slots.values() if slot.bound is not None]

    def handle(self, message: Message) -> list[Message]:
        """Replies to one message. Nothing is evaluated here."""
        match message:
            case Begin():
                return self._begin(message)
            case Process() | Rollback():
                return self.on_prefix(message, self._sync)
            case End():
                self._end(message.session)
                return []
            case Accept():
                return []
            case VocabRequest():
                first = VOCAB_BLOCK_FIRST + VOCAB_BLOCK_SIZE * message.block
                texts = self.engine.tokenizer.texts(first, VOCAB_BLOCK_SIZE)
                return [VocabBlock(message.incarnation, message.block, first, texts)]
        return self.handle_other(message)

    def handle_other(self, message: Message) -> list[Message]:
        return [failure(message, "bad_request", f"a {self.role} worker takes no {type(message).__name__}")]

    def reset(self) -> None:
        """All sessions are over: the coordinator is another one, or has lost us."""
        for session in list(self.slots):
            self._end(session)

    def _begin(self, begin: Begin) -> list[Message]:
        if begin.session in self.slots:
            self._end(begin.session)
        if len(self.slots) >= self.engine.n_seq:
            return [failure(begin, "no_slot", f"all {self.engine.n_seq} sequences are in use")]
        try:
            self.slots[begin.session] = self.make_slot(begin)
        except OutriderError as error:
            return [failure(begin, "bad_request", str(error))]
        return []

    def _end(self, session: int) -> None:
        slot = self.slots.pop(session, None)
        if slot is None:
            return
        self.end_slot(slot)
        if slot.bound is not None:
            self._free.append(slot.bound)

    def end_slot(self, slot: SlotT) -> None:
        """The session is over: give back what it holds beside its sequence."""

    def on_prefix(self, request: PrefixT, then: Callable[[SlotT, PrefixT], list[Message]]) -> list[Message]:
        """Take over the committed text that the request names, then do what it asks for."""
        slot = self.slots.get(request.session)
        if slot is None:
            return [failure(request, "unknown_session", f"session {request.session} has not begun here")]
        bad = next((token for token in request.tail if token >= self.engine.n_vocab), None)
        if bad is not None:
            return [failure(request, "bad_request", f"token {bad} is beyond n_vocab = {self.engine.n_vocab}")]
        if request.committed_len - 1 > self.engine.n_ctx:
            reason = f"{request.committed_len} tokens do not fit n_ctx = {self.engine.n_ctx}"
            return [failure(request, "context_full", reason)]
        if not slot.history.update(request.keep_len, request.tail, request.committed_len, request.prefix_hash):
            reason = f"{len(slot.history)} tokens known, {request.keep_len} assumed"
            return [failure(request, "missing_prefix", reason)]
        self.cancel_job(slot)
        try:
            if slot.bound is None:
                slot.bound = self._take_sequence(slot.history.tokens)
                if not slot.begin.reuse_rows:
                    slot.cache.clear()
                slot.cache.commit(slot.history.tokens, keep_len=0)
                slot.n_reused = slot.cache.rewind()
            else:
                slot.cache.commit(slot.history.tokens, request.keep_len)
            return then(slot, request)
        except (EngineError, RequestError) as error:
            return [failure(request, "engine", str(error))]

    def _sync(self, slot: SlotT, request: Prefix) -> list[Message]:
        slot.cache.rewind()
        return []

    def _take_sequence(self, tokens: list[int]) -> CachedSequence:
        best = max(self._free, key=lambda cache: common_prefix_len(cache.tokens, tokens))
        self._free.remove(best)
        return best
