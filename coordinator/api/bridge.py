"""Between the web server's event loop and the coordinator's thread.

Calls go over as functions in a queue, and a pipe wakes the coordinator; answers come back by `call_soon_threadsafe`. The
coordinator never waits for the web server, and nothing of the coordinator is touched by the other thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from coordinator.admission import Admission, Ticket
from coordinator.api.errors import ApiError, from_answer, from_error
from coordinator.instructions import Emit
from coordinator.request import Request
from coordinator.service import Service
from outrider.errors import OutriderError
from outrider.speculators.chain import Chain
from outrider.wire.messages import Message
from outrider.wire.waker import Waker

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done:
    """A finished request: the object of `--json`."""

    answer: dict[str, Any]


Event = Emit | Done | ApiError


class Bridge:
    """`fd` and `run_calls` are the coordinator's; the rest is for coroutines of the web server."""

    def __init__(self, service: Service, admission: Admission) -> None:
        self.service, self.admission = service, admission
        self.ready = False  # all workers were there
        self.draining = False  # no new requests
        self.on_done: Callable[[dict[str, Any]], None] = lambda answer: None  # called in the coordinator's thread
        self._waker = Waker()
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._ended = False

    @property
    def fd(self) -> int:
        return self._waker.fd

    def run_calls(self) -> None:
        """Do what the web server asked for."""
        self._waker.clear()
        while self._calls:
            self._calls.popleft()()

    def end(self) -> None:
        """Do what was asked for, and take no more: nobody would do it."""
        with self._lock:
            self._ended = True
        self.run_calls()

    def close(self) -> None:
        self._waker.close()

    def post(self, call: Callable[[], None]) -> None:
        """Raises ApiError after the end."""
        with self._lock:
            if self._ended:
                raise ApiError(503, "the server is ending")
            self._calls.append(call)
        self._waker.wake()

    async def get(self, look: Callable[[], T]) -> T:
        """What `look` returns in the coordinator's thread."""
        future, resolve = _future()
        self.post(lambda: resolve(look()))
        result: T = await future
        return result

    async def ask_target(self, make: Callable[[int, int], Message]) -> Any:
        """The target's answer to a question about text. Raises ApiError."""
        future, resolve = _future()

        self.post(lambda: self.service.questions.ask(make, resolve, resolve))
        answer = await future
        if isinstance(answer, OutriderError):
            raise from_error(answer)
        return answer

    def start(self, requests: Sequence[Request], make_chain: Callable[[], Chain]) -> Run:
        """Ask for requests to be run together; their events come from the result."""
        return Run(self, requests, make_chain)


class Run:
    """The requests of one HTTP request on their way, numbered as they were given."""

    def __init__(self, bridge: Bridge, requests: Sequence[Request], make_chain: Callable[[], Chain]) -> None:
        self._bridge = bridge
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._tickets = [self._ticket(i, request, make_chain) for i, request in enumerate(requests)]
        self.n_open = len(requests)
        bridge.post(self._enqueue)

    async def next(self) -> tuple[int, Emit | Done]:
        """What comes next, of any of them. Raises ApiError where one failed."""
        index, event = await self._events.get()
        if isinstance(event, ApiError):
            raise event
        if isinstance(event, Done):
            self.n_open -= 1
        return index, event

    def cancel(self) -> None:
        """Free what the requests use; nothing for those that are over. May be called more than once."""
        with contextlib.suppress(ApiError):  # at the end, all that runs is ended
            self._bridge.post(self._cancel)

    # --- in the coordinator's thread -----------------------------------------------------------------------------

    def _ticket(self, index: int, request: Request, make_chain: Callable[[], Chain]) -> Ticket:
        return Ticket(
            request,
            make_chain,
            lambda emit: self._put(index, emit),
            lambda answer: self._finished(index, answer),
            lambda error: self._put(index, from_error(error)),
        )

    def _enqueue(self) -> None:
        try:
            for ticket in self._tickets:
                self._bridge.admission.enqueue(ticket)
        except OutriderError as error:
            self._put(0, from_error(error))
            self._cancel()

    def _cancel(self) -> None:
        for ticket in self._tickets:
            self._bridge.admission.cancel(ticket)

    def _finished(self, index: int, answer: dict[str, Any]) -> None:
        self._bridge.on_done(answer)
        self._put(index, from_answer(answer) or Done(answer))

    def _put(self, index: int, event: Event) -> None:
        _call_soon(self._loop, lambda: self._events.put_nowait((index, event)))


def _future() -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
    """A future, and what sets it from any thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def put(value: Any) -> None:
        if not future.done():
            future.set_result(value)

    return future, lambda value: _call_soon(loop, lambda: put(value))


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(call)
