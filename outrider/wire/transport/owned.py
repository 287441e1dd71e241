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


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Cheaper than a receive that fails."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


class OwnedSocket:
    """Wait, and close. The first thread that uses it owns it; any other one is a bug of ours."""

    def __init__(self, kind: int, place: Place, hwm: int) -> None:
        self._place = place
        self._context = zmq.Context()
        self._socket = self._context.socket(kind)
        self._owner: int | None = None
        #: Sockets that are served while waiting.
        self._served: dict[zmq.Socket[bytes], Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._watched: tuple[frozenset[int], int] = (frozenset(), 0)
        self._closed = False
        set_options(self._socket, hwm)
        if place.is_ipv6:
            self._socket.ipv6 = True

    def _serve(self, socket: zmq.Socket[bytes], serve: Callable[[], None]) -> None:
        self._served[socket] = serve
        self._poller.register(socket, zmq.POLLIN)

    def _claim(self) -> None:
        me = threading.get_ident()
        if self._owner is None:
            self._owner = me
        assert self._owner == me, "a socket is used by the thread that used it first, and by no other"
        assert not self._closed, "the socket is closed"

    def poll(
        self, timeout_s: float | None, fds: Collection[int] = (), *, inbound: bool = True, outbound: bool = False
    ) -> set[int]:
        self._claim()
        self._watch(frozenset(fds), (zmq.POLLIN if inbound else 0) | (zmq.POLLOUT if outbound else 0))
        # Rounded up: a wait that ends too early would spin until its time has come.
        ready = dict(self._poller.poll(None if timeout_s is None else math.ceil(max(timeout_s, 0.0) * 1000)))
        for socket, serve in self._served.items():
            if socket in ready:
                serve()
        return {fd for fd in fds if fd in ready}

    def _watch(self, fds: frozenset[int], flags: int) -> None:
        if (fds, flags) == self._watched:
            return
        for fd in self._watched[0] - fds:
            self._poller.unregister(fd)
        for fd in fds - self._watched[0]:
            self._poller.register(fd, zmq.POLLIN)
        self._poller.register(self._socket, flags)  # 0: it is not watched
        self._watched = fds, flags

    def _recv_frame(self) -> tuple[zmq.Frame, int]:
        """The first of the frames that are left of a message, and how many there were. The others are dropped."""
        frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        n_frames, last = 1, frame
        while last.more:
            last = self._socket.recv(zmq.NOBLOCK, copy=False)
            n_frames += 1
        return frame, n_frames

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for socket in self._served:
            if socket.socket_type == zmq.PAIR:
                self._socket.disable_monitor()
            socket.close(linger=0)
        self._socket.close()
        self._context.term()  # waits for LINGER at most
        self._place.remove()
