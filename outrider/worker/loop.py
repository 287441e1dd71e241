"""The work loop that both workers share: receive, handle, execute, report."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from outrider.wire.messages import Failure, Heartbeat, Message, Ready, Shutdown, Welcome
from outrider.worker.slots import SlotWorker

log = logging.getLogger("outrider.worker")


class Link(Protocol):
    """What the loop needs of the network thread (`outrider/wire/transport`)."""

    def receive(self, *, wait: bool) -> list[Message]:
        """All messages that have come; with `wait`, at least one."""
        ...

    def send(self, message: Message) -> None: ...

    def report(self, progress: int, n_waiting: int) -> None:
        """What the next heartbeats say of the work."""
        ...


def work(link: Link, worker: SlotWorker[Any], incarnation: int) -> None:
    """Serve until Shutdown. `incarnation` is that of the connection on which the worker reported Ready."""
    progress = 0
    while True:
        for message in link.receive(wait=not worker.has_work()):
            match message:
                case Shutdown():
                    log.info("told to end: %s", message.reason)
                    return
                case Welcome():
                    incarnation = message.incarnation
                    worker.reset()
                    link.send(Ready(incarnation, worker.engine.facts))
                case Failure() | Heartbeat():
                    pass
                case _ if getattr(message, "incarnation", incarnation) != incarnation:
                    log.debug("dropped a %s of an earlier connection", type(message).__name__)
                case _:
                    for reply in worker.handle(message):
                        link.send(reply)
            progress += 1
        if worker.has_work():
            for reply in worker.step():
                link.send(reply)
            progress += 1
        link.report(progress, worker.n_waiting())
