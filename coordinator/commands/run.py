"""`outrider run`: answer one prompt."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.assemble import Interrupted, load_tables, make_request, make_session_chain, running
from coordinator.commands.client import execute as execute_remote
from coordinator.commands.output import Output, report
from coordinator.request import Request
from coordinator.service import Service
from coordinator.signals import Signals
from coordinator.trace_file import tracing
from outrider.config import Config
from outrider.errors import ConfigError, OutriderError
from outrider.log import set_up_log
from outrider.types import ChatMessage


def execute(config: Config, request: str) -> int:
    """Run `config`; the exit code. With `client.connect`, `request` (JSON of what the user set, see
    `outrider/config/request.py`) is sent to the coordinator that runs there."""
    set_up_log(config.log, logging.ERROR)
    prompt = read_prompt(config)
    if config.client.connect:
        if config.log.trace:
            raise ConfigError("--trace excludes --connect: give it where the coordinator runs (`outrider up`)")
        return execute_remote(config, request, prompt)
    with (
        tracing(config.log.trace) as trace,
        Signals() as signals,
        running(config, signals, observer=trace) as (service, _),
    ):
        generation = config.generation
        tokens = generation.prompt_tokens
        if tokens is None:
            messages = [ChatMessage("user", prompt)] if generation.chat else []
            tokens = tokenize(service, prompt, messages, signals)
        prediction = generation.prediction and tokenize(service, generation.prediction, [], signals, special=False)
        answer = generate(service, config, make_request(config, tokens, prediction or []), signals)
    return report(config, answer)


def read_prompt(config: Config) -> str:
    """The prompt's text, from the flag, a file or standard input; empty where tokens are given."""
    generation = config.generation
    if generation.prompt is not None or generation.prompt_tokens is not None:
        return generation.prompt or ""
    path = generation.file or "-"
    if path == "-" and sys.stdin.isatty():
        raise ConfigError("no prompt: give -p TEXT, -f FILE or --prompt-tokens, or pipe a text in")
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode()
    except OSError as error:
        raise ConfigError(f"prompt file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompt file {path}: byte {error.start} is not UTF-8; convert the file") from None


@dataclass
class Waiting:
    """Where callbacks leave what the loop waits for."""

    tokens: list[int] | None = None
    answer: dict[str, Any] | None = None
    errors: list[OutriderError] = field(default_factory=list)


def tokenize(
    service: Service, text: str, messages: list[ChatMessage], signals: Signals, *, special: bool = True
) -> list[int]:
    """A text as the target's tokenizer reads it, or messages in its chat template."""
    waiting = Waiting()
    done = lambda tokens: setattr(waiting, "tokens", tokens)  # noqa: E731
    service.questions.tokenize(text, messages, done, waiting.errors.append, special=special)
    while waiting.tokens is None:
        if waiting.errors:
            raise waiting.errors[0]
        turn(service, signals)
        if signals.received:
            raise Interrupted(signals)
    return waiting.tokens


def generate(service: Service, config: Config, request: Request, signals: Signals) -> dict[str, Any]:
    """Run the request to its end, streaming. Raises Interrupted after a signal, once the session is cancelled."""
    waiting = Waiting()
    out = Output(enabled=config.generation.stream and not config.generation.json)
    chain = make_session_chain(config, load_tables(config))
    done = lambda answer: setattr(waiting, "answer", answer)  # noqa: E731
    number = service.submit(request, chain, out.write, done)
    while waiting.answer is None:
        turn(service, signals)
        if signals.received or out.closed:
            service.cancel(number)
    if signals.received:
        out.end()
        raise Interrupted(signals)
    out.end()
    return waiting.answer


def turn(service: Service, signals: Signals) -> None:
    if signals.fd in service.turn(1.0, [signals.fd]):
        signals.drain()
    if service.fatal is not None:
        raise service.fatal
