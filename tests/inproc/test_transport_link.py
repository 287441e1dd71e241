"""A worker's link, over the loopback and over a real socket: it greets, beats, hands on, and notices what breaks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from outrider.errors import ProtocolError
from outrider.wire import messages as m
from outrider.wire.base import Dealer, Router
from outrider.wire.link import WorkerLink
from outrider.wire.loopback import LoopbackDealer, Network
from outrider.wire.transport import (
    ClientKeys,
    DealerTransport,
    RouterTransport,
    generate_keys,
    load_client_keys,
    load_server_keys,
)
from tests.wire_harness import PATIENCE_S, poll_for

pytestmark = pytest.mark.usefixtures("no_leaks")

HELLO = m.Hello(m.PROTOCOL_VERSION, "draft", "draft", 1)
BEAT_S = 0.02
#: The coordinator that a test plays may be slow: only tests of silence count beats.
TIMES = {"hello_every_s": BEAT_S, "max_silent_beats": 10**6}
MessageT = TypeVar("MessageT", bound=m.Message)


def end(incarnation: int, session: int = 1) -> m.End:
    return m.End(incarnation, session, 1, 1, 1)


def failure(code: m.FailureCode, incarnation: int = 0) -> m.Failure:
    return m.Failure(incarnation, 0, 0, 0, 0, request=0, code=code, reason="why")


@dataclass
class Pair:
    """A coordinator's end, played by the test, and a worker's link."""

    router: Router
    dealer: Dealer
    link: WorkerLink

    def expect(
        self, kind: type[MessageT], accept: Callable[[MessageT], bool] = lambda _: True
    ) -> tuple[bytes, MessageT]:
        """The next message of this kind from the worker; others are read and forgotten."""

        def look() -> tuple[bytes, MessageT] | None:
            received = self.router.recv(0.1)
            if received is not None and isinstance(received[1], kind) and accept(received[1]):
                return received[0], received[1]
            return None

        found = poll_for(look)
        assert found is not None
        return found

    def welcome(self, incarnation: int, beat_s: float = BEAT_S) -> bytes:
        """Let the worker in; its identity."""
        peer, hello = self.expect(m.Hello)
        assert hello == HELLO
        self.router.send(peer, m.Welcome(m.PROTOCOL_VERSION, incarnation, beat_s))
        assert self.receive() == m.Welcome(m.PROTOCOL_VERSION, incarnation, beat_s)
        return peer

    def receive(self) -> m.Message:
        """The one message that the work thread gets."""
        (message,) = self.link.receive(PATIENCE_S)
        return message


@pytest.fixture(params=["loopback", "ipc"])
def pair(request: pytest.FixtureRequest, no_leaks: None) -> Iterator[Pair]:
    router: Router
    dealer: Dealer
    if request.param == "loopback":
        network = Network()
        router, dealer = network.router(), network.dealer()
    else:
        router = RouterTransport()
        dealer = DealerTransport(router.endpoint)
    with closing(router), WorkerLink(dealer, HELLO, **TIMES) as link:
        yield Pair(router, dealer, link)


@dataclass
class LoopbackPair(Pair):
    dealer: LoopbackDealer


@pytest.fixture
def loop(no_leaks: None) -> Iterator[LoopbackPair]:
    """A pair whose connection the test can break."""
    network = Network()
    dealer = network.dealer()
    with closing(network.router()) as router, WorkerLink(dealer, HELLO, **TIMES) as link:
        yield LoopbackPair(router, dealer, link)


def test_it_greets_until_it_is_let_in(pair: Pair) -> None:
    for _ in range(3):
        pair.expect(m.Hello)
    peer = pair.welcome(5)
    pair.expect(m.Heartbeat)
    pair.router.send(peer, end(5))
    assert pair.receive() == end(5)


def test_messages_go_both_ways_in_order(pair: Pair) -> None:
    peer = pair.welcome(5)
    for session in range(100):
        pair.router.send(peer, end(5, session))
    got: list[m.Message] = []
    while len(got) < 100:
        got += pair.link.receive(PATIENCE_S)
    assert got == [end(5, session) for session in range(100)]
    for session in range(100):
        pair.link.send(end(5, session))
    assert [pair.expect(m.End)[1] for _ in range(100)] == got


def test_receive_can_look_wait_and_time_out(pair: Pair) -> None:
    assert pair.link.receive() == []
    assert pair.link.receive(0.01) == []
    peer = pair.welcome(5)
    pair.router.send(peer, end(5))
    assert pair.link.receive(None) == [end(5)]


def test_heartbeats_carry_what_the_work_loop_reports(pair: Pair) -> None:
    peer = pair.welcome(5)
    pair.expect(m.Heartbeat, lambda beat: beat == m.Heartbeat(5, 0, 0))
    pair.link.report(n_waiting=3)
    pair.link.report(n_waiting=2)
    pair.expect(m.Heartbeat, lambda beat: beat == m.Heartbeat(5, 2, 2))
    # What the work loop has not even taken out waits too: this is how a stuck one shows.
    pair.router.send(peer, end(5))
    pair.expect(m.Heartbeat, lambda beat: beat == m.Heartbeat(5, 2, 3))
    pair.receive()
    pair.expect(m.Heartbeat, lambda beat: beat == m.Heartbeat(5, 2, 2))


def test_it_beats_while_the_work_thread_is_busy(pair: Pair) -> None:
    """This test's thread is the work thread, and it computes all the time."""
    pair.welcome(5)
    for _ in range(5):
        sum(range(100_000))
        pair.expect(m.Heartbeat, lambda beat: beat.progress == 0)


def test_an_unknown_incarnation_is_greeted_again_and_what_was_before_is_void(pair: Pair) -> None:
    peer = pair.welcome(5)
    pair.router.send(peer, failure("unknown_incarnation"))
    pair.welcome(6)
    pair.link.send(end(5))  # of the earlier connection: nobody waits for it
    pair.router.send(peer, end(5))
    pair.router.send(peer, end(6, 2))
    assert pair.receive() == end(6, 2)
    pair.link.send(end(6, 3))
    assert pair.expect(m.End)[1] == end(6, 3)
    assert pair.link.counts["stale"] == 2


def test_replies_before_the_welcome_are_void(pair: Pair) -> None:
    pair.link.send(end(5))
    pair.expect(m.Hello)
    poll_for(lambda: pair.link.counts["stale"] == 1)


def test_a_refusal_is_handed_on_and_nothing_is_said_after_it(pair: Pair) -> None:
    peer, _ = pair.expect(m.Hello)
    pair.router.send(peer, failure("refused"))
    assert pair.receive() == failure("refused")
    while pair.router.recv(3 * BEAT_S) is not None:
        pass  # Hellos that were under way
    assert pair.router.recv(3 * BEAT_S) is None


def test_a_coordinator_of_another_version_is_a_refusal(pair: Pair) -> None:
    peer, _ = pair.expect(m.Hello)
    pair.router.send(peer, m.Welcome(m.PROTOCOL_VERSION + 1, 5, BEAT_S))
    message = pair.receive()
    assert isinstance(message, m.Failure)
    assert message.code == "refused"
    assert "protocol" in message.reason


def test_failures_and_shutdown_are_handed_on_and_heartbeats_are_not(pair: Pair) -> None:
    peer = pair.welcome(5)
    for message in (m.Heartbeat(5, 0, 0), failure("bad_request"), m.Heartbeat(5, 0, 0), m.Shutdown(5, "end")):
        pair.router.send(peer, message)
    got: list[m.Message] = []
    while len(got) < 2:
        got += pair.link.receive(PATIENCE_S)
    assert got == [failure("bad_request"), m.Shutdown(5, "end")]


def test_a_silent_coordinator_is_greeted_again(no_leaks: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="outrider.wire")
    network = Network()
    dealer = network.dealer()
    with (
        closing(network.router()) as router,
        WorkerLink(dealer, HELLO, hello_every_s=BEAT_S, max_silent_beats=3) as link,
    ):
        pair = Pair(router, dealer, link)
        pair.welcome(5)
        pair.welcome(6)  # we said nothing after the first Welcome
    assert [record.getMessage() for record in caplog.records if "silent" in record.getMessage()]


def test_a_message_that_is_not_valid_is_an_error_where_it_is_made(pair: Pair) -> None:
    with pytest.raises(ProtocolError, match="probs"):
        pair.link.send(m.DraftTokens(1, 2, 3, 4, 5, 6, [1], [float("nan")], [0.0], [], True, 0, 1, 5))


def test_what_was_sent_just_before_closing_arrives(pair: Pair) -> None:
    pair.welcome(5)
    pair.link.send(end(5, 77))
    pair.link.close()
    pair.link.close()
    assert pair.expect(m.End)[1] == end(5, 77)


def test_requests_beyond_the_bound_are_dropped_and_counted_but_no_last_word(no_leaks: None) -> None:
    network = Network()
    with (
        closing(network.router()) as router,
        WorkerLink(network.dealer(), HELLO, **TIMES, max_inbox=3) as link,
    ):
        pair = Pair(router, network.dealer(), link)
        peer = pair.welcome(5)
        for session in range(10):
            router.send(peer, end(5, session))
        router.send(peer, m.Shutdown(5, "end"))
        poll_for(lambda: link.counts["overflow"] == 7)
        got: list[m.Message] = []
        while len(got) < 4:
            got += link.receive(PATIENCE_S)
        assert got == [*(end(5, session) for session in range(3)), m.Shutdown(5, "end")]
        pair.dealer.close()


def test_a_broken_connection_is_greeted_anew(loop: LoopbackPair) -> None:
    loop.welcome(5)
    loop.dealer.disconnect()
    loop.link.send(end(5))
    loop.dealer.reconnect()
    peer = loop.welcome(6)
    assert loop.link.counts["stale"] == 1
    loop.router.send(peer, end(6))
    assert loop.receive() == end(6)


def test_replies_wait_for_room(loop: LoopbackPair) -> None:
    """A coordinator that does not read for a while loses nothing."""
    loop.welcome(5)
    loop.dealer.network.hwm = 2
    for session in range(20):
        loop.link.send(end(5, session))
    assert [loop.expect(m.End)[1].session for _ in range(20)] == list(range(20))


class Broken(LoopbackDealer):
    def poll(self, *arguments: object, **options: object) -> set[int]:
        raise OSError("out of order")


def test_a_fault_at_the_socket_reaches_the_work_thread(no_leaks: None) -> None:
    with WorkerLink(Broken(Network(), b"x"), HELLO) as link, pytest.raises(OSError, match="out of order"):
        link.receive(None)


def test_a_fault_of_the_stand_in_reaches_the_work_thread(no_leaks: None) -> None:
    """The work thread must not go on while nobody beats for it."""
    with WorkerLink(Broken(Network(), b"x"), HELLO, **TIMES) as link:
        failed = poll_for(lambda: _error_of(link.receive))
    assert "stands in" in str(failed)
    assert isinstance(failed.__cause__, OSError)


def _error_of(call: Callable[[], object]) -> RuntimeError | None:
    try:
        call()
    except RuntimeError as error:
        return error
    return None


def test_it_beats_while_it_waits_for_messages(pair: Pair) -> None:
    """Then no other thread has the socket."""
    peer = pair.welcome(5)
    waiting = threading.Thread(target=lambda: got.extend(pair.link.receive(None)))
    got: list[m.Message] = []
    waiting.start()
    for _ in range(3):
        pair.expect(m.Heartbeat)
    pair.router.send(peer, end(5))
    waiting.join(PATIENCE_S)
    assert got == [end(5)]


def test_both_threads_at_the_socket_lose_nothing(pair: Pair) -> None:
    """The stand-in wakes all the time while messages go to and fro."""
    n_rounds = 300
    peer = pair.welcome(5, beat_s=0.005)
    answering = threading.Thread(target=lambda: _answer(pair.link, n_rounds))
    answering.start()
    for session in range(n_rounds):
        pair.router.send(peer, end(5, session))
        assert pair.expect(m.End)[1] == end(5, session)
    answering.join(PATIENCE_S)
    assert not answering.is_alive()


def _answer(link: WorkerLink, n: int) -> None:
    """Send back `n` messages, and compute a little between looking and waiting, so that the other thread has its turn."""
    while n:
        messages = link.receive() or link.receive(0.01)
        sum(range(1000))
        for message in messages:
            link.send(message)
            n -= 1


def test_a_coordinator_that_comes_later_and_one_that_comes_back(socket_folder: Path) -> None:
    endpoint = f"ipc://{socket_folder}/c"
    dealer = DealerTransport(endpoint)
    with WorkerLink(dealer, HELLO, **TIMES) as link:
        for incarnation in (5, 6):
            with closing(RouterTransport(endpoint)) as router:
                pair = Pair(router, dealer, link)
                peer = pair.welcome(incarnation, 30.0)  # it cannot be silence that it notices
                router.send(peer, end(incarnation))
                assert pair.receive() == end(incarnation)


def test_the_last_word_of_a_coordinator_arrives(pair: Pair) -> None:
    peer = pair.welcome(5)
    pair.router.send(peer, m.Shutdown(5, "end"))
    pair.router.close()
    assert pair.receive() == m.Shutdown(5, "end")


def test_an_unknown_key_is_a_refusal(tmp_path: Path) -> None:
    generate_keys(tmp_path, ["coordinator", "draft", "stranger"])
    keys: ClientKeys = load_client_keys(tmp_path, "stranger")
    with closing(RouterTransport("tcp://127.0.0.1:0", load_server_keys(tmp_path, ["draft"]))) as router:
        with WorkerLink(DealerTransport(router.endpoint, keys), HELLO) as link:
            got: list[m.Message] = []
            poll_for(lambda: router.recv(0.01) or got.extend(link.receive()) or got)
        (message,) = got
        assert isinstance(message, m.Failure)
        assert message.code == "refused"
        assert "coordinator.allow" in message.reason
