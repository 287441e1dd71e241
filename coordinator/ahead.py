"""The drafts that run ahead of the committed text, as the coordinator knows them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from outrider.wire.messages import Branch

Followed = Literal["chain", "branch", "none"]


@dataclass(slots=True)
class Ahead:
    """The chain: drafted tokens at positions `start …`, with the draft model's probability of each (among its ten best).

    start: length of the committed text. late: its last tokens, where the draft has not yet told what it has there: the
    target may be faster than the link, and what comes is of use all the same if it agrees with them.
    Branches: what may follow if the target takes another token at some position.
    """

    start: int
    tokens: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    _branches: dict[tuple[int, int], Branch] = field(default_factory=dict)  # by position and token

    @property
    def end(self) -> int:
        """Position behind what the draft has told."""
        return self.start - len(self.late) + len(self.tokens)

    def add(self, position: int, tokens: Sequence[int], probs: Sequence[float]) -> tuple[int | None, int]:
        """Append to the chain; what is known already changes nothing.

        None if it fits, else the position from which on the draft is of no use: it contradicts the text, or begins
        behind a gap. And how many tokens of the text came late, and are those of the text."""
        if position > max(self.end, self.start):
            return self.end, 0
        if position > self.end:  # the draft has skipped what it knows to be committed
            del self.late[: position - self.end]
        skip, n_agreed = self.end - position, 0
        for token, prob in zip(tokens[skip:], probs[skip:], strict=True):
            if not self.late:
                self.tokens.append(token)
                self.probs.append(prob)
            elif token == self.late[0]:
                del self.late[0]
                n_agreed += 1
            else:
                return self.end, n_agreed
        return None, n_agreed

    def add_branches(self, branches: Sequence[Branch]) -> None:
        """Keep what still can be; a branch is told whole each time, so the longest report of it counts."""
        for branch in branches:
            key = branch.start, branch.tokens[0]
            known = self._branches.get(key)
            if branch.start >= self.start and (known is None or len(known.tokens) < len(branch.tokens)):
                self._branches[key] = branch

    def continuations(self, n: int) -> list[Branch]:
        """What comes next if the target's last token is the chain's behind its first `n`, or the first of a branch there."""
        branches = [branch for branch in self._branches.values() if branch.start <= self.start + n]
        if len(self.tokens) > n:
            branches.append(Branch(self.start + n, self.tokens[n:], self.probs[n:]))
        return branches

    def commit(self, tokens: Sequence[int]) -> Followed:
        """The committed text has grown by `tokens`: what may still be right then.

        "chain": nothing contradicts it; what is left of it and its branches stay. "branch": the last token is another
        one, but was foreseen; the branch is the chain now. "none": what follows must be drafted anew.
        """
        n, n_known = len(tokens), min(len(tokens), len(self.tokens))
        if self.tokens[:n_known] == list(tokens[:n_known]):
            self.start += n
            del self.tokens[:n_known], self.probs[:n_known]
            self.late += tokens[n_known:]
            self._branches = {key: branch for key, branch in self._branches.items() if branch.start >= self.start}
            return "chain"
        branch = self._branches.get((self.start + n - 1, tokens[-1]))
        if branch is None or self.tokens[: n - 1] != list(tokens[:-1]):
            self.restart(self.start + n)
            return "none"
        self.restart(self.start + n)
        self.tokens, self.probs = list(branch.tokens[1:]), list(branch.probs[1:])
        return "branch"

    def restart(self, start: int) -> None:
        """Whatever was told counts no longer; the text has `start` tokens."""
        self.start, self.tokens, self.probs, self.late, self._branches = start, [], [], [], {}
