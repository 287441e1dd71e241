"""ngram-mod: a hash table from n tokens to the token that followed them last, chained into a draft, as llama.cpp does it.

Quirks that belong to it: n-grams are hashed and never compared, so a collision drafts another's token; a draft that
the request's limit cut short counts as badly accepted; five bad rounds clear the table; a table more than a quarter
full is cleared at `begin`, the text just read included.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.errors import SpeculatorError
from outrider.speculators.base import DraftParams, LookupSpeculator
from outrider.speculators.search import Tokens, hash_windows
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import NgramModParams

POOL_SIZE = 2**22
FACTOR = 6364136223846793005

#: The hash modulo the size of the table needs no more bits than these.
_MASK = POOL_SIZE - 1

#: So many tokens must be new before they are added.
_ADD_AFTER = 32

#: Of the table; beyond it `begin` clears.
_MAX_USED = 0.25

#: An accepted part below this is a bad round; so many in a row clear the table.
_LOW_ACCEPTANCE = 0.25
_MAX_LOW_ROUNDS = 5


class HashPool:
    """2^22 slots of 4 bytes, allocated with the first n-gram. A slot holds the token that followed plus 1; 0: free."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.used = 0
        self._slots: NDArray[np.uint32] | None = None

    def add(self, tokens: Tokens) -> None:
        """Enter every n-gram of `tokens` that something follows; later ones win."""
        hashes = hash_windows(tokens[:-1], self.n, FACTOR) & np.uint32(_MASK)
        if hashes.size == 0:
            return
        if self._slots is None:
            self._slots = np.zeros(POOL_SIZE, np.uint32)
        self.used += self._count_new(self._slots, hashes)
        self._slots[hashes] = tokens[self.n :].view(np.uint32) + np.uint32(1)

    @staticmethod
    def _count_new(slots: NDArray[np.uint32], hashes: NDArray[np.uint32]) -> int:
        """How many free slots `hashes` will take: each is counted at the last of those that share it."""
        free = hashes[slots[hashes] == 0]
        numbers = np.arange(1, free.size + 1, dtype=np.uint32)
        slots[free] = numbers
        return int((slots[free] == numbers).sum())

    def chain(self, key: Sequence[int], length: int) -> list[int]:
        """The tokens found by following the table from the n-gram `key`, at most `length`, fewer at a free slot."""
        found: list[int] = []
        if self._slots is None or length <= 0:
            return found
        slots = memoryview(self._slots)  # type: ignore[arg-type]
        drop = pow(FACTOR, self.n, POOL_SIZE)
        window, hashed = list(key), 0
        for token in window:
            hashed = hashed * FACTOR + token & _MASK
        for i in range(length):
            token = slots[hashed] - 1
            if token < 0:
                break
            found.append(token)
            window.append(token)
            hashed = hashed * FACTOR + token - window[i] * drop & _MASK
        return found

    def clear(self) -> None:
        self._slots, self.used = None, 0

    def content(self) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
        """Indices of the slots in use, and what they hold."""
        slots = np.empty(0, np.uint32) if self._slots is None else self._slots
        indices = slots.nonzero()[0]
        return indices, slots[indices]

    def restore(self, indices: NDArray[np.intp], values: NDArray[np.uint32]) -> None:
        """Hold just this content."""
        self.clear()
        if indices.size:
            self._slots = np.zeros(POOL_SIZE, np.uint32)
            self._slots[indices], self.used = values, indices.size


@dataclass(slots=True)
class ModState:
    """Of one sequence. i_last: n-grams before this index are entered; n_draft_last: the last draft, before any limit of
    the request; n_low: bad rounds in a row."""

    i_last: int = 0
    n_draft_last: int = 0
    n_low: int = 0


class NgramMod(LookupSpeculator):
    """`shared`: a pool that all sequences use, of this speculator and of others; without it each has its own."""

    type = "ngram-mod"

    def __init__(self, params: NgramModParams, n_seq: int = 1, shared: HashPool | None = None) -> None:
        if params.n_match < 1:
            raise SpeculatorError(f"ngram-mod: n_match = {params.n_match}; it must be at least 1")
        if shared is not None and shared.n != params.n_match:
            raise SpeculatorError(
                f"ngram-mod: n_match = {params.n_match}, but the shared pool hashes {shared.n} tokens"
            )
        self.n, self.n_min, self.n_max = params.n_match, params.n_min, params.n_max
        if shared is None and params.shared_pool:
            shared = HashPool(self.n)
        self.shared = shared
        self.states = [ModState() for _ in range(n_seq)]
        self.pools = [HashPool(self.n) if shared is None else shared for _ in range(n_seq)]

    def _check(self, seq: int) -> None:
        if not 0 <= seq < len(self.states):
            raise SpeculatorError(f"ngram-mod: no sequence {seq}; there are {len(self.states)}")

    def begin(self, seq: int, prompt: TokenArray) -> None:
        self._check(seq)
        state, pool = self.states[seq], self.pools[seq]
        state.i_last = state.n_draft_last = 0
        if len(prompt) < self.n:
            return
        pool.add(prompt.tokens)
        state.i_last = len(prompt) - self.n
        if pool.used / POOL_SIZE > _MAX_USED:
            pool.clear()

    def propose(self, request: DraftParams) -> list[int]:
        self._check(request.seq)
        state, pool, text = self.states[request.seq], self.pools[request.seq], request.prompt
        state.n_draft_last = 0
        if len(text) < self.n:
            return []
        if state.i_last + _ADD_AFTER < len(text):
            pool.add(text.tokens[state.i_last :])
            state.i_last = len(text) - self.n
        draft = pool.chain(text.tail(self.n, request.id_last).tolist(), self.n_max)
        if len(draft) < min(self.n_min, self.n_max):
            return []
        state.n_draft_last = len(draft)
        return draft

    def accept(self, seq: int, n_accepted: int, by_other: bool) -> None:
        self._check(seq)
        state = self.states[seq]
        if by_other or state.n_draft_last == 0:
            return
        state.n_low = state.n_low + 1 if n_accepted / state.n_draft_last < _LOW_ACCEPTANCE else 0
        if state.n_low >= _MAX_LOW_ROUNDS:
            self.pools[seq].clear()
            state.n_low = state.i_last = 0

    def get_state(self, seq: int) -> object:
        """A shared pool is nobody's state and not part of it."""
        self._check(seq)
        content = None if self.shared is not None else self.pools[seq].content()
        return copy(self.states[seq]), content

    def set_state(self, seq: int, state: object) -> None:
        assert isinstance(state, tuple)
        self._check(seq)
        self.states[seq] = copy(state[0])
        if state[1] is not None:
            self.pools[seq].restore(*state[1])
