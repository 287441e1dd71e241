"""The draft that runs ahead of the committed text, as the coordinator knows it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ahead:
    """Drafted tokens at positions `start …`, with the draft model's probability of each (among its ten best)."""

    start: int
    tokens: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.tokens)

    def add(self, position: int, tokens: Sequence[int], probs: Sequence[float]) -> bool:
        """Append what follows; tokens that are known already change nothing. False if there is a gap before them."""
        skip = self.end - position
        if skip < 0:
            return False
        self.tokens += tokens[skip:]
        self.probs += probs[skip:]
        return True

    def commit(self, tokens: Sequence[int]) -> bool:
        """The committed text has grown by `tokens`. True if all of them were drafted: then the rest is still right.

        Otherwise the draft is of no use, and what follows must be drafted anew.
        """
        n = len(tokens)
        if self.tokens[:n] == list(tokens):
            self.start += n
            del self.tokens[:n], self.probs[:n]
            return True
        self.restart(self.start + n)
        return False

    def restart(self, start: int) -> None:
        self.start, self.tokens, self.probs = start, [], []
