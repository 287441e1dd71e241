"""The link of the benchmarks: nothing lost, nothing reordered, nothing early."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bench.link_proxy import LinkProxy, open_socket


@contextmanager
def ends(link: LinkProxy, listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of one connection through the link."""
    near, address = open_socket(link.endpoint)
    near.settimeout(10)
    with closing(near):
        near.connect(address)
        far, _ = listener.accept()
        far.settimeout(10)
        with closing(far):
            yield near, far


@contextmanager
def listening(endpoint: str) -> Iterator[tuple[socket.socket, str]]:
    sock, address = open_socket(endpoint)
    with closing(sock):
        sock.settimeout(10)
        sock.bind(address)
        sock.listen()
        yield sock, endpoint if isinstance(address, str) else f"tcp://127.0.0.1:{sock.getsockname()[1]}"


@contextmanager
def joined(round_trip_s: float = 0.0) -> Iterator[tuple[LinkProxy, socket.socket, socket.socket]]:
    with (
        listening("tcp://127.0.0.1:0") as (listener, endpoint),
        LinkProxy(endpoint, round_trip_s) as link,
        ends(link, listener) as (near, far),
    ):
        yield link, near, far


def take(sock: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        piece = sock.recv(n - len(data))
        assert piece, f"closed after {len(data)} bytes"
        data += piece
    return data


@pytest.fixture(params=["tcp", "ipc"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Where the far end listens, and where the link does."""
    if request.param == "tcp":
        return "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
    return f"ipc://{tmp_path}/far", f"ipc://{tmp_path}/link"


def test_every_byte_in_order_both_ways_and_none_early(pair: tuple[str, str]) -> None:
    data = bytes(range(256)) * 2000
    with listening(pair[0]) as (listener, endpoint):
        link = LinkProxy(endpoint, round_trip_s=0.1, jitter_s=0.01, listen=pair[1])
        with link, ends(link, listener) as (near, far):
            start = time.monotonic()
            near.sendall(b"first")
            assert take(far, 5) == b"first"
            assert time.monotonic() - start >= 0.05
            far.sendall(b"back")
            assert take(near, 4) == b"back"
            assert time.monotonic() - start >= 0.1
            for first in range(0, len(data), 50_000):
                near.sendall(data[first : first + 50_000])
            assert take(far, len(data)) == data
            assert link.n_bytes == {"up": 5 + len(data), "down": 4}


def test_a_cut_holds_everything_until_it_is_mended() -> None:
    with joined() as (link, near, far):
        link.cut()
        near.sendall(b"held")
        far.settimeout(0.1)
        with pytest.raises(TimeoutError):
            far.recv(1)
        far.settimeout(10)
        link.restore()
        assert take(far, 4) == b"held"


def test_an_end_that_closes_closes_the_other() -> None:
    with joined(0.02) as (_, near, far):
        near.sendall(b"last words")
        near.close()
        assert take(far, 10) == b"last words"
        assert far.recv(1) == b""


def test_closing_the_link_closes_both_ends_even_while_it_is_cut() -> None:
    with joined() as (link, near, far):
        link.cut()
        link.close()
        assert near.recv(1) == far.recv(1) == b""
        link.close()


def test_nobody_at_the_far_end_is_a_closed_connection() -> None:
    with listening("tcp://127.0.0.1:0") as (_, endpoint):
        pass
    with LinkProxy(endpoint) as link:
        near, address = open_socket(link.endpoint)
        with closing(near):
            near.settimeout(10)
            near.connect(address)
            assert near.recv(1) == b""
