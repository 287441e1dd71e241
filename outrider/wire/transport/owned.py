"""A socket with its own context and one thread that uses it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection

import zmq

from outrider.errors import ConfigError
from outrider.wire.transport.endpoint import Place
from outrider.wire.transport.options import set_options

#: Invalid messages that one call of `recv` looks at, so that a flood of them cannot hold the loop.
MAX_INVALID = 64

if zmq.zmq_version_info() < (4, 3, 5) or not zmq.has("curve"):
    raise ConfigError(f"libzmq {zmq.zmq_version()} is too old or has no CURVE: install pyzmq >= 26.4 from its wheels")


# Plain integers: an operator of zmq's enums takes as long as a send.
NOBLOCK, SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
POLLIN, POLLOUT, EVENTS = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.EVENTS)


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Cheaper than a receive that fails."""
    return int(socket.getsockopt(EVENTS)) & POLLIN != 0


class OwnedSocket:
    """Wait, and close. The first thread that uses it owns it, until another one adopts it; any other is a bug of ours."""

    def __init__(self, kind: int, place: Place, hwm: int) -> None:
        self._place = place
        self._context = zmq.Context()
        self._socket = self._context.socket(kind)
        self._owner: int | None = None
        #: Sockets that are served while waiting.
        self._served: dict[zmq.Socket[bytes], Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._watched: tuple[tuple[int, ...], int] = ((), 0)
        self._closed = False
        set_options(self._socket, hwm)
        if place.is_ipv6:
            self._socket.ipv6 = True

    def _serve(self, socket: zmq.Socket[bytes], serve: Callable[[], None]) -> None:
        self._served[socket] = serve
        self._poller.register(socket, POLLIN)

    def adopt(self) -> None:
        """The calling thread owns the socket from now on. It must hold a lock that keeps all others away: a socket may
        change threads where a full memory barrier lies between (zmq_socket(3))."""
        self._owner = threading.get_ident()

    def _claim(self) -> None:
        me = threading.get_ident()
        if self._owner is None:
            self._owner = me
        assert self._owner == me, "a socket is used by the thread that used it first, and by no other"
        assert not self._closed, "the socket is closed"

    def poll(self, timeout_s: float | None, fds: Collection[int] = (), *, outbound: bool = False) -> set[int]:
        self._claim()
        wanted = tuple(fds), POLLIN | POLLOUT if outbound else POLLIN
        if wanted != self._watched:
            self._watch(*wanted)
        # Rounded up: a wait that ends too early would spin until its time has come.
        timeout_ms = None if timeout_s is None else math.ceil(timeout_s * 1000) if timeout_s > 0 else 0
        ready: set[int] = set()
        for what, _ in self._poller.poll(timeout_ms):
            if isinstance(what, int):
                ready.add(what)
            elif what in self._served:
                self._served[what]()
        return ready

    def _watch(self, fds: tuple[int, ...], flags: int) -> None:
        for fd in set(self._watched[0]) - set(fds):
            self._poller.unregister(fd)
        for fd in set(fds) - set(self._watched[0]):
            self._poller.register(fd, POLLIN)
        self._poller.register(self._socket, flags)
        self._watched = fds, flags

    def _recv_frame(self) -> tuple[zmq.Frame, int]:
        """The first of the frames that are left of a message, and how many there were. The others are dropped."""
        frame = self._socket.recv(NOBLOCK, copy=False)
        n_frames, last = 1, frame
        while last.more:
            last = self._socket.recv(NOBLOCK, copy=False)
            n_frames += 1
        return frame, n_frames

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._socket.disable_monitor()
        for socket in self._served:
            socket.close(linger=0)
        self._socket.close()
        self._context.term()  # waits for LINGER at most
        self._place.remove()
