"""The committed text of a session: its tokens, and the hash of every prefix of them.

The coordinator appends to its own; a worker follows with `update`. Equal lengths and hashes mean equal texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.wire.prefix_hash import EMPTY, hashes


class History:
    """`tokens[-1]` is the pending token: it has no row in any cache yet."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._hashes: list[int] = [EMPTY]  # _hashes[i] is the hash of the first i tokens
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def hash(self) -> int:
        """Hash of the whole text."""
        return self._hashes[-1]

    def extend(self, tokens: Iterable[int]) -> None:
        tokens = list(tokens)
        self._hashes += hashes(self._hashes[-1], tokens)
        self.tokens += tokens

    def update(self, keep_len: int, tail: Sequence[int], committed_len: int, prefix_hash: int) -> bool:
        """Become `tokens[:keep_len] + tail` if that is the text of this length and hash; else change nothing.

        False means that the prefix is not known here and must be sent whole.
        """
        if keep_len > len(self.tokens) or keep_len + len(tail) != committed_len:
            return False
        new = hashes(self._hashes[keep_len], tail)
        if (new[-1] if new else self._hashes[keep_len]) != prefix_hash:
            return False
        self.tokens[keep_len:] = tail
        self._hashes[keep_len + 1 :] = new
        return True
