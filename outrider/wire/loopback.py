"""Router and dealers in memory, for tests: the same interface and the same codec, and a fate for every packet.

    network = Network(fate)
    router, dealer = network.router(), network.dealer()

`fate(packet)` says after how many steps of the network's own clock copies of the packet arrive: (0,) at once, () never,
(0, 0) twice, (3,) after three calls of `step`, behind what was sent meanwhile. Ends may be used in different threads.
"""

from __future__ import annotations

import heapq
import select
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from outrider.errors import PeerFullError, PeerUnknownError, ProtocolError
from outrider.wire.base import take_within
from outrider.wire.codec import decode, encode
from outrider.wire.messages import Failure, Message
from outrider.wire.waker import Waker

ENDPOINT = "loopback"


@dataclass(frozen=True, slots=True)
class Packet:
    number: int  # counts the packets of the network
    peer: bytes  # the dealer's identity
    to_router: bool
    data: bytes

    @property
    def message(self) -> Message:
        """Raises ProtocolError for bytes that are none."""
        return decode(self.data)


Fate = Callable[[Packet], Sequence[int]]


def at_once(packet: Packet) -> Sequence[int]:
    return (0,)


class Network:
    """One router and its dealers. `hwm` is the most packets that wait at one end."""

    def __init__(self, fate: Fate = at_once, *, hwm: int = 512) -> None:
        self.fate, self.hwm = fate, hwm
        self._lock = threading.RLock()
        self._n_packets = self._clock = 0
        self._delayed: list[tuple[int, int, Packet]] = []  # a heap by (due, number)
        self._router: LoopbackRouter | None = None
        self._dealers: dict[bytes, LoopbackDealer] = {}

    def router(self) -> LoopbackRouter:
        """The coordinator's end. A second one takes the place of the first, like a restarted coordinator."""
        with self._lock:
            self._router = LoopbackRouter(self)
            return self._router

    def dealer(self) -> LoopbackDealer:
        """Another worker's or client's end, connected."""
        with self._lock:
            dealer = LoopbackDealer(self, b"peer-%d" % len(self._dealers))
            self._dealers[dealer.identity] = dealer
            return dealer

    def step(self, n: int = 1) -> int:
        """Let time pass; returns how many packets are still under way."""
        with self._lock:
            self._clock += n
            while self._delayed and self._delayed[0][0] <= self._clock:
                self._deliver(heapq.heappop(self._delayed)[2])
            return len(self._delayed)

    def transmit(self, peer: bytes, to_router: bool, data: bytes) -> None:
        """Raises PeerUnknownError or PeerFullError like a socket."""
        with self._lock:
            end = self._end(peer, to_router)
            if end is None:
                raise PeerUnknownError(f"no peer {peer!r}")
            if len(end.inbox) >= self.hwm:
                raise PeerFullError(f"peer {peer!r} does not read")
            packet = Packet(self._n_packets, peer, to_router, data)
            self._n_packets += 1
            for n_steps in self.fate(packet):
                if n_steps > 0:
                    heapq.heappush(self._delayed, (self._clock + n_steps, packet.number, packet))
                else:
                    self._deliver(packet)

    def lose(self, peer: bytes) -> None:
        """Drop what is under way to and from this dealer."""
        self._delayed = [entry for entry in self._delayed if entry[2].peer != peer]
        heapq.heapify(self._delayed)

    def _deliver(self, packet: Packet) -> None:
        end = self._end(packet.peer, packet.to_router)
        if end is not None:  # else it is lost with the connection
            end.inbox.append((packet.peer, packet.data))
            end.waker.wake()

    def _end(self, peer: bytes, to_router: bool) -> LoopbackRouter | LoopbackDealer | None:
        """The receiving end, if both ends stand."""
        dealer = self._dealers.get(peer)
        router = self._router
        if dealer is None or not dealer.connected or router is None or router.closed:
            return None
        return router if to_router else dealer


class _End:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.counts: Counter[str] = Counter()
        self.inbox: deque[tuple[bytes, bytes]] = deque()
        self.waker = Waker()
        self.closed = False

    def poll(self, timeout_s: float | None, fds: Collection[int] = (), *, outbound: bool = False) -> set[int]:
        self.waker.clear()
        poller = select.poll()
        for fd in (*fds, self.waker.fd):
            poller.register(fd, select.POLLIN)
        at_once = self.inbox or outbound
        ready = {fd for fd, _ in poller.poll(0 if at_once else None if timeout_s is None else timeout_s * 1000)}
        return ready & set(fds)

    def close(self) -> None:
        with self.network._lock:
            if not self.closed:
                self.closed = True
                self.waker.close()


class LoopbackRouter(_End):
    """Keeps `wire.base.Router`."""

    endpoint = ENDPOINT

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.traffic: Counter[str] = Counter()

    def recv(self, timeout_s: float = 0.0) -> tuple[bytes, Message] | None:
        return take_within(timeout_s, self._next_valid, self.poll)

    def send(self, peer: bytes, message: Message) -> None:
        self.send_bytes(peer, encode(message))

    def send_bytes(self, peer: bytes, data: bytes) -> None:
        """Any bytes, also such as no router would send."""
        self.network.transmit(peer, False, data)
        self.traffic["out"] += len(data)

    def _next_valid(self) -> tuple[bytes, Message] | None:
        while self.inbox:
            peer, data = self.inbox.popleft()
            self.traffic["in"] += len(data)
            try:
                return peer, decode(data)
            except ProtocolError as error:
                self.counts["malformed"] += 1
                self.send(peer, Failure(0, 0, 0, 0, 0, request=0, code="bad_request", reason=str(error)))
        return None


class LoopbackDealer(_End):
    """Keeps `wire.base.Dealer`."""

    def __init__(self, network: Network, identity: bytes) -> None:
        super().__init__(network)
        self.identity = identity
        self.n_connects, self.connected = 1, True
        self.refusal: str | None = None

    def adopt(self) -> None:
        pass

    def recv(self, timeout_s: float = 0.0) -> Message | None:
        return take_within(timeout_s, self._next_valid, self.poll)

    def send(self, message: Message) -> None:
        self.send_bytes(encode(message))

    def send_bytes(self, data: bytes) -> None:
        self.network.transmit(self.identity, True, data)

    def disconnect(self) -> None:
        """The connection breaks; what was under way is lost."""
        with self.network._lock:
            self.connected = False
            self.inbox.clear()
            self.network.lose(self.identity)
            self.waker.wake()

    def reconnect(self) -> None:
        with self.network._lock:
            self.n_connects, self.connected = self.n_connects + 1, True
            self.waker.wake()

    def close(self) -> None:
        self.connected = False
        super().close()

    def _next_valid(self) -> Message | None:
        while self.inbox:
            try:
                return decode(self.inbox.popleft()[1])
            except ProtocolError:
                self.counts["malformed"] += 1
        return None
