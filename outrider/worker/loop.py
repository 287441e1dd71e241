"""The work loop that both workers share: receive, handle, execute, report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from outrider.connect import check_admitted
from outrider.errors import ProtocolError
from outrider.wire.messages import Failure, Message, Ready, Shutdown, Welcome
from outrider.worker.replies import failure
from outrider.worker.slots import SlotWorker

log = logging.getLogger("outrider.worker")


class Link(Protocol):
    """What the loop needs of its link to the coordinator (`outrider/wire/link.py`)."""

    def receive(self, timeout_s: float | None = 0.0) -> list[Message]:
        """All messages that have come; if none, wait for one (None: for ever)."""
        ...

    def send(self, message: Message) -> None: ...

    def report(self, n_waiting: int) -> None:
        """Something was done; so many requests are not yet answered."""
        ...


def work(link: Link, worker: SlotWorker[Any], incarnation: int) -> None:
    """Serve until Shutdown. `incarnation` is that of the connection on which the worker reported Ready."""
    wait_s = worker.wait_s()
    while True:
        messages = link.receive(wait_s)
        for message in messages:
            match message:
                case Shutdown():
                    log.info("told to end: %s", message.reason)
                    return
                case Welcome():
                    incarnation = message.incarnation
                    worker.reset()
                    link.send(Ready(incarnation, worker.engine.facts))
                case Failure():
                    check_admitted(message)
                case _ if getattr(message, "incarnation", incarnation) != incarnation:
                    log.debug("dropped a %s of an earlier connection", type(message).__name__)
                case _:
                    send_all(link, worker.handle(message))
            link.report(worker.n_waiting())
        if messages or wait_s:
            wait_s = worker.wait_s()
        if wait_s == 0:
            send_all(link, worker.step())
            link.report(worker.n_waiting())
            wait_s = worker.wait_s()


def send_all(link: Link, replies: Sequence[Message]) -> None:
    """Send replies; one that is not valid (an engine that computes no numbers) becomes the failure of its request."""
    for reply in replies:
        try:
            link.send(reply)
        except ProtocolError as error:
            link.send(failure(reply, "engine", f"the worker made an invalid reply: {error}"))
