"""The loopback behaves like sockets that lose, double, delay and reorder what the test tells them to."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import closing

import pytest

from outrider.errors import PeerFullError, PeerUnknownError, ProtocolError
from outrider.wire import messages as m
from outrider.wire.base import Dealer, Router
from outrider.wire.loopback import LoopbackDealer, LoopbackRouter, Network, Packet
from outrider.wire.transport import DealerTransport, RouterTransport
from tests.wire_samples import SAMPLES


def end(session: int) -> m.End:
    return m.End(1, session, 1, 1, 1)


def sessions(dealer: LoopbackDealer) -> list[int]:
    """The session numbers that have arrived."""
    seen = []
    while (message := dealer.recv()) is not None:
        assert isinstance(message, m.End)
        seen.append(message.session)
    return seen


def test_loopback_and_sockets_keep_the_same_contract() -> None:
    """Checked by mypy; and no public name of the contract is missing."""
    routers: list[type[Router]] = [LoopbackRouter, RouterTransport]
    dealers: list[type[Dealer]] = [LoopbackDealer, DealerTransport]
    for kinds, contract in ((routers, Router), (dealers, Dealer)):
        methods = {name for name in vars(contract) if not name.startswith("_")}
        assert all(hasattr(kind, name) for kind in kinds for name in methods)


def test_every_message_goes_both_ways() -> None:
    network = Network()
    with closing(network.router()) as router, closing(network.dealer()) as dealer:
        for message in SAMPLES.values():
            dealer.send(message)
            router.send(dealer.identity, message)
        assert [router.recv() for _ in SAMPLES] == [(dealer.identity, message) for message in SAMPLES.values()]
        assert [dealer.recv() for _ in SAMPLES] == list(SAMPLES.values())
        assert router.recv() is None
        assert router.recv(0.001) is None
        assert dealer.recv(0.001) is None


def test_invalid_messages_are_counted_and_answered() -> None:
    network = Network()
    with closing(network.router()) as router, closing(network.dealer()) as dealer:
        dealer.send_bytes(b"junk")
        dealer.send(end(1))
        assert router.recv() == (dealer.identity, end(1))
        assert router.counts["malformed"] == 1
        answer = dealer.recv()
        assert isinstance(answer, m.Failure)
        assert answer.code == "bad_request"
        router.send_bytes(dealer.identity, b"junk")
        assert dealer.recv() is None
        assert dealer.counts["malformed"] == 1
        with pytest.raises(ProtocolError):
            dealer.send(m.End(2**32, 1, 1, 1, 1))


def fates(table: dict[int, Sequence[int]]) -> Network:
    """The n-th packet has the fate in the table, others arrive at once."""
    return Network(lambda packet: table.get(packet.number, (0,)))


def test_packets_can_be_lost_doubled_and_delayed() -> None:
    network = fates({1: (), 2: (0, 0), 3: (2,), 5: (1, 3)})
    with closing(network.router()) as router, closing(network.dealer()) as dealer:
        for number in range(7):
            router.send(dealer.identity, end(number))
        assert sessions(dealer) == [0, 2, 2, 4, 6]
        assert network.step() == 2
        assert sessions(dealer) == [5]
        assert network.step() == 1
        assert sessions(dealer) == [3]
        assert network.step(5) == 0
        assert sessions(dealer) == [5]


def test_delayed_packets_of_one_time_keep_their_order() -> None:
    network = Network(lambda packet: (3 - packet.number % 2,))
    with closing(network.router()) as router, closing(network.dealer()) as dealer:
        for number in range(6):
            router.send(dealer.identity, end(number))
        network.step(2)
        assert sessions(dealer) == [1, 3, 5]
        network.step(1)
        assert sessions(dealer) == [0, 2, 4]


def test_a_fate_can_look_into_the_packet() -> None:
    seen: list[Packet] = []

    def fate(packet: Packet) -> Sequence[int]:
        seen.append(packet)
        return () if isinstance(packet.message, m.Heartbeat) else (0,)

    network = Network(fate)
    with closing(network.router()) as router, closing(network.dealer()) as dealer:
        dealer.send(m.Heartbeat(1, 2, 3))
        router.send(dealer.identity, end(1))
        assert router.recv() is None
        assert sessions(dealer) == [1]
    assert [(packet.to_router, packet.peer) for packet in seen] == [(True, dealer.identity), (False, dealer.identity)]


def test_unknown_full_and_gone_peers_are_errors() -> None:
    network = Network(hwm=2)
    with closing(network.router()) as router, closing(network.dealer()) as dealer:
        with pytest.raises(PeerUnknownError):
            router.send(b"made up", end(1))
        for number in (1, 2):
            router.send(dealer.identity, end(number))
            dealer.send(end(number))
        with pytest.raises(PeerFullError):
            router.send(dealer.identity, end(3))
        with pytest.raises(PeerFullError):
            dealer.send(end(3))
        assert sessions(dealer) == [1, 2]
        dealer.close()
        with pytest.raises(PeerUnknownError):
            router.send(dealer.identity, end(3))
        other = network.dealer()
        router.close()
        with pytest.raises(PeerUnknownError):
            other.send(end(3))
        other.close()


def test_what_is_under_way_is_lost_with_the_connection() -> None:
    network = fates({0: (1,), 1: (1,)})
    with closing(network.router()) as router, closing(network.dealer()) as dealer:
        router.send(dealer.identity, end(0))
        dealer.send(end(1))
        router.send(dealer.identity, end(2))
        dealer.disconnect()
        with pytest.raises(PeerUnknownError):
            dealer.send(end(3))
        dealer.reconnect()
        assert (dealer.n_connects, dealer.connected) == (2, True)
        network.step(5)
        assert sessions(dealer) == []
        assert router.recv() is None
        dealer.send(end(4))
        assert router.recv() == (dealer.identity, end(4))


def test_a_second_router_is_a_restarted_coordinator() -> None:
    network = Network()
    with closing(network.dealer()) as dealer:
        with closing(network.router()) as first:
            dealer.send(end(1))
        with closing(network.router()) as second:
            dealer.send(end(2))
            assert second.recv() == (dealer.identity, end(2))
            assert second.recv() is None
            assert first.closed


def test_poll_waits_for_messages_and_descriptors_of_another_thread() -> None:
    network = Network()
    read_fd, write_fd = os.pipe()
    try:
        with closing(network.router()) as router, closing(network.dealer()) as dealer:
            assert router.poll(0.0, (read_fd,)) == set()
            thread = threading.Thread(target=dealer.send, args=(end(1),))
            thread.start()
            assert router.recv(20.0) == (dealer.identity, end(1))
            thread.join()
            thread = threading.Thread(target=os.write, args=(write_fd, b"x"))
            thread.start()
            ready: set[int] = set()
            while not ready:
                ready = router.poll(20.0, (read_fd,))
            assert ready == {read_fd}
            thread.join()
    finally:
        os.close(read_fd)
        os.close(write_fd)
