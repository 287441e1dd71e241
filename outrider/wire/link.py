"""A worker's link to its coordinator: a network thread owns the socket, a work thread computes.

    work thread                                   network thread
    receive() ◀── inbox ──────────────────────── decoded messages of this connection
    send() ────── outbox, wakes ───────────────▶ bytes, while that connection stands
    report() ──── two numbers ─────────────────▶ Heartbeat

The network thread greets, beats and notices by itself (`link_state`), however long the work thread computes.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from types import TracebackType

from outrider.errors import SendError
from outrider.wire.base import Dealer
from outrider.wire.codec import encode
from outrider.wire.link_state import MAX_SILENT_BEATS, LinkState
from outrider.wire.messages import PROTOCOL_VERSION, Failure, Heartbeat, Hello, Message, Shutdown, Welcome
from outrider.wire.waker import Waker

_log = logging.getLogger("outrider.wire")

#: Messages that matter to a work thread however much it has to do.
_ALWAYS = (Welcome, Failure, Shutdown)


class WorkerLink:
    """Starts its thread at once and takes over `dealer`; `close` (or the end of `with`) ends both.

    `receive`, `send`, `report` and `close` belong to the work thread. A Welcome is handed on like any other message: it
    means that sessions from before are void, and the worker answers it with Ready as soon as its model is loaded. So is
    a Failure `refused` and a Shutdown, after which the worker should end.
    counts: "stale" messages of another connection, dropped in either direction; "overflow": requests dropped while
    `max_inbox` wait for a work thread that is stuck (the coordinator asks again); and what the dealer counts.
    """

    def __init__(
        self,
        dealer: Dealer,
        hello: Hello,
        *,
        hello_every_s: float = 0.5,
        max_silent_beats: int = MAX_SILENT_BEATS,
        max_inbox: int = 1024,
    ) -> None:
        self.counts = dealer.counts
        self._dealer, self._hello, self._max_inbox = dealer, hello, max_inbox
        self._state = LinkState(hello_every_s, max_silent_beats)
        self._n_connects = 0
        self._inbox: queue.SimpleQueue[Message | BaseException] = queue.SimpleQueue()
        self._outbox: deque[tuple[int, bytes]] = deque()
        self._progress = self._n_waiting = 0
        self._waker = Waker()
        self._wake_fds = (self._waker.fd,)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="outrider-link", daemon=True)
        self._thread.start()

    # --- the work thread's side ----------------------------------------------------------------------------------

    def receive(self, timeout_s: float | None = 0.0) -> list[Message]:
        """All messages that are there; if none are, waits for one (None: for ever)."""
        try:
            messages = [self._take(timeout_s)]
        except queue.Empty:
            return []
        messages += [self._take(0.0) for _ in range(self._inbox.qsize())]  # only this thread takes any out
        return messages

    def _take(self, timeout_s: float | None) -> Message:
        item = self._inbox.get(timeout_s is None or timeout_s > 0.0, timeout_s)
        if isinstance(item, BaseException):
            raise RuntimeError("the network thread has failed") from item
        return item

    def send(self, message: Message) -> None:
        """Queue a message. Raises ProtocolError if it is not valid. One of an earlier connection is dropped: its
        coordinator has given it up."""
        incarnation: int = getattr(message, "incarnation", 0)
        self._outbox.append((incarnation, encode(message)))
        self._waker.wake()

    def report(self, n_waiting: int) -> None:
        """One more message handled or decode finished; `n_waiting` requests are not yet answered."""
        self._n_waiting = n_waiting
        self._progress += 1

    def close(self) -> None:
        """Send what is queued, close the socket, end the thread. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._waker.wake()
        self._thread.join()
        self._waker.close()

    def __enter__(self) -> WorkerLink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- the network thread's side -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                # In the order of haste: what follows `_hear` holds up the work thread, for both need the interpreter.
                self._notice_connection()
                self._push()
                self._speak()
                self._hear()
                self._wait()
            self._push()  # what was sent just before close
        except BaseException as error:  # the work thread must not wait for a thread that is gone
            self._inbox.put(error)
        finally:
            self._dealer.close()

    def _wait(self) -> None:
        timeout_s = self._state.wait_s(time.monotonic())
        stuck = bool(self._outbox) and self._dealer.connected
        if self._dealer.poll(timeout_s, self._wake_fds, outbound=stuck):
            self._waker.clear()

    def _notice_connection(self) -> None:
        stands = self._dealer.connected
        if self._dealer.n_connects != self._n_connects or (self._state.incarnation and not stands):
            self._n_connects = self._dealer.n_connects
            self._state.connection(stands, time.monotonic())
        if self._dealer.refusal is not None and not self._state.refused:
            self._state.refuse(time.monotonic())
            self._inbox.put(_refused(self._dealer.refusal))

    def _hear(self) -> None:
        message = self._dealer.recv()  # one a turn: `_wait` returns at once while there are more
        if message is None:
            return
        meaning = self._state.hear(message, time.monotonic())
        if meaning == "stale":
            self.counts["stale"] += 1
        elif meaning == "foreign":
            reason = f"the coordinator does not speak protocol {PROTOCOL_VERSION}: bring both to one version"
            self._inbox.put(_refused(reason))
        elif meaning == "forward" and (self._inbox.qsize() < self._max_inbox or isinstance(message, _ALWAYS)):
            self._inbox.put(message)
        elif meaning == "forward":
            self.counts["overflow"] += 1

    def _speak(self) -> None:
        n_silences = self._state.n_silences
        match self._state.word_due(time.monotonic()):
            case "hello":
                self._say(self._hello)
            case "heartbeat":
                n_waiting = self._n_waiting + self._inbox.qsize()
                self._say(Heartbeat(self._state.incarnation, self._progress, n_waiting))
        if self._state.n_silences > n_silences:
            _log.warning("the coordinator has fallen silent; greeting it again")

    def _say(self, message: Message) -> None:
        with contextlib.suppress(SendError):  # the next one is due soon
            self._dealer.send(message)

    def _push(self) -> None:
        while self._outbox:
            incarnation, data = self._outbox[0]
            if incarnation != self._state.incarnation:
                self.counts["stale"] += 1
            else:
                try:
                    self._dealer.send_bytes(data)
                except SendError:
                    return  # tried again when there is room, or dropped when the connection is gone
            self._outbox.popleft()


def _refused(reason: str) -> Failure:
    """What a coordinator would say that refuses us."""
    return Failure(0, 0, 0, 0, 0, request=0, code="refused", reason=reason)
