"""Peers that are stopped or killed while we send: what a single process cannot play."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from outrider.errors import PeerUnknownError, SendError
from outrider.wire import messages as m
from outrider.wire.transport import RouterTransport
from tests.wire_harness import poll_for

pytestmark = pytest.mark.process

#: A worker that answers every End, and leaves at Shutdown.
WORKER = """
import os, sys
from outrider.wire.link import WorkerLink
from outrider.wire.messages import PROTOCOL_VERSION, End, Hello, Shutdown
from outrider.wire.transport import DealerTransport

hello = Hello(PROTOCOL_VERSION, "draft", "draft", os.getpid())
with WorkerLink(DealerTransport(sys.argv[1]), hello, hello_every_s=0.05) as link:
    while True:
        for message in link.receive(None):
            if isinstance(message, Shutdown):
                sys.exit(0)
            if isinstance(message, End):
                link.send(message)
"""


@contextmanager
def worker(router: RouterTransport) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """A welcome worker of incarnation 1; its process and identity."""
    with subprocess.Popen([sys.executable, "-c", WORKER, router.endpoint]) as process:
        try:
            peer, _ = poll_for(lambda: _next(router, m.Hello))
            router.send(peer, m.Welcome(m.PROTOCOL_VERSION, 1, 0.1))
            yield process, peer
        finally:
            process.kill()


def _next(router: RouterTransport, kind: type[m.Message]) -> tuple[bytes, m.Message] | None:
    received = router.recv(0.1)
    return received if received is not None and isinstance(received[1], kind) else None


def end(session: int) -> m.End:
    return m.End(1, session, 1, 1, 1)


def test_a_stopped_worker_surfaces_and_closing_does_not_wait_for_it() -> None:
    with closing(RouterTransport()) as router, worker(router) as (process, peer):
        router.send(peer, end(1))
        assert poll_for(lambda: _next(router, m.End)) == (peer, end(1))
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(SendError):  # full; on a very slow machine it may be cut off before
            fill(router, peer)
        start = time.monotonic()
        router.close()
        assert time.monotonic() - start < 1.0


def fill(router: RouterTransport, peer: bytes) -> None:
    for session in range(5000):
        router.send(peer, end(session))


def test_a_stopped_worker_that_was_given_up_greets_again_when_it_goes_on() -> None:
    with closing(RouterTransport()) as router, worker(router) as (process, peer):
        poll_for(lambda: _next(router, m.Heartbeat))
        process.send_signal(signal.SIGSTOP)
        while router.recv(0.3) is not None:
            pass  # beats that were under way; then silence
        process.send_signal(signal.SIGCONT)
        poll_for(lambda: _next(router, m.Heartbeat))
        router.send(peer, m.Failure(0, 0, 0, 0, 0, request=0, code="unknown_incarnation", reason="given up"))
        again, _ = poll_for(lambda: _next(router, m.Hello))
        assert again == peer  # the same process, the same identity
        router.send(again, m.Welcome(m.PROTOCOL_VERSION, 2, 0.1))
        router.send(again, m.End(2, 9, 1, 1, 1))
        assert poll_for(lambda: _next(router, m.End)) == (peer, m.End(2, 9, 1, 1, 1))


def test_a_killed_worker_is_unknown_at_once_and_closing_does_not_wait() -> None:
    with closing(RouterTransport()) as router, worker(router) as (process, peer):
        process.send_signal(signal.SIGKILL)
        poll_for(lambda: (router.recv(0.001) and False) or _is_gone(router, peer), 5.0)
        start = time.monotonic()
        router.close()
        assert time.monotonic() - start < 1.0


def _is_gone(router: RouterTransport, peer: bytes) -> bool:
    try:
        router.send(peer, m.Heartbeat(1, 0, 0))
    except PeerUnknownError:
        return True
    return False


def test_a_pidfd_wakes_the_coordinators_poll() -> None:
    with closing(RouterTransport()) as router, subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            assert router.poll(0.0, (pidfd,)) == set()
            process.kill()
            assert router.poll(20.0, (pidfd,)) == {pidfd}
        finally:
            os.close(pidfd)


def test_workers_that_come_at_once_and_leave_are_all_served() -> None:
    """Ten start-ups and shut-downs: the Hello and the Shutdown of each arrive, and each ends with exit code 0."""
    with closing(RouterTransport()) as router:
        for _ in range(5):
            with worker(router) as (process, peer):
                router.send(peer, m.Shutdown(1, "end"))
                assert process.wait(20.0) == 0
