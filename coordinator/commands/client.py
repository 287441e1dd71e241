"""`outrider run --connect`: give one prompt to a coordinator that runs already."""

from __future__ import annotations

import json
import math
import os
from contextlib import closing
from secrets import token_hex
from time import monotonic
from typing import Any

from coordinator.assemble import Interrupted
from coordinator.commands.output import Output, report
from coordinator.signals import Signals
from outrider.config import Config
from outrider.connect import check_admitted, open_link, welcome
from outrider.errors import RequestError, WorkerLostError
from outrider.wire.link import WorkerLink
from outrider.wire.messages import Cancel, Chunk, Done, Failure, Generate, Message, Shutdown, Welcome

#: A coordinator that runs answers a greeting within this time.
WELCOME_TIMEOUT_S = 5.0
#: How long the end of a cancelled request is waited for.
CANCEL_TIMEOUT_S = 2.0
_REQUEST = 1


def execute(config: Config, request: str, prompt: str) -> int:
    """Send one request, stream its answer; the exit code."""
    # With keys, the name is the key's; without, any number of clients may come.
    name = config.client.name if config.coordinator.keys else f"{config.client.name}-{os.getpid()}-{token_hex(4)}"
    generation = config.generation
    out = Output(enabled=generation.stream and not generation.json)
    with (
        Signals() as signals,
        closing(open_link("client", name, config.client.connect, config.coordinator.keys)) as link,
    ):
        incarnation = welcome(link, WELCOME_TIMEOUT_S)
        tokens = generation.prompt_tokens or []
        link.send(Generate(incarnation, _REQUEST, prompt, tokens, generation.chat, request))
        answer = receive_answer(link, incarnation, out, signals)
        if signals.received:
            out.end()
            raise Interrupted(signals)
    out.end()
    return report(config, answer)


def receive_answer(link: WorkerLink, incarnation: int, out: Output, signals: Signals) -> dict[str, Any]:
    """Stream chunks until the request is done. A signal, or a reader that went away, cancels it; then its end is waited for
    a moment. Raises WorkerLostError where the coordinator is away for longer than it may be."""
    cancelled_at, welcome_at = math.inf, monotonic()
    while True:
        for message in link.receive(0.1):
            answer = handle(message, out)
            if answer is not None:
                return answer
        now = monotonic()
        if (signals.received or out.closed) and cancelled_at == math.inf:
            cancelled_at = now
            link.send(Cancel(incarnation, _REQUEST))
        if now - cancelled_at > CANCEL_TIMEOUT_S and signals.received:
            raise Interrupted(signals)
        if link.is_welcome:
            welcome_at = now
        elif now - welcome_at > WELCOME_TIMEOUT_S:
            raise WorkerLostError("the coordinator went away in the middle of the answer")


def handle(message: Message, out: Output) -> dict[str, Any] | None:
    """The finished answer, if this is it."""
    if isinstance(message, Shutdown):
        raise WorkerLostError(f"the coordinator has ended: {message.reason}")
    check_admitted(message)
    match message:
        case Chunk():
            out.write(message.text)
        case Done():
            return dict(json.loads(message.result))
        case Failure(code="bad_request"):
            raise RequestError(message.reason)
        case Failure():
            raise WorkerLostError(message.reason)
        case Welcome():
            raise WorkerLostError("the coordinator was away and has forgotten the request; ask again")
    return None
