"""Router and dealer over ipc: what goes through, what is refused, and that nothing ever blocks or gets lost in silence."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from outrider.errors import ConfigError, PeerFullError, PeerUnknownError, ProtocolError
from outrider.wire import messages as m
from outrider.wire.codec import MAX_MESSAGE_BYTES, encode
from outrider.wire.transport import DealerTransport, RouterTransport, router
from tests.wire_harness import Ends, ends, poll_for, rss_bytes
from tests.wire_samples import SAMPLES

pytestmark = pytest.mark.usefixtures("no_leaks")

END = m.End(1, 2, 3, 4, 5)


def received(router: RouterTransport, timeout_s: float = 10.0) -> tuple[bytes, m.Message]:
    item = router.recv(timeout_s)
    assert item is not None
    return item


def raw(dealer: DealerTransport, *frames: bytes) -> None:
    """Any frames, past the codec."""
    dealer._socket.send_multipart(list(frames))


def long_message(n_tokens: int = 20_000) -> m.Process:
    return m.Process(1, 2, 3, 4, 5, 6, 0, [2**31 - 1] * n_tokens)


def fill(send: Callable[[], None]) -> int:
    """Send until the other end takes no more; how many it took."""
    for n_sent in range(1000):
        try:
            send()
        except PeerFullError:
            return n_sent
    pytest.fail("it takes messages without end")


@contextmanager
def deaf_peer(router: RouterTransport) -> Iterator[tuple[zmq.Socket[bytes], bytes]]:
    """A peer that takes four messages and reads none; its socket and identity."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvhwm, socket.rcvtimeo = 0, 4, 10_000
        socket.connect(router.endpoint)
        socket.send(encode(END))
        yield socket, received(router)[0]


# --- what goes through -------------------------------------------------------------------------------------------


def test_every_message_goes_both_ways_in_order() -> None:
    with ends() as e:
        dealer = e.dealer()
        for message in SAMPLES.values():
            dealer.send(message)
        for message in SAMPLES.values():
            assert received(e.router) == (dealer.identity, message)
        for message in SAMPLES.values():
            e.router.send(dealer.identity, message)
        for message in SAMPLES.values():
            assert dealer.recv(10.0) == message


def test_peers_are_told_apart_by_random_identities() -> None:
    with ends() as e:
        dealers = [e.dealer() for _ in range(3)]
        assert len({dealer.identity for dealer in dealers}) == 3
        for i, dealer in enumerate(dealers):
            dealer.send(m.End(i, 2, 3, 4, 5))
        got = dict(received(e.router) for _ in dealers)
        assert got == {dealer.identity: m.End(i, 2, 3, 4, 5) for i, dealer in enumerate(dealers)}
        for i, dealer in enumerate(dealers):
            e.router.send(dealer.identity, m.End(i, 9, 9, 9, 9))
        assert [dealer.recv(10.0) for dealer in dealers] == [m.End(i, 9, 9, 9, 9) for i in range(3)]


def test_receiving_ends_without_a_message() -> None:
    with ends() as e:
        dealer = e.dealer()
        assert e.router.recv() is None
        assert e.router.recv(0.01) is None
        assert dealer.recv() is None
        assert dealer.recv(0.01) is None


def test_poll_also_watches_descriptors() -> None:
    read_fd, write_fd = os.pipe()
    other_read, other_write = os.pipe()
    try:
        with ends() as e:
            dealer = e.dealer()
            assert e.router.poll(0.0, (read_fd, other_read)) == set()
            os.write(write_fd, b"x")
            assert e.router.poll(10.0, (read_fd, other_read)) == {read_fd}
            os.write(other_write, b"x")
            assert e.router.poll(10.0, [other_read]) == {other_read}
            assert e.router.poll(10.0, {read_fd, other_read}) == {read_fd, other_read}
            dealer.send(END)
            assert e.router.poll(10.0) == set()  # not of the descriptors, which are not watched any more
            assert e.router.recv() == (dealer.identity, END)
    finally:
        for fd in (read_fd, write_fd, other_read, other_write):
            os.close(fd)


def test_what_is_sent_at_once_after_the_start_arrives() -> None:
    """No message of ours is a broadcast that may go before its subscribers are there."""
    with ends() as e:
        for _ in range(5):
            dealer = e.dealer()
            dealer.send(SAMPLES["Hello"])
            e.router.send(dealer.identity, SAMPLES["Shutdown"])
            assert received(e.router) == (dealer.identity, SAMPLES["Hello"])
            assert dealer.recv(10.0) == SAMPLES["Shutdown"]


def test_an_answer_that_comes_late_blocks_nothing() -> None:
    """After a request that was not answered in time the next one can be sent, and both answers come, told apart."""
    with ends() as e:
        dealer = e.dealer()
        e.router.send(dealer.identity, m.End(1, 1, 1, 1, 1))
        assert e.router.recv(0.01) is None
        e.router.send(dealer.identity, m.End(1, 2, 2, 2, 2))
        for _ in range(2):
            request = dealer.recv(10.0)
            assert request is not None
            dealer.send(request)
        assert [received(e.router)[1] for _ in range(2)] == [m.End(1, 1, 1, 1, 1), m.End(1, 2, 2, 2, 2)]


# --- what is refused ---------------------------------------------------------------------------------------------

MALFORMED: dict[str, tuple[bytes, ...]] = {
    "nothing": (b"",),
    "one frame too many": (encode(END), b""),
    "request envelope": (b"", encode(END)),
    "ten thousand frames": (b"x",) * 10_000,
    "random bytes": (bytes(range(255, 155, -1)),),
    "cut": (encode(SAMPLES["Verdict"])[:-1],),
    "an integer for a list": (encode(SAMPLES["TokenizeResult"])[:4] + b"\x05",),
    "a million elements": (b"\xdd\x00\x0f\x42\x40" + bytes(1_000_000),),
    "unknown tag": (b"\x92\x7f\x01",),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_counted_and_answered_once_and_the_others_served(name: str) -> None:
    with ends() as e:
        good, bad = e.dealer(), e.dealer()
        raw(bad, *MALFORMED[name])
        good.send(END)
        assert received(e.router) == (good.identity, END)
        poll_for(lambda: e.router.recv() or e.router.counts["malformed"] == 1)
        assert e.router.invalid_by_peer == {bad.identity: 1}
        answer = bad.recv(10.0)
        assert isinstance(answer, m.Failure)
        assert (answer.code, answer.incarnation, answer.session) == ("bad_request", 0, 0)
        assert answer.reason
        assert bad.recv(0.01) is None
        bad.send(END)
        assert received(e.router) == (bad.identity, END)


def test_a_flood_of_malformed_messages_does_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_INVALID", 3)
    with ends() as e:
        good, bad = e.dealer(), e.dealer()
        for _ in range(30):
            raw(bad, b"junk")
        good.send(END)
        delivered = []
        while e.router.counts["malformed"] < 30 or not delivered:
            before = e.router.counts["malformed"]
            item = e.router.recv(0.0)
            delivered += [item] if item else []
            assert e.router.counts["malformed"] <= before + 3
        assert delivered == [(good.identity, END)]


def test_the_count_of_malformed_messages_by_peer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_COUNTED_PEERS", 2)
    with ends() as e:
        dealers = [e.dealer() for _ in range(3)]
        for i in (0, 1, 0, 2):
            raw(dealers[i], b"junk")
            poll_for(
                lambda before=e.router.counts["malformed"]: e.router.recv() or e.router.counts["malformed"] > before
            )
        assert e.router.invalid_by_peer == {dealers[0].identity: 2, dealers[2].identity: 1}


def test_a_dealer_counts_malformed_messages_and_lives_on() -> None:
    with ends() as e:
        dealer = e.dealer()
        for frames in MALFORMED.values():
            e.router._socket.send_multipart([dealer.identity, *frames])
        e.router.send(dealer.identity, END)
        assert poll_for(dealer.recv) == END
        assert dealer.counts["malformed"] == len(MALFORMED)


def test_a_message_too_large_is_refused_before_it_leaves() -> None:
    message = m.Tokenize(1, 2, "x" * (1 << 22), [m.ChatMessage("user", "x" * (1 << 22))], True, True, False)
    with ends() as e:
        dealer = e.dealer()
        with pytest.raises(ProtocolError, match=str(MAX_MESSAGE_BYTES)):
            dealer.send(message)
        with pytest.raises(ProtocolError, match=str(MAX_MESSAGE_BYTES)):
            e.router.send(dealer.identity, message)


def test_a_frame_too_large_cuts_the_connection_of_its_sender_alone() -> None:
    with ends() as e:
        good, bad = e.dealer(), e.dealer()
        raw(bad, bytes(MAX_MESSAGE_BYTES + 1))
        poll_for(lambda: e.served(bad) and bad.n_connects == 2)
        good.send(END)
        assert received(e.router) == (good.identity, END)


# --- peers that are not there, or do not read --------------------------------------------------------------------


def test_sending_to_nobody_is_an_error() -> None:
    with ends() as e:
        with pytest.raises(PeerUnknownError, match="End"):
            e.router.send(b"made up", END)
        dealer = e.dealer()
        dealer.close()
        poll_for(lambda: _is_unknown(e.router, dealer.identity))
        assert e.router.counts["unroutable"] >= 2


def _is_unknown(router: RouterTransport, peer: bytes) -> bool:
    router.poll(0.001)
    try:
        router.send(peer, END)
    except PeerUnknownError:
        return True
    return False


def test_a_peer_that_does_not_read_fills_up_and_says_so_while_others_are_served() -> None:
    with ends(hwm=4) as e, deaf_peer(e.router) as (deaf, peer):
        good = e.dealer()
        n_sent = fill(lambda: e.router.send(peer, long_message()))
        assert n_sent < 100
        assert e.router.counts["full"] == 1
        e.router.send(good.identity, END)
        assert good.recv(10.0) == END
        # What was handed over arrives, whole and in order, as soon as it reads again.
        assert [deaf.recv() for _ in range(n_sent)] == [encode(long_message())] * n_sent


def test_a_coordinator_that_does_not_read_fills_up_and_says_so() -> None:
    with ends(hwm=4) as e:
        dealer = e.dealer(hwm=4)
        n_sent = fill(lambda: dealer.send(long_message()))
        assert n_sent < 100
        assert [received(e.router)[1] for _ in range(n_sent)] == [long_message()] * n_sent


@pytest.mark.parametrize("n_tokens", [1, 20_000])
def test_a_full_queue_whose_connection_breaks_does_not_abort_the_process(n_tokens: int) -> None:
    """libzmq 4.3.5 often would, did the coordinator send pings (see `transport/options.py`)."""
    with ends(hwm=4) as e:
        dealer, other = e.dealer(hwm=4), e.dealer()
        fill(lambda: dealer.send(long_message(n_tokens)))
        dealer.close()  # takes as long as LINGER, which is time for a ping
        other.send(END)
        poll_for(lambda: received(e.router) == (other.identity, END))


def test_a_dealer_without_a_coordinator_queues_nothing(socket_folder: Path) -> None:
    with closing(DealerTransport(f"ipc://{socket_folder}/c")) as dealer:
        dealer.poll(0.01)
        assert not dealer.connected
        with pytest.raises(PeerUnknownError):
            dealer.send(END)


def test_a_coordinator_that_comes_back_is_found_again(socket_folder: Path) -> None:
    endpoint = f"ipc://{socket_folder}/c"
    with closing(DealerTransport(endpoint)) as dealer:
        for n_connects in (1, 2, 3):
            with closing(RouterTransport(endpoint)) as router:
                e = Ends(None, router)  # type: ignore[arg-type]
                poll_for(lambda e=e, n=n_connects: e.served(dealer) and dealer.n_connects == n)
                dealer.send(m.End(n_connects, 2, 3, 4, 5))
                assert received(router) == (dealer.identity, m.End(n_connects, 2, 3, 4, 5))
            poll_for(lambda: dealer.poll(0.001) or not dealer.connected)
            with pytest.raises(PeerUnknownError):
                dealer.send(END)  # nothing stale waits for the next coordinator


def test_a_second_peer_with_a_taken_identity_gets_nothing_and_the_first_works_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "urandom", lambda n: b"i" * n)
    with ends() as e:
        first = e.dealer()
        first.send(m.End(1, 1, 1, 1, 1))
        assert received(e.router)[1] == m.End(1, 1, 1, 1, 1)
        second = e.unconnected()
        assert second.identity == first.identity
        for _ in range(50):  # let it try
            e.served(second)
        if second.connected:
            second.send_bytes(encode(m.End(2, 2, 2, 2, 2)))
        e.router.send(first.identity, END)
        assert first.recv(10.0) == END
        first.send(END)
        assert received(e.router) == (first.identity, END)
        assert e.router.recv(0.05) is None
        assert second.recv(0.05) is None


# --- closing, threads, memory ------------------------------------------------------------------------------------


def test_closing_does_not_wait_for_a_peer_that_does_not_read() -> None:
    with ends(hwm=4) as e, deaf_peer(e.router) as (_, peer):
        dealer = e.dealer(hwm=4)
        fill(lambda: e.router.send(peer, long_message()))
        fill(lambda: dealer.send(long_message()))
        for end in (e.router, dealer):
            start = time.monotonic()
            end.close()
            assert time.monotonic() - start < 1.0
            end.close()  # a second time is nothing


def test_closing_does_not_wait_for_a_coordinator_that_never_was(socket_folder: Path) -> None:
    dealer = DealerTransport(f"ipc://{socket_folder}/c")
    dealer.poll(0.01)
    start = time.monotonic()
    dealer.close()
    assert time.monotonic() - start < 1.0


def test_what_was_sent_just_before_closing_arrives() -> None:
    with ends() as e:
        dealer = e.dealer()
        e.router.send(dealer.identity, SAMPLES["Shutdown"])
        e.router.close()
        assert dealer.recv(10.0) == SAMPLES["Shutdown"]


def test_a_second_thread_is_kept_out() -> None:
    """libzmq aborts the process where two threads share a socket; we say whose fault it is."""
    with ends() as e:
        dealer = e.dealer()
        errors: list[str] = []

        def intrude(call: Any) -> None:
            try:
                call()
            except AssertionError as error:
                errors.append(str(error))

        calls = [e.router.recv, lambda: e.router.send(dealer.identity, END), lambda: e.router.poll(0.0), dealer.recv]
        for call in calls:
            thread = threading.Thread(target=intrude, args=(call,))
            thread.start()
            thread.join()
        assert len(errors) == 4
        assert all("thread" in error for error in errors)


def test_a_closed_socket_is_not_used() -> None:
    with ends() as e:
        e.router.close()
        with pytest.raises(AssertionError, match="closed"):
            e.router.recv()


def test_large_messages_are_not_kept_alive() -> None:
    message = m.Chunk(1, 2, "x" * (1 << 22))  # 4 MiB
    with ends() as e:
        dealer = e.dealer()
        before = 0
        for i in range(45):
            dealer.send(message)
            assert received(e.router)[1] == message
            if i == 4:
                before = rss_bytes()
        assert rss_bytes() - before < 80_000_000


# --- where it listens --------------------------------------------------------------------------------------------


def test_the_private_folder_is_private_and_goes_with_its_socket() -> None:
    with ends() as e:
        path = Path(e.router.endpoint.removeprefix("ipc://"))
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_ISSOCK(path.stat().st_mode)
    assert not path.parent.exists()


def test_a_socket_in_use_is_not_taken_over_but_a_stale_one_is(socket_folder: Path) -> None:
    endpoint = f"ipc://{socket_folder}/c"
    with ends(endpoint) as e:
        dealer = e.dealer()
        with pytest.raises(ConfigError, match="another process listens"):
            RouterTransport(endpoint)
        dealer.send(END)
        assert received(e.router) == (dealer.identity, END)
    (socket_folder / "c").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:  # leaves its file behind, like a killed process
        dead.bind(str(socket_folder / "c"))
    with ends(endpoint) as e:
        e.dealer().send(END)
        assert received(e.router)[1] == END


def test_many_starts_and_stops_leave_nothing() -> None:
    for _ in range(20):
        with ends() as e:
            e.dealer().send(END)
            received(e.router)
