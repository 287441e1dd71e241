"""Questions about text to the target: what was asked, and who waits for the answer. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from outrider.errors import OutriderError, RequestError
from outrider.wire.messages import Failure, TextResult, TokenizeResult

OnResult = Callable[[Any], None]
OnError = Callable[[OutriderError], None]


class Questions:
    """Each is answered once: by a result, by a failure, or because its target is gone."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[OnResult, OnError]] = {}
        self._numbers = itertools.count(1)

    @property
    def n_open(self) -> int:
        return len(self._open)

    def ask(self, on_result: OnResult, on_error: OnError) -> int:
        """The number that the question must carry."""
        number = next(self._numbers)
        self._open[number] = (on_result, on_error)
        return number

    def answered(self, answer: TokenizeResult | TextResult) -> None:
        """An answer that nobody waits for is ignored."""
        if answer.request in self._open:
            on_result, _ = self._open.pop(answer.request)
            on_result(answer)

    def failed(self, failure: Failure) -> None:
        if failure.request in self._open:
            _, on_error = self._open.pop(failure.request)
            on_error(RequestError(failure.reason))

    def withdrawn(self, number: int, error: OutriderError) -> None:
        """It could not be asked."""
        _, on_error = self._open.pop(number)
        on_error(error)

    def lost(self, error: OutriderError) -> None:
        """The target is gone, and with it all answers."""
        asked, self._open = self._open, {}
        for _, on_error in asked.values():
            on_error(error)
