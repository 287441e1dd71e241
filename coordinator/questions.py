"""Questions about text to the target: what was asked, and who waits for the answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.workers import Connection
from outrider.errors import BusyError, OutriderError, ProtocolError, RequestError, SendError, WorkerLostError
from outrider.types import ChatMessage
from outrider.wire.messages import Failure, Message, TextResult, Tokenize, TokenizeResult

OnResult = Callable[[Any], None]
OnError = Callable[[OutriderError], None]

#: Texts that may wait to be read at a time: fewer than a worker takes in while it computes.
MAX_OPEN = 256


class Questions:
    """Each is answered once: by a result, by a failure, or because its target is gone.

    target: the one that is there now; send: a message to a peer. It raises SendError or ProtocolError."""

    def __init__(self, target: Callable[[], Connection | None], send: Callable[[bytes, Message], None]) -> None:
        self._target, self._send = target, send
        self._open: dict[int, tuple[OnResult, OnError]] = {}
        self._numbers = itertools.count(1)

    @property
    def n_open(self) -> int:
        return len(self._open)

    def tokenize(
        self,
        text: str,
        messages: Sequence[ChatMessage],
        on_tokens: Callable[[list[int]], None],
        on_error: OnError,
        *,
        special: bool = True,
    ) -> None:
        """Have the target turn a prompt into tokens. `special`: BOS and control tokens count."""
        make = lambda inc, number: Tokenize(inc, number, text, list(messages), special, special, False)  # noqa: E731
        self.ask(make, lambda result: on_tokens(result.tokens), on_error)

    def ask(self, make: Callable[[int, int], Message], on_result: OnResult, on_error: OnError) -> None:
        """Have the target answer; `make` gets incarnation and request number."""
        target = self._target()
        if target is None:
            on_error(WorkerLostError("target worker: not connected, text cannot be read"))
            return
        if self.n_open >= MAX_OPEN:
            on_error(BusyError(f"{MAX_OPEN} texts are waiting to be read already; try again later"))
            return
        number = next(self._numbers)
        try:
            self._send(target.peer, make(target.incarnation, number))
        except ProtocolError as error:
            on_error(RequestError(str(error)))
        except SendError as error:
            on_error(WorkerLostError(f"target worker: it takes no message now ({error})"))
        else:
            self._open[number] = (on_result, on_error)

    def answered(self, answer: TokenizeResult | TextResult) -> None:
        """An answer that nobody waits for is ignored."""
        if answer.request in self._open:
            on_result, _ = self._open.pop(answer.request)
            on_result(answer)

    def failed(self, failure: Failure) -> None:
        if failure.request in self._open:
            _, on_error = self._open.pop(failure.request)
            on_error(RequestError(failure.reason))

    def lost(self, error: OutriderError) -> None:
        """The target is gone, and with it all answers."""
        asked, self._open = self._open, {}
        for _, on_error in asked.values():
            on_error(error)
