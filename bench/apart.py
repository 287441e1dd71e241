"""A pair whose draft worker is started by hand, as on another host, and connects through a link if one is wanted.

The coordinator runs in this process, the workers in processes of their own; times and bytes can therefore be measured.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.link_proxy import LinkProxy
from coordinator.assemble import load_tables, make_request, make_session_chain, needs_draft, started, wait_until_ready
from coordinator.instructions import Emit
from coordinator.launcher import WorkerProcess, spawn
from coordinator.service import Service
from coordinator.signals import Signals
from outrider.config import Config, from_json, to_json
from outrider.wire.transport import generate_keys


@dataclass(frozen=True, slots=True)
class Link:
    """Between coordinator and draft worker. `tcp` with CURVE keys, else a socket of the file system."""

    round_trip_s: float = 0.0
    jitter_s: float = 0.0
    tcp: bool = False


@dataclass(slots=True)
class Apart:
    """A running pair. The draft worker connects at `address`, which is that of the `link` where there is one."""

    config: Config
    service: Service
    signals: Signals
    address: str
    link: LinkProxy | None = None
    draft: WorkerProcess | None = None

    def start_draft(self) -> None:
        """In place of the one before, if any."""
        self.end_draft()
        coordinator = msgspec.structs.replace(self.config.coordinator, address=self.address)
        line = to_json(msgspec.structs.replace(self.config, coordinator=coordinator))
        self.draft = spawn("draft", self.config.draft.name, line, own_stderr=self.config.log.verbose)

    def end_draft(self) -> None:
        if self.draft is not None:
            self.draft.process.kill()
            self.draft.process.wait()
            self.draft.close()
            self.draft = None

    def turn(self, timeout_s: float) -> None:
        if self.signals.fd in self.service.turn(timeout_s, [self.signals.fd]) or self.signals.received:
            raise KeyboardInterrupt


def configuration(
    target: dict[str, Any], draft: dict[str, Any] | None, schedule: str, n_max: int, n_predict: int, **coordinator: Any
) -> Config:
    """Greedy. Without a draft the target decodes alone. `coordinator`: keys of that section."""
    parts: dict[str, Any] = {"target": target, "sampling": {"temp": 0.0}, "coordinator": coordinator}
    parts["generation"] = {"n_predict": n_predict, "json": True}
    if draft is not None:
        parts["draft"] = {**draft, "launch": False}
        parts["speculative"] = {"types": ["draft-simple"], "n_max": n_max, "schedule": schedule}
    return from_json(json.dumps(parts))


@contextmanager
def apart(config: Config, link: Link | None = None) -> Iterator[Apart]:
    """The pair, ready to answer; nothing is left of it afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if link is not None and link.tcp:
            config = with_keys(config, folder / "keys")
        signals = stack.enter_context(Signals())
        service, transport = stack.enter_context(started(config))
        pair = Apart(config, service, signals, transport.endpoint)
        if link is not None:
            listen = "tcp://127.0.0.1:0" if link.tcp else f"ipc://{folder}/link"
            pair.link = stack.enter_context(LinkProxy(pair.address, link.round_trip_s, link.jitter_s, listen))
            pair.address = pair.link.endpoint
        if needs_draft(config):
            stack.callback(pair.end_draft)
            pair.start_draft()
        wait_until_ready(service, config, signals, pair.turn)
        yield pair


def with_keys(config: Config, folder: Path) -> Config:
    """Listening at a port of loopback, for those who have a key."""
    names = [config.target.name, config.draft.name]
    generate_keys(folder, ["coordinator", *names])
    coordinator = msgspec.structs.replace(config.coordinator, listen="tcp://127.0.0.1:0", keys=str(folder), allow=names)
    return msgspec.structs.replace(config, coordinator=coordinator)


@dataclass(slots=True)
class Run:
    """One answer: the object of `--json`, when its tokens came (seconds of the monotonic clock), which of them a draft had,
    and what it cost here."""

    answer: dict[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    coordinator_s: float = 0.0  # of processor time
    n_bytes: int = 0  # on the link, both ways

    @property
    def per_second(self) -> float:
        """Tokens per second, the first round left out."""
        return float(self.answer["timings"]["predicted_per_second"])


def run(pair: Apart, prompt: Sequence[int], is_enough: Callable[[Run], bool] = lambda run: False) -> Run:
    """Answer one prompt. `is_enough` is asked after each event, and at least ten times a second: True ends the answer."""
    done = Run()

    def on_emit(emit: Emit) -> None:
        done.times += [time.monotonic()] * len(emit.parts)
        done.accepted += [part.accepted for part in emit.parts]

    bytes_before, start = n_bytes(pair), time.thread_time()
    chain = make_session_chain(pair.config, load_tables(pair.config))
    request = make_request(pair.config, list(prompt))
    number = pair.service.submit(request, chain, lambda text: None, done.answer.update, on_emit)
    while not done.answer:
        pair.turn(0.1)
        if is_enough(done):
            pair.service.cancel(number)
    done.coordinator_s = time.thread_time() - start
    done.n_bytes = n_bytes(pair) - bytes_before
    return done


def n_bytes(pair: Apart) -> int:
    return sum(pair.link.n_bytes.values()) if pair.link is not None else 0
