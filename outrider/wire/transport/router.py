"""The coordinator's socket."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter

import zmq

from outrider.errors import ConfigError, PeerFullError, PeerUnknownError, ProtocolError, SendError
from outrider.wire.base import take_within
from outrider.wire.codec import decode, encode
from outrider.wire.limited_log import LimitedLog
from outrider.wire.messages import Failure, FailureCode, Hello, Message
from outrider.wire.transport.admission import HANDSHAKE_FAILED, Admission
from outrider.wire.transport.endpoint import PRIVATE_IPC, listening
from outrider.wire.transport.keys import ServerKeys
from outrider.wire.transport.options import HWM
from outrider.wire.transport.owned import MAX_INVALID, NOBLOCK, SNDMORE, OwnedSocket, has_message

#: Peers whose invalid messages are counted one by one; the one that was quiet longest is forgotten first.
MAX_COUNTED_PEERS = 256


class RouterTransport(OwnedSocket):
    """ROUTER, bound. Keeps `wire.base.Router`.

    endpoint: "ipc" (a socket in a private folder that goes with it), "ipc:///PATH", or "tcp://HOST:PORT" (0: any free
    port), which takes `keys`. Raises ConfigError, naming the key and the remedy, if it cannot or should not listen.
    """

    def __init__(
        self,
        endpoint: str = PRIVATE_IPC,
        keys: ServerKeys | None = None,
        *,
        allow_remote: bool = False,
        hwm: int = HWM,
    ) -> None:
        super().__init__(zmq.ROUTER, listening(endpoint, has_keys=keys is not None, allow_remote=allow_remote), hwm)
        self.counts: Counter[str] = Counter()
        self.traffic: Counter[str] = Counter()
        self.invalid_by_peer: dict[bytes, int] = {}
        self._log = LimitedLog()
        self._admission: Admission | None = None
        try:
            if self._place.is_tcp and keys is not None:
                self._guard(keys)
            self._socket.bind(self._place.url)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"coordinator.listen = {endpoint!r}: {error.strerror}: choose another one") from None
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _guard(self, keys: ServerKeys) -> None:
        admission = self._admission = Admission(self._context, keys, self.counts)
        self._serve(admission.socket, admission.answer)
        admission.guard(self._socket, keys)
        monitor = self._socket.get_monitor_socket(HANDSHAKE_FAILED)
        self._serve(monitor, lambda: admission.read_failures(monitor))

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def recv(self, timeout_s: float = 0.0) -> tuple[bytes, Message] | None:
        self._claim()
        return take_within(timeout_s, self._next_valid, self.poll)

    def send(self, peer: bytes, message: Message) -> None:
        self._claim()
        data = encode(message)
        try:
            self._socket.send(peer, NOBLOCK | SNDMORE)
            self._socket.send(data, NOBLOCK)  # of one message: where the first frame went, this one goes
            self.traffic["out"] += len(data)
        except zmq.Again:
            self.counts["full"] += 1
            raise PeerFullError(f"peer {peer.hex()} does not read: {type(message).__name__} was not sent") from None
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise SendError(f"{type(message).__name__} was not sent: {error.strerror}") from None
            self.counts["unroutable"] += 1
            raise PeerUnknownError(f"no peer {peer.hex()}: {type(message).__name__} was not sent") from None

    def _next_valid(self) -> tuple[bytes, Message] | None:
        for _ in range(MAX_INVALID):
            if not has_message(self._socket):
                return None
            peer = self._socket.recv(NOBLOCK)
            frame, n_frames = self._recv_frame()
            try:
                return peer, self._message(frame, n_frames)
            except ProtocolError as error:
                self._refuse(peer, error)
        return None

    def _message(self, frame: zmq.Frame, n_frames: int) -> Message:
        if n_frames != 1:
            raise ProtocolError(f"a message is one frame, not {n_frames}")
        data = frame.bytes
        self.traffic["in"] += len(data)
        message = decode(data)
        if isinstance(message, Hello) and self._admission is not None:
            owner = frame.get("User-Id")
            if message.name != owner:
                raise WrongNameError(
                    f"the name {message.name!r} takes its own key; this connection has that of {owner!r}"
                )
        return message

    def _refuse(self, peer: bytes, error: ProtocolError) -> None:
        self.counts["malformed"] += 1
        n_invalid = self.invalid_by_peer.pop(peer, 0) + 1
        self.invalid_by_peer[peer] = n_invalid
        if len(self.invalid_by_peer) > MAX_COUNTED_PEERS:
            del self.invalid_by_peer[next(iter(self.invalid_by_peer))]
        self._log.warn("malformed", f"peer {peer.hex()} sent an invalid message (its {n_invalid}.): {error}")
        code: FailureCode = "refused" if isinstance(error, WrongNameError) else "bad_request"
        with contextlib.suppress(SendError):  # counted; it does not read, or is gone
            self.send(peer, Failure(0, 0, 0, 0, 0, request=0, code=code, reason=str(error)))


class WrongNameError(ProtocolError):
    """A Hello under a name that belongs to another key."""
