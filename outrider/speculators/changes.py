"""What the output puts in the place of tokens of the text that it copies: renames, seen once and expected again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Longer replacements are not remembered.
MAX_CHANGE_LEN = 8

#: So many are remembered; the oldest go.
MAX_CHANGES = 64


class Change(NamedTuple):
    """Where the text reads `old`, the output has `new`. Both hold 1 to 8 tokens."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class Changes:
    """The changes known so far, by their old tokens."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, ...], Change] = {}
        self._by_first: dict[int, list[Change]] = {}

    def learn(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Expect `new` for `old` from now on; a pair that is empty or too long is not worth it."""
        if not (1 <= len(old) <= MAX_CHANGE_LEN and 1 <= len(new) <= MAX_CHANGE_LEN):
            return
        change = Change(tuple(old), tuple(new))
        self._drop(change.old)
        self._all[change.old] = change
        same_first = self._by_first.setdefault(change.old[0], [])
        same_first.append(change)
        same_first.sort(key=lambda change: -len(change.old))
        if len(self._all) > MAX_CHANGES:
            self._drop(next(iter(self._all)))

    def forget(self, change: Change) -> None:
        """The output kept the old tokens this time."""
        self._drop(change.old)

    def _drop(self, old: tuple[int, ...]) -> None:
        change = self._all.pop(old, None)
        if change is not None:
            self._by_first[old[0]].remove(change)

    def at(self, source: Sequence[int], index: int) -> Change | None:
        """The longest change that fits the tokens source[index:]."""
        for change in self._by_first.get(source[index], ()):
            if tuple(source[index : index + len(change.old)]) == change.old:
                return change
        return None
