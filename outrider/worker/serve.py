"""The life of a worker: greet, load the model, work until told to end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from outrider.wire.messages import Ready

if TYPE_CHECKING:
    from outrider.config.schema import Config

log = logging.getLogger("outrider.worker")


def serve(role: Literal["target", "draft"], config: Config) -> int:
    """Connect, load, work. The exit code."""
    from outrider.wire.transport import connect_worker

    settings = config.target if role == "target" else config.draft
    with connect_worker(role, settings.name, config.coordinator) as link:
        incarnation = wait_for_welcome(link)
        engine = load_engine(config, role)
        try:
            worker = make_worker(role, engine)
            link.send(Ready(incarnation, engine.facts))
            work(link, worker, incarnation)
        finally:
            engine.close()
    return 0
