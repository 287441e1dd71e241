"""A link that takes its time: joins whoever connects to it with another address, and delays every byte both ways.

    with LinkProxy("tcp://127.0.0.1:5570", round_trip_s=0.05, jitter_s=0.005) as link:
        ...                     # link.endpoint is where to connect instead
        link.cut()              # the cable is out: nothing gets through, nobody is told
        link.restore()          # what was under way arrives

    python bench/link_proxy.py ENDPOINT --round-trip-ms 50 [--jitter-ms 5] [--listen tcp://127.0.0.1:0]

Half the round trip is spent each way. Jitter is added per piece, evenly from 0 to its maximum; pieces stay in order.
Addresses are `tcp://HOST:PORT` or `ipc:///PATH`. What passes is not looked at, so encryption goes through.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import random
import socket
import sys
import threading
import time
from types import TracebackType

PIECE_BYTES = 1 << 16
TIMEOUT_S = 5.0


def open_socket(endpoint: str) -> tuple[socket.socket, str | tuple[str, int]]:
    """A socket for this address, and the address as sockets take it."""
    scheme, _, place = endpoint.partition("://")
    if scheme == "ipc":
        return socket.socket(socket.AF_UNIX), place
    host, _, port = place.rpartition(":")
    sock = socket.socket(socket.AF_INET)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, (host, int(port))


class Way:
    """One direction of one connection: a thread that reads, and one that writes when the time has come."""

    def __init__(self, link: LinkProxy, name: str, source: socket.socket, sink: socket.socket) -> None:
        self.link, self.name, self.source, self.sink = link, name, source, sink
        self.under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self.read, self.write)]
        for thread in self.threads:
            thread.start()

    def read(self) -> None:
        due, piece = 0.0, b"first"
        while piece:
            try:
                piece = self.source.recv(PIECE_BYTES)
            except OSError:
                piece = b""
            due = max(due, time.monotonic() + self.link.one_way_s())
            self.under_way.put((due, piece))
            self.link.n_bytes[self.name] += len(piece)

    def write(self) -> None:
        piece = b"first"
        while piece:
            due, piece = self.under_way.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            self.link.passes.wait()
            try:
                self.sink.sendall(piece)
            except OSError:
                break
        for sock in (self.source, self.sink):  # the other direction ends too
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class LinkProxy:
    """See the module's docstring. `n_bytes` counts what was read "up" (from those who connect) and "down"."""

    def __init__(
        self,
        target: str,
        round_trip_s: float = 0.0,
        jitter_s: float = 0.0,
        listen: str = "tcp://127.0.0.1:0",
        seed: int = 0,
    ) -> None:
        self.target, self.round_trip_s, self.jitter_s = target, round_trip_s, jitter_s
        self.n_bytes = {"up": 0, "down": 0}
        self.passes = threading.Event()
        self.passes.set()
        self._random = random.Random(seed)
        self._sockets: list[socket.socket] = []
        self._ways: list[Way] = []
        self._listener, address = open_socket(listen)
        self._listener.bind(address)
        self._listener.listen()
        self.endpoint = listen
        if isinstance(address, tuple):
            self.endpoint = f"tcp://{address[0]}:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def one_way_s(self) -> float:
        return self.round_trip_s / 2 + self._random.uniform(0.0, self.jitter_s)

    def cut(self) -> None:
        self.passes.clear()

    def restore(self) -> None:
        self.passes.set()

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(TIMEOUT_S)
        self._listener.close()
        self.passes.set()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in [thread for way in self._ways for thread in way.threads]:
            thread.join(TIMEOUT_S)
        for sock in self._sockets:
            sock.close()

    def __enter__(self) -> LinkProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far, address = open_socket(self.target)
            self._sockets += [near, far]
            try:
                far.connect(address)
            except OSError:
                near.close()
                continue
            if near.family == socket.AF_INET:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ways += [Way(self, "up", near, far), Way(self, "down", far, near)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint")
    parser.add_argument("--round-trip-ms", type=float, default=0.0)
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    parser.add_argument("--listen", default="tcp://127.0.0.1:0")
    options = parser.parse_args()
    with LinkProxy(options.endpoint, options.round_trip_ms / 1e3, options.jitter_ms / 1e3, options.listen) as link:
        print(link.endpoint, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
