"""How long the messages of one lockstep round take when nobody computes: coordinator → draft → coordinator → target → …

Three processes over ipc, the hops of one round, medians over interleaved runs:

    straight   bare ZeroMQ, small raw payloads; each worker is one thread that receives and sends
    threaded   the same with a network thread in each worker, which hands everything to a work thread and back
    messages   RouterTransport and WorkerLink with real messages: what Outrider adds to `threaded`

    python bench/pingpong.py [--rounds 2000] [--repeat 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from outrider.wire.link import WorkerLink
from outrider.wire.messages import (
    PROTOCOL_VERSION,
    DraftRequest,
    DraftTokens,
    Hello,
    Message,
    Shutdown,
    Verdict,
    VerifyRequest,
    Welcome,
)
from outrider.wire.transport import DealerTransport, RouterTransport

MODES = ("straight", "threaded", "messages")
PAYLOAD = bytes(60)  # about the size of a DraftTokens of three tokens
STOP = b"stop"
WARM_UP = 200
TIMEOUT_MS = 10_000


def measure(mode: str, n_rounds: int = 2000) -> float:
    """Median seconds per round."""
    times = sorted(_rounds(mode, n_rounds + WARM_UP)[WARM_UP:])
    return statistics.median(times)


def measure_all(n_rounds: int = 2000, repeat: int = 5) -> dict[str, float]:
    """Median over `repeat` interleaved runs of every mode, in seconds per round."""
    runs = [{mode: measure(mode, n_rounds) for mode in MODES} for _ in range(repeat)]
    return {mode: statistics.median(run[mode] for run in runs) for mode in MODES}


def _rounds(mode: str, n_rounds: int) -> list[float]:
    return _message_rounds(n_rounds) if mode == "messages" else _bare_rounds(n_rounds, _WORKERS[mode])


def _time(step: Callable[[], None], n: int) -> list[float]:
    times = []
    for _ in range(n):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


@contextmanager
def _two_processes(target: Callable[..., None], endpoint: str, names: tuple[str, str]) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=target, args=(endpoint, name), daemon=True) for name in names]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.join(5)
            process.kill()


# --- bare ZeroMQ -------------------------------------------------------------------------------------------------


def _bare_rounds(n_rounds: int, worker: Callable[[str, str], None]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger, router.rcvtimeo = 500, TIMEOUT_MS
        router.bind(f"ipc://{folder}/socket")

        def one_round() -> None:
            for peer in (b"draft", b"target"):
                router.send_multipart([peer, PAYLOAD])
                router.recv_multipart()

        with _two_processes(worker, f"ipc://{folder}/socket", ("draft", "target")):
            for _ in range(2):
                router.recv_multipart()  # both are there
            times = _time(one_round, n_rounds)
            for peer in (b"draft", b"target"):
                router.send_multipart([peer, STOP])
        return times


@contextmanager
def _bare_dealer(endpoint: str, name: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.rcvtimeo, dealer.identity = 0, TIMEOUT_MS, name.encode()
        dealer.connect(endpoint)
        dealer.send(b"here")
        yield dealer


def _straight_worker(endpoint: str, name: str) -> None:
    with _bare_dealer(endpoint, name) as dealer:
        while (data := dealer.recv()) != STOP:
            dealer.send(data)


def _threaded_worker(endpoint: str, name: str) -> None:
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    outbox: deque[bytes] = deque()
    read_fd, write_fd = os.pipe()

    def work() -> None:
        while (data := inbox.get()) != STOP:
            outbox.append(data)
            os.write(write_fd, b"\0")

    thread = threading.Thread(target=work)
    thread.start()
    with _bare_dealer(endpoint, name) as dealer:
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        poller.register(read_fd, zmq.POLLIN)
        data = b""
        while data != STOP:
            ready = dict(poller.poll(TIMEOUT_MS))
            if read_fd in ready:
                os.read(read_fd, 4096)
                while outbox:
                    dealer.send(outbox.popleft())
            if dealer in ready:
                data = dealer.recv()
                inbox.put(data)
    thread.join()


_WORKERS = {"straight": _straight_worker, "threaded": _threaded_worker}


# --- our messages ------------------------------------------------------------------------------------------------


def _message_rounds(n_rounds: int) -> list[float]:
    router = RouterTransport()
    try:
        with _two_processes(_message_worker, router.endpoint, ("draft", "target")):
            peers = _welcome_both(router)

            def one_round() -> None:
                ids = (1, 1, 1, 1, 100)
                _ask(
                    router,
                    peers["draft"],
                    DraftRequest(*ids, 7, 99, [5], 3, 0, p_min=0.0, credit=0, n_branches=0, with_probs=False),
                )
                _ask(router, peers["target"], VerifyRequest(*ids, 7, 99, [5], draft=[1, 2, 3], credit=0, goes_on=False))

            times = _time(one_round, n_rounds)
            for peer in peers.values():
                router.send(peer, Shutdown(1, "done"))
        return times
    finally:
        router.close()


def _welcome_both(router: RouterTransport) -> dict[str, bytes]:
    peers: dict[str, bytes] = {}
    while len(peers) < 2:
        received = router.recv(TIMEOUT_MS / 1000)
        assert received is not None, "a worker did not come"
        peer, message = received
        if isinstance(message, Hello):
            peers[message.name] = peer
            router.send(peer, Welcome(PROTOCOL_VERSION, 1, 60.0))
    return peers


def _ask(router: RouterTransport, peer: bytes, message: Message) -> None:
    router.send(peer, message)
    received = router.recv(TIMEOUT_MS / 1000)
    assert received is not None, "a worker does not answer"
    assert isinstance(received[1], DraftTokens | Verdict), received


def _message_worker(endpoint: str, name: str) -> None:
    with WorkerLink(DealerTransport(endpoint), Hello(PROTOCOL_VERSION, "draft", name, os.getpid())) as link:
        while True:
            for message in link.receive(None):
                match message:
                    case DraftRequest():
                        link.send(_draft_tokens(message))
                    case VerifyRequest():
                        link.send(_verdict(message))
                    case Shutdown():
                        return


def _draft_tokens(request: DraftRequest) -> DraftTokens:
    ids = (request.incarnation, request.session, request.round, request.epoch, request.committed_len)
    return DraftTokens(*ids, 100, [1, 2, 3], [], [], [], True, 0, 3, 20_000)


def _verdict(request: VerifyRequest) -> Verdict:
    ids = (request.incarnation, request.session, request.round, request.epoch, request.committed_len)
    return Verdict(
        *ids,
        ahead=False,
        n_tested=3,
        accepted=3,
        tokens=[1, 2, 3, 4],
        pieces=[b"piece"] * 4,
        end_of_text=False,
        row_hashes=[],
        n_reused=99,
        n_evaluated=4,
        decode_us=60_000,
        n_sessions=1,
        n_rows=4,
        logprobs=[],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seconds = measure_all(arguments.rounds, arguments.repeat)
    if arguments.json:
        print(json.dumps({f"{mode}_us": round(value * 1e6, 1) for mode, value in seconds.items()}))
        return
    for mode, value in seconds.items():
        print(f"{mode:10} {value * 1e6:7.1f} us per round   {value / seconds['straight']:.2f} x straight")


if __name__ == "__main__":
    main()
