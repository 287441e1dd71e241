"""The socket of a worker or a client."""

from __future__ import annotations

import os
from collections import Counter

import zmq
from zmq.utils.monitor import recv_monitor_message

from outrider.errors import ConfigError, PeerFullError, PeerUnknownError, ProtocolError
from outrider.wire.base import take_within
from outrider.wire.codec import decode, encode
from outrider.wire.limited_log import LimitedLog
from outrider.wire.messages import Message
from outrider.wire.transport.endpoint import connecting
from outrider.wire.transport.keys import ClientKeys
from outrider.wire.transport.options import HWM
from outrider.wire.transport.owned import MAX_INVALID, NOBLOCK, OwnedSocket, has_message

_REFUSED = zmq.Event.HANDSHAKE_FAILED_AUTH
_FAILED = {
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "it speaks another protocol, or its key is another one (coordinator.keys)",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "it cut the connection: is coordinator.key its public key?",
}
_EVENTS = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | _REFUSED | sum(_FAILED)


class DealerTransport(OwnedSocket):
    """DEALER, connecting again by itself until it is refused. Keeps `wire.base.Dealer`.

    The identity is random: a restarted process is another peer. Raises ConfigError for an address that it must not use.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None = None, *, hwm: int = HWM) -> None:
        super().__init__(zmq.DEALER, connecting(endpoint, has_keys=keys is not None), hwm)
        self.counts: Counter[str] = Counter()
        self.identity = b"o" + os.urandom(15)  # a leading zero is libzmq's own
        self.n_connects, self.connected = 0, False
        self.refusal: str | None = None
        self._log = LimitedLog()
        self._socket.identity = self.identity
        try:
            if self._place.is_tcp and keys is not None:
                self._socket.curve_publickey = keys.own.public
                self._socket.curve_secretkey = keys.own.secret
                self._socket.curve_serverkey = keys.server
            self._monitor = self._socket.get_monitor_socket(_EVENTS)
            self._serve(self._monitor, self._read_events)
            self._socket.connect(self._place.url)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"coordinator.address = {endpoint!r}: {error.strerror}") from None

    def recv(self, timeout_s: float = 0.0) -> Message | None:
        self._claim()
        return take_within(timeout_s, self._next_valid, self.poll)

    def send(self, message: Message) -> None:
        self.send_bytes(encode(message))

    def send_bytes(self, data: bytes) -> None:
        self._claim()
        self._read_events()  # the connection may have ended since the last `poll`
        if not self.connected:
            # libzmq would keep it for whichever coordinator comes next.
            raise PeerUnknownError(f"there is no connection to {self._place.url} now")
        try:
            self._socket.send(data, NOBLOCK)
        except zmq.Again:
            raise PeerFullError(f"the coordinator at {self._place.url} does not read") from None

    def _next_valid(self) -> Message | None:
        for _ in range(MAX_INVALID):
            if not has_message(self._socket):
                return None
            frame, n_frames = self._recv_frame()
            try:
                if n_frames != 1:
                    raise ProtocolError(f"a message is one frame, not {n_frames}")
                return decode(frame.bytes)
            except ProtocolError as error:
                self.counts["malformed"] += 1
                self._log.warn("malformed", f"the coordinator sent an invalid message: {error}")
        return None

    def _read_events(self) -> None:
        while has_message(self._monitor):
            event = zmq.Event(recv_monitor_message(self._monitor)["event"])
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self.n_connects, self.connected = self.n_connects + 1, True
            elif event == zmq.Event.DISCONNECTED:
                self.connected = False
            elif event == _REFUSED:  # libzmq does not try again after this
                self.refusal = (
                    f"the coordinator at {self._place.url} does not know our key: add it to coordinator.allow"
                )
            else:
                self.counts["refused"] += 1
                self._log.warn("handshake", f"no connection to {self._place.url}: {_FAILED[event]}; trying again")
