"""A worker's link to its coordinator, for one work thread and a second thread that stands in while it computes.

    receive()     the work thread waits at the socket itself, and greets and beats when that is due
    send()        it writes to the socket itself
    report()      two numbers for the next Heartbeat
    computing     the stand-in wakes when a word is due, takes in what has come, and says the word

Whoever uses the socket holds the lock, the work thread also while it waits. So a message costs no change of threads, and
the coordinator hears of a worker however long it computes. What is said, and when, `link_state` knows.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from types import TracebackType

from outrider.errors import SendError
from outrider.wire.base import Dealer
from outrider.wire.codec import encode
from outrider.wire.link_state import MAX_SILENT_BEATS, LinkState
from outrider.wire.messages import PROTOCOL_VERSION, Failure, Heartbeat, Hello, Message, Shutdown, Welcome

_log = logging.getLogger("outrider.wire")

#: Messages that matter to a work thread however much it has to do.
_ALWAYS = (Welcome, Failure, Shutdown)
#: The stand-in sleeps at least so long: what is overdue while the work thread has the socket is said by that one.
_MIN_SLEEP_S = 0.005


class WorkerLink:
    """Starts the stand-in at once and takes over `dealer`; `close` (or the end of `with`) ends both.

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
        self._inbox: deque[Message] = deque()
        self._outbox: deque[tuple[int, bytes]] = deque()
        self._progress = self._n_waiting = 0
        self._lock = threading.Lock()
        self._max_sleep_s = hello_every_s
        self._closing = threading.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._stand_in, name="outrider-link", daemon=True)
        self._thread.start()

    # --- the work thread's side ----------------------------------------------------------------------------------

    def receive(self, timeout_s: float | None = 0.0) -> list[Message]:
        """All messages that are there; if none are, waits for one (None: for ever)."""
        with self._lock:
            self._check()
            self._dealer.adopt()
            self._hear()
            if not self._inbox and (timeout_s is None or timeout_s > 0.0):
                self._wait(math.inf if timeout_s is None else time.monotonic() + timeout_s)
            messages = list(self._inbox)
            self._inbox.clear()
        return messages

    def send(self, message: Message) -> None:
        """Send a message, or keep it until there is room. Raises ProtocolError if it is not valid. One of an earlier
        connection is dropped: its coordinator has given it up."""
        incarnation: int = getattr(message, "incarnation", 0)
        data = encode(message)
        with self._lock:
            self._dealer.adopt()
            self._outbox.append((incarnation, data))
            self._push()

    def report(self, n_waiting: int) -> None:
        """One more message handled or decode finished; `n_waiting` requests are not yet answered."""
        self._n_waiting = n_waiting
        self._progress += 1

    @property
    def is_welcome(self) -> bool:
        """Is there a connection on which the coordinator knows us?"""
        return self._state.incarnation != 0

    def close(self) -> None:
        """Send what is queued, close the socket, end the thread. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._dealer.adopt()
        try:
            self._push()
        finally:
            self._dealer.close()

    def __enter__(self) -> WorkerLink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _check(self) -> None:
        if self._fault is not None:
            raise RuntimeError("the thread that stands in at the socket has failed") from self._fault

    def _wait(self, deadline: float) -> None:
        while not self._inbox and (now := time.monotonic()) < deadline:
            self._serve(min(deadline - now, self._state.wait_s(now)))

    # --- the stand-in --------------------------------------------------------------------------------------------

    def _stand_in(self) -> None:
        try:
            while not self._closing.wait(self._sleep_s()):
                if self._lock.acquire(blocking=False):  # else the work thread is there itself
                    try:
                        self._dealer.adopt()
                        self._serve(0.0)
                    finally:
                        self._lock.release()
        except BaseException as error:  # the work thread must know: nobody beats any more
            self._fault = error

    def _sleep_s(self) -> float:
        # No event wakes it: a connection that was made or lost is noticed within `hello_every_s`.
        return min(max(self._state.wait_s(time.monotonic()), _MIN_SLEEP_S), self._max_sleep_s)

    # --- whoever holds the lock ----------------------------------------------------------------------------------

    def _serve(self, timeout_s: float) -> None:
        """Wait for something to happen, and do all that follows from it."""
        stuck = bool(self._outbox) and self._dealer.connected
        self._dealer.poll(timeout_s, outbound=stuck)
        self._notice_connection()
        self._push()
        self._hear()
        self._speak()

    def _notice_connection(self) -> None:
        stands = self._dealer.connected
        if self._dealer.n_connects != self._n_connects or (self._state.incarnation and not stands):
            self._n_connects = self._dealer.n_connects
            self._state.connection(stands, time.monotonic())
        if self._dealer.refusal is not None and not self._state.refused:
            self._state.refuse(time.monotonic())
            self._inbox.append(_refused(self._dealer.refusal))

    def _hear(self) -> None:
        """Take in all that has come; what comes meanwhile must not keep us here for ever."""
        for _ in range(self._max_inbox):
            message = self._dealer.recv()
            if message is None:
                return
            self._take(message)

    def _take(self, message: Message) -> None:
        meaning = self._state.hear(message, time.monotonic())
        if meaning == "stale":
            self.counts["stale"] += 1
        elif meaning == "foreign":
            reason = f"the coordinator does not speak protocol {PROTOCOL_VERSION}: bring both to one version"
            self._inbox.append(_refused(reason))
        elif meaning == "forward" and (len(self._inbox) < self._max_inbox or isinstance(message, _ALWAYS)):
            self._inbox.append(message)
        elif meaning == "forward":
            self.counts["overflow"] += 1

    def _speak(self) -> None:
        n_silences = self._state.n_silences
        match self._state.word_due(time.monotonic()):
            case "hello":
                self._say(self._hello)
            case "heartbeat":
                n_waiting = self._n_waiting + len(self._inbox)
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
