"""Who may connect over tcp: answers ZeroMQ's question about each public key (ZAP, rfc.zeromq.org/spec/27).

libzmq asks over an inproc socket of the same context while a handshake runs. We answer from the loop that owns the
coordinator's socket, so there is no thread for it. The answer's user id, the name of the key, comes back with every
message of that connection ("User-Id").
"""

from __future__ import annotations

from collections import Counter

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from outrider.wire.limited_log import LimitedLog
from outrider.wire.transport.keys import ServerKeys
from outrider.wire.transport.owned import has_message

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"outrider"
HANDSHAKE_FAILED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL


class Admission:
    """The handler. Bind it before the socket that it guards, or that would let everyone in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys, counts: Counter[str]) -> None:
        self._names = {key: name for name, key in keys.allowed.items()}
        self._counts, self._log = counts, LimitedLog()
        self.socket = context.socket(zmq.ROUTER)  # REP would do, but REP can be stuck half-way
        self.socket.linger = 0
        self.socket.bind(ZAP_ADDRESS)

    def guard(self, socket: zmq.Socket[bytes], keys: ServerKeys) -> None:
        """Make `socket` a CURVE server whose clients are asked about here."""
        socket.curve_server = True
        socket.curve_secretkey = keys.own.secret
        socket.curve_publickey = keys.own.public
        socket.zap_domain = ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler nobody comes in

    def answer(self) -> None:
        """Answer all questions that are there."""
        while has_message(self.socket):
            asker, _, version, request, _, address, _, mechanism, *credentials = self.socket.recv_multipart()
            key = z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
            name = self._names.get(key)
            if name is None:
                self.refused("key", f"{address.decode()} was refused: no name in coordinator.allow has its key {key!r}")
            verdict = [b"200", b"OK", name.encode()] if name is not None else [b"400", b"not allowed", b""]
            self.socket.send_multipart([asker, b"", version, request, *verdict, b""])

    def read_failures(self, monitor: zmq.Socket[bytes]) -> None:
        """Connections that never got so far as to show a key that can be asked about."""
        while has_message(monitor):
            recv_monitor_message(monitor)
            self.refused("handshake", "a connection was refused: it showed no key, or knows another key of ours")

    def refused(self, kind: str, text: str) -> None:
        self._counts["refused"] += 1
        self._log.warn(kind, text)
