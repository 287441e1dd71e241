"""Both ends of the wire in one test, and a watch over what they leave behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

from outrider.wire.messages import Heartbeat
from outrider.wire.transport import ClientKeys, DealerTransport, RouterTransport

T = TypeVar("T")
_PROBE = Heartbeat(0, 0, 0)
#: Far beyond what anything takes; only a failing test waits so long.
PATIENCE_S = 20.0


def poll_for(look: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """What `look` returns as soon as it is true."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
    return seen


class Ends:
    """A router and dealers connected to it, for a test in one thread; all closed at the end of `with`."""

    def __init__(self, stack: ExitStack, router: RouterTransport) -> None:
        self._stack, self.router = stack, router

    def dealer(self, keys: ClientKeys | None = None, *, hwm: int = 512) -> DealerTransport:
        """A new dealer; the router is served until both ends know of the connection."""
        dealer = self.unconnected(keys, hwm=hwm)
        poll_for(lambda: self.served(dealer))
        dealer.send(_PROBE)
        assert self.router.recv(PATIENCE_S) == (dealer.identity, _PROBE)
        return dealer

    def unconnected(self, keys: ClientKeys | None = None, *, hwm: int = 512) -> DealerTransport:
        return self._stack.enter_context(closing(DealerTransport(self.router.endpoint, keys, hwm=hwm)))

    def served(self, dealer: DealerTransport) -> bool:
        self.router.poll(0.001, ())
        dealer.poll(0.001)
        return dealer.connected


@contextmanager
def ends(*arguments: object, **options: object) -> Iterator[Ends]:
    """`Ends` around `RouterTransport(*arguments, **options)`."""
    with ExitStack() as stack:
        router = stack.enter_context(closing(RouterTransport(*arguments, **options)))  # type: ignore[arg-type]
        yield Ends(stack, router)


def belongings() -> tuple[int, int, int]:
    """Threads of Python, threads of the system, descriptors."""
    return threading.active_count(), _count("task"), _count("fd")


def _count(what: str) -> int:
    return len(os.listdir(f"/proc/self/{what}"))


@contextmanager
def nothing_left() -> Iterator[None]:
    before = belongings()
    yield
    poll_for(lambda: all(now <= then for now, then in zip(belongings(), before, strict=True)), 5.0)


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
