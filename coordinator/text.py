"""From the bytes of tokens to the text that a client sees: whole characters, and nothing of a stop string.

Tokens may end inside a character or inside a stop string; what might still become either is held back. The text is the
same for every way of cutting the tokens into blocks.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Takes the bytes of one token after the other. An invalid or cut-off character becomes U+FFFD."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.text = ""  # all that was released
        self.stopped_by: str | None = None

    def push(self, piece: bytes) -> str:
        """The text that this token releases. After a stop string is complete `stopped_by` is set, and no more comes."""
        return self._take(self._decoder.decode(piece))

    def finish(self) -> str:
        """The text ends here: what was held back is released."""
        released = self._take(self._decoder.decode(b"", final=True))
        if self.stopped_by is None:
            released += self._release(len(self._held))
        return released

    def _take(self, new: str) -> str:
        if self.stopped_by is not None:
            return ""
        self._held += new
        if not self._stops:
            return self._release(len(self._held))
        found = self._first_stop()
        if found is not None:
            start, self.stopped_by = found
            released = self._release(start)
            self._held = ""
            return released
        return self._release(len(self._held) - self._n_undecided())

    def _release(self, n_chars: int) -> str:
        released, self._held = self._held[:n_chars], self._held[n_chars:]
        self.text += released
        return released

    def _first_stop(self) -> tuple[int, str] | None:
        """Start and text of the stop string that is complete first; of two that end together, the longer one."""
        found = [(self._held.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _n_undecided(self) -> int:
        """Length of the longest tail of the held text that a stop string begins with."""
        longest = max((len(stop) for stop in self._stops), default=0)
        for n in range(min(longest - 1, len(self._held)), 0, -1):
            tail = self._held[-n:]
            if any(stop.startswith(tail) for stop in self._stops):
                return n
        return 0
