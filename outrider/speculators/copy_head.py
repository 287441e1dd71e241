"""Following a copy: where in the text the output is being copied from, through edits.

While every token of the output is the next one of the text, the head just moves on. When they part, it remembers both
sides for a while: as soon as the last two tokens of the output stand a little further on in the text, the copy goes on
there, and what stood between is learnt as a change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.speculators.changes import MAX_CHANGE_LEN, Change, Changes

#: Reads so many tokens (fewer at the end) of the text from an index on.
Read = Callable[[int, int], list[int]]

#: From so many right tokens on, a copy is worth to be taken up again.
STRONG = 12

#: How far an edit reaches: tokens of the output, and of the text.
_EDIT_LEN = 24

#: Tokens that must agree for a copy to be taken up again.
_AGREE = 2

#: The trust in a copy that was taken up again, in right tokens, is half of what it was, but at most this.
_MAX_REGAINED = 16


@dataclass(slots=True)
class Broken:
    """A copy that the output left at index `src` of the text, after `matched` right tokens; `tokens` came instead."""

    src: int
    matched: int
    tokens: list[int]


class CopyHead:
    """`src` is the index of the text to be read next, or None; `matched` counts the tokens that were right so far."""

    def __init__(self) -> None:
        self.src: int | None = None
        self.matched = 0
        self.changes = Changes()
        self._change: Change | None = None  # at `src`, in the middle of its tokens
        self._done = 0  # of these, how many are out already
        self._broken: Broken | None = None

    def jump(self, src: int, matched: int) -> None:
        """Go on from another place, trusted as if so many tokens had been right."""
        self.src, self.matched = src, matched
        self._change, self._done = None, 0

    def ahead(self, limit: int, read: Read) -> list[int]:
        """Up to `limit` expected tokens. Where the text ends it goes on with what is expected here."""
        expected: list[int] = []
        if self.src is None or limit <= 0:
            return expected
        n_source, at = 2 * limit + MAX_CHANGE_LEN, 0
        source = read(self.src, n_source)
        is_end = len(source) < n_source
        skip = self._done
        while at < len(source) and len(expected) < limit:
            change = self._change if skip else self.changes.at(source, at)
            tokens = (source[at],) if change is None else change.new[skip:]
            expected += tokens
            if is_end:
                source += tokens
            at, skip = at + (1 if change is None else len(change.old)), 0
        return expected[:limit]

    def feed(self, token: int, read: Read) -> bool | None:
        """The output goes on with `token`. Was it the expected one? None: nothing was expected."""
        if self._broken is not None:
            self._broken.tokens.append(token)
        expected = None if self.src is None else self._follow(self.src, token, read)
        if self._broken is not None:
            self._mend(self._broken, read)
        return expected

    def _follow(self, src: int, token: int, read: Read) -> bool | None:
        source = read(src, MAX_CHANGE_LEN)
        if not source:
            self.src = self._change = None
            self._done = 0
            return None
        # In its middle a change is gone on with, although another may fit what can be seen of the text by now.
        change = self._change or self.changes.at(source, 0)
        tokens, n_source = ((source[0],), 1) if change is None else (change.new, len(change.old))
        if tokens[self._done] == token:
            self._change = change
            self._advance(src, len(tokens), n_source)
            return True
        if change is not None and self._done == 0 and source[0] == token:
            self.changes.forget(change)
            self.src = src + 1
            return False
        if self.matched >= STRONG:
            self._broken = Broken(src, self.matched, [*tokens[: self._done], token])
        self.src, self.matched = None, 0
        self._change, self._done = None, 0
        return False

    def _advance(self, src: int, n_out: int, n_source: int) -> None:
        """One more token of the piece at `src` came: `n_out` tokens for `n_source` of the text."""
        self.matched += 1
        self._done += 1
        if self._done == n_out:
            self.src = src + n_source
            self._change, self._done = None, 0
        if self.matched >= _MAX_REGAINED:
            self._broken = None

    def _mend(self, broken: Broken, read: Read) -> None:
        """Take the copy up again if the output is back in it; give up after a while."""
        agreed = broken.tokens[-_AGREE:]
        source = read(broken.src, _EDIT_LEN + _AGREE)
        for n_old in range(len(source) - _AGREE if len(agreed) == _AGREE else 0):
            if source[n_old : n_old + _AGREE] == agreed:
                self.changes.learn(source[:n_old], broken.tokens[:-_AGREE])
                self.jump(broken.src + n_old + _AGREE, max(_AGREE, min(broken.matched // 2, _MAX_REGAINED)))
                self._broken = None
                return
        if len(broken.tokens) >= _EDIT_LEN:
            self._broken = None
