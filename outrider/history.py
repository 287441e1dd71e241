"""The committed text of a session: its tokens, and the hash of every prefix of them.

The coordinator appends to its own; a worker follows with `update`. Equal lengths and hashes mean equal texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.wire.prefix_hash import EMPTY, extend


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
        for token in tokens:
            self.tokens.append(token)
            self._hashes.append(extend(self._hashes[-1], (token,)))

    def update(self, keep_len: int, tail: Sequence[int], committed_len: int, prefix_hash: int) -> bool:
        """Become `tokens[:keep_len] + tail` if that is the text of this length and hash; else change nothing.

        False means that the prefix is not known here and must be sent whole.
        """
        if keep_len > len(self.tokens) or keep_len + len(tail) != committed_len:
            return False
        if extend(self._hashes[keep_len], tail) != prefix_hash:
            return False
        del self.tokens[keep_len:], self._hashes[keep_len + 1 :]
        self.extend(tail)
        return True
