"""Over tcp only known keys come in, each under its own name, and whatever else knocks delivers nothing."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq

from outrider.errors import PeerUnknownError
from outrider.wire import messages as m
from outrider.wire.codec import encode
from outrider.wire.transport import (
    ClientKeys,
    DealerTransport,
    ServerKeys,
    generate_keys,
    load_client_keys,
    load_server_keys,
)
from tests.wire_harness import Ends, ends, poll_for

pytestmark = pytest.mark.usefixtures("no_leaks")

TCP = "tcp://127.0.0.1:0"
END = m.End(1, 2, 3, 4, 5)


def hello(name: str) -> m.Hello:
    return m.Hello(m.PROTOCOL_VERSION, "draft", name, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    generate_keys(folder, ["coordinator", "draft", "target", "stranger"])
    return folder


@pytest.fixture
def server_keys(folder: Path) -> ServerKeys:
    return load_server_keys(folder, ["draft", "target"])


@pytest.fixture
def guarded(server_keys: ServerKeys, caplog: pytest.LogCaptureFixture) -> Iterator[Ends]:
    """A coordinator at tcp."""
    caplog.set_level(logging.WARNING, logger="outrider.wire")
    with ends(TCP, server_keys) as e:
        yield e


def prove_alive(e: Ends, dealer: DealerTransport) -> None:
    """The connection works in both directions, and nothing else was delivered."""
    dealer.send(END)
    assert e.router.recv(10.0) == (dealer.identity, END)
    e.router.send(dealer.identity, END)
    assert dealer.recv(10.0) == END
    assert e.router.recv() is None


def test_a_known_key_comes_in(guarded: Ends, folder: Path) -> None:
    port = int(guarded.router.endpoint.rpartition(":")[2])
    assert port > 0
    draft = guarded.dealer(load_client_keys(folder, "draft"))
    target = guarded.dealer(load_client_keys(folder, "target"))
    for name, dealer in (("draft", draft), ("target", target)):
        dealer.send(hello(name))
        assert guarded.router.recv(10.0) == (dealer.identity, hello(name))
        prove_alive(guarded, dealer)
    assert guarded.router.counts == {}


def test_a_name_takes_its_own_key(guarded: Ends, folder: Path) -> None:
    draft = guarded.dealer(load_client_keys(folder, "draft"))
    draft.send(hello("target"))
    answer = None
    while answer is None:
        assert guarded.router.recv(0.01) is None
        answer = draft.recv()
    assert isinstance(answer, m.Failure)
    assert answer.code == "refused"
    assert "'target'" in answer.reason
    assert "'draft'" in answer.reason
    draft.send(hello("draft"))
    assert guarded.router.recv(10.0) == (draft.identity, hello("draft"))


def _stranger(e: Ends, folder: Path) -> DealerTransport:
    """A good pair that nobody has allowed."""
    return e.unconnected(load_client_keys(folder, "stranger"))


def _mistaken(e: Ends, folder: Path) -> DealerTransport:
    """A known pair, with another server's public key."""
    good, other = load_client_keys(folder, "draft"), load_client_keys(folder, "stranger")
    return e.unconnected(ClientKeys(good.own, other.own.public))


@pytest.mark.parametrize("make", [_stranger, _mistaken])
def test_a_wrong_key_delivers_nothing_and_leaves_one_line(
    guarded: Ends,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Ends, Path], DealerTransport],
) -> None:
    good = guarded.dealer(load_client_keys(folder, "draft"))
    strangers = [make(guarded, folder) for _ in range(3)]
    for bad in strangers:
        poll_for(lambda bad=bad: guarded.served(bad) or bad.refusal or bad.counts["refused"] >= 2)
        assert bad.n_connects == 0
        with pytest.raises(PeerUnknownError):
            bad.send(END)
    prove_alive(guarded, good)
    assert guarded.router.counts["refused"] >= 3
    lines = [record.getMessage() for record in caplog.records]
    assert sum("was refused" in line for line in lines) == 1, lines
    if make is _stranger:
        assert "coordinator.allow" in lines[0]
        assert all("coordinator.allow" in (bad.refusal or "") for bad in strangers)
    else:
        assert all(bad.refusal is None for bad in strangers)
        assert sum(line.startswith("no connection to tcp://") for line in lines) == 3, lines


def test_no_key_delivers_nothing_and_leaves_one_line(
    guarded: Ends, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = guarded.dealer(load_client_keys(folder, "draft"))
    with zmq.Context() as context, ExitStack() as stack:
        for _ in range(3):
            plain = stack.enter_context(context.socket(zmq.DEALER))
            plain.linger = 0
            plain.connect(guarded.router.endpoint)
            plain.send(encode(END))
        poll_for(lambda: guarded.router.recv(0.01) or guarded.router.counts["refused"] >= 3)
        prove_alive(guarded, good)
    ours = [record.getMessage() for record in caplog.records]
    assert len(ours) == 1, ours
    assert "refused" in ours[0]


def test_a_key_without_a_coordinator_that_knows_curve_delivers_nothing(folder: Path, socket_folder: Path) -> None:
    """A worker does not talk to a server that cannot prove its key."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as impostor, ExitStack() as stack:
        impostor.linger = 0
        port = impostor.bind_to_random_port("tcp://127.0.0.1")
        dealer = stack.enter_context(
            closing(DealerTransport(f"tcp://127.0.0.1:{port}", load_client_keys(folder, "draft")))
        )
        poll_for(lambda: dealer.poll(0.01) or dealer.counts["refused"] >= 1)
        assert not dealer.connected
        assert impostor.poll(50) == 0


FOREIGN = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c403030000000000000000000000000000000000000000000000000000000000000000"),
    "random": bytes(range(256)) * 4,
    "zmtp 1.0": b"\x07\x00draft0\x06\x00hello",
    "zmtp 1.0 with a message": b"\x07\x00draft0" + bytes([len(encode(END)) + 1, 0]) + encode(END),
    "zmtp 2.0": b"\xff\0\0\0\0\0\0\0\1\x7f\1\5\0\0" + b"\0\x05hello",
    "zmtp 3.0 null": b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(16) + b"\0" + bytes(31) + b"\4\x26\5READY" + bytes(32),
    "zmtp 3.0 plain": b"\xff\0\0\0\0\0\0\0\1\x7f\3\0PLAIN" + bytes(15) + b"\0" + bytes(31) + b"\4\x0a\5HELLO\1a\1b",
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_bytes_at_the_port_deliver_nothing(guarded: Ends, folder: Path, data: bytes) -> None:
    port = int(guarded.router.endpoint.rpartition(":")[2])
    good = guarded.dealer(load_client_keys(folder, "draft"))
    with ExitStack() as stack:
        for _ in range(3):
            intruder = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0))
            intruder.sendall(data)
        for _ in range(10):
            assert guarded.router.recv(0.01) is None
        prove_alive(guarded, good)
        prove_alive(guarded, guarded.dealer(load_client_keys(folder, "target")))
    assert guarded.router.counts["malformed"] == 0


def test_idle_connections_keep_nobody_out(guarded: Ends, folder: Path) -> None:
    port = int(guarded.router.endpoint.rpartition(":")[2])
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0))
        prove_alive(guarded, guarded.dealer(load_client_keys(folder, "draft")))


def test_a_coordinator_at_ipc_needs_no_keys(folder: Path) -> None:
    with ends() as e:
        prove_alive(e, e.dealer())
