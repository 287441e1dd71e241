"""One sequence of an engine, the committed text it serves, and which of its rows are right.

Everything that goes back in a text goes through `rewind`: it keeps the rows that are right, whatever the kind of memory,
and says how many those are. Rows that had to be given up are simply missing afterwards; they are fed again in front of
whatever is evaluated next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engine.base import Engine, Span, common_prefix_len
from outrider.errors import CacheError

#: Checkpoints kept per sequence where the memory cannot drop a suffix: the one before the last uncertain rows, and the
#: one before that, for a request that goes back further.
MAX_CHECKPOINTS = 2

#: Committed rows that may be replayed in one batch with uncertain ones. More are evaluated on their own first, and a
#: checkpoint is taken after them, so that the replay of the next round is short.
MAX_REPLAY = 16


@dataclass(frozen=True, slots=True)
class Checkpoint:
    length: int
    state: object


class CachedSequence:
    """Sequence `seq` of `engine`.

    tokens: the tokens whose rows the engine holds, position by position; as many as `engine.length(seq)`.
    committed: the committed text that the rows should agree with; its last token, the pending one, has no row yet.
    """

    def __init__(self, engine: Engine, seq: int) -> None:
        self.engine = engine
        self.seq = seq
        self.tokens: list[int] = []
        self.committed: list[int] = []
        self._known = 0  # leading rows that are known to be those of `committed`
        self._checkpoints: list[Checkpoint] = []

    def __len__(self) -> int:
        return len(self.tokens)

    # --- going back ----------------------------------------------------------------------------------------------

    def commit(self, committed: list[int], keep_len: int) -> None:
        """The committed text is `committed` now; its first `keep_len` tokens are as they were."""
        self.committed = committed
        self._known = min(self._known, keep_len)

    def rewind(self, uncertain: Sequence[int] = ()) -> int:
        """Give up the rows that are not those of the committed text and of `uncertain` tokens that still follow it.

        The last of these tokens never keeps its row: its logits are wanted. Returns the number of rows left. Where the
        memory cannot drop a suffix the newest checkpoint inside the right part is restored, so fewer may be left.
        Raises CacheError if the engine fails to go back; the sequence is empty then.
        """
        n_committed = len(self.committed)
        length = common_prefix_len(self.tokens, self.committed, min(self._known, len(self.tokens)))
        if length == n_committed and uncertain:
            length += common_prefix_len(self.tokens[n_committed:], uncertain)
        length = min(length, max(n_committed + len(uncertain) - 1, 0))
        if length < len(self.tokens):
            self._cut(length)
        self._known = min(len(self.tokens), n_committed)
        return len(self.tokens)

    def _cut(self, length: int) -> None:
        try:
            length = self._go_back(length)
        except Exception:
            self.clear()
            raise
        del self.tokens[length:]
        self._checkpoints = [point for point in self._checkpoints if point.length <= length]

    def _go_back(self, length: int) -> int:
        try:
            self.engine.truncate(self.seq, length)
            return length
        except CacheError:
            # A memory of checkpoints may still have snapshots of its last rows, so that trying pays.
            if self.engine.memory == "truncate" or length == 0:
                raise
        return self._restore(length)

    def _restore(self, length: int) -> int:
        usable = [point for point in self._checkpoints if point.length <= length]
        if not usable:
            self.engine.truncate(self.seq, 0)
            return 0
        self.engine.restore(self.seq, usable[-1].state)
        return usable[-1].length

    def fork(self, source: CachedSequence, committed: list[int]) -> None:
        """Become a copy of `source` for another text, which agrees with its rows up to the text's last token.

        Raises CacheError where the memory has no branches."""
        length = min(len(committed) - 1, len(source))
        self.engine.copy(source.seq, self.seq)
        self.engine.truncate(self.seq, length)
        self.tokens, self.committed, self._known = source.tokens[:length], committed, length
        self._checkpoints = []

    def clear(self) -> None:
        """Forget all rows."""
        self.tokens.clear()
        self._checkpoints.clear()
        self._known = 0
        self.engine.truncate(self.seq, 0)

    # --- going on ------------------------------------------------------------------------------------------------

    def missing(self, uncertain: Sequence[int] | None) -> list[int]:
        """Tokens that have no row yet: committed ones, and then those of `uncertain`.

        With None only the rows in front of the pending token count.
        """
        rows, n_committed = len(self.tokens), len(self.committed)
        if uncertain is None:
            return self.committed[rows : max(n_committed - 1, 0)]
        return self.committed[rows:] + list(uncertain[max(rows - n_committed, 0) :])

    def n_missing(self, uncertain: Sequence[int] | None) -> int:
        """How many `missing` has."""
        n_certain = len(self.committed) - 1 - len(self.tokens)
        return max(n_certain if uncertain is None else n_certain + 1 + len(uncertain), 0)

    @property
    def n_certain(self) -> int:
        """How many of the missing rows stand in front of the pending token; negative past it."""
        return len(self.committed) - 1 - len(self.tokens)

    def next_rows(self, n_missing: int, room: int) -> int:
        """How many of the missing rows to evaluate in the next decode, which has `room`.

        Takes a checkpoint where rows that may be wrong are about to follow.
        """
        n, n_certain = min(n_missing, room), self.n_certain
        if n <= n_certain or self.engine.memory == "truncate":
            return n
        if n_certain > MAX_REPLAY:
            return n_certain
        # The pending token alone is no guess; a checkpoint is needed only now and then, for a request that comes twice.
        if n_certain >= 0 and (n > n_certain + 1 or not self._has_near_checkpoint()):
            self._checkpoint()
        return n

    def _has_near_checkpoint(self) -> bool:
        return bool(self._checkpoints) and len(self.tokens) - self._checkpoints[-1].length < MAX_REPLAY

    def _checkpoint(self) -> None:
        if self.tokens and not any(point.length == len(self.tokens) for point in self._checkpoints):
            self._checkpoints.append(Checkpoint(len(self.tokens), self.engine.save(self.seq)))
            del self._checkpoints[:-MAX_CHECKPOINTS]

    def span(self, tokens: Sequence[int], n_outputs: int) -> Span:
        """The span that evaluates `tokens` next; `appended` is told once it was decoded."""
        return Span(self.seq, len(self.tokens), tokens, n_outputs)

    def appended(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
