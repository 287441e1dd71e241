"""A whole server in one process: the real web server on a free port, the real coordinator in a thread, and workers with
the scripted engine that the coordinator's transport calls directly."""

from __future__ import annotations

import select
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import msgspec

from coordinator.admission import Admission
from coordinator.api.server import Front, front
from coordinator.assemble import make_schedule, worker_names
from coordinator.commands.up import Loop
from coordinator.service import Limits, Service
from draft_worker.worker import DraftWorker
from outrider.config import load
from outrider.config.argv import parse_argv
from outrider.config.schema import Config
from outrider.engine.scripted import ScriptedEngine
from outrider.wire.codec import decode, encode
from outrider.wire.messages import PROTOCOL_VERSION, Hello, Message, Ready, Welcome
from outrider.wire.waker import Waker
from outrider.worker.slots import SlotWorker
from target_worker.worker import TargetWorker

T = TypeVar("T")

TARGET = "scripted:seed=1"
DRAFT = "scripted:seed=1,disagree=20"
SECTIONS = ("target", "draft", "speculative", "coordinator", "log", "sampling", "generation", "server")


class Workers:
    """Keeps `Router`: what is sent to a peer is handled by its worker at once; `poll` lets workers step.

    A worker in `paused` takes messages and computes nothing."""

    def __init__(self, config: Config) -> None:
        self.counts: Counter[str] = Counter()
        self.traffic: Counter[str] = Counter()
        self.paused: set[str] = set()
        self.workers: dict[bytes, SlotWorker[Any]] = {}
        self._config = config
        self._received: deque[tuple[bytes, Message]] = deque()

    endpoint = "in-process"

    def connect(self, role: str) -> None:
        """A new process of this role greets; one that was there before is gone."""
        settings = self._config.target if role == "target" else self._config.draft
        engine = ScriptedEngine(settings.model, n_ctx=settings.ctx_size, n_seq=self._config.coordinator.n_seq)
        self.workers[role.encode()] = TargetWorker(engine) if role == "target" else DraftWorker(engine)
        name = settings.name
        self._received.append((role.encode(), Hello(PROTOCOL_VERSION, role, name, 1)))  # type: ignore[arg-type]

    def poll(self, timeout_s: float | None, fds: Collection[int] = ()) -> set[int]:
        for peer, worker in self.workers.items():
            if peer.decode() not in self.paused and worker.has_work():
                self._received += [(peer, decode(encode(reply))) for reply in worker.step()]
        ready, _, _ = select.select(list(fds), [], [], 0 if self._received or self._has_work() else timeout_s)
        return set(ready)

    def _has_work(self) -> bool:
        return any(w.has_work() for peer, w in self.workers.items() if peer.decode() not in self.paused)

    def recv(self, timeout_s: float = 0.0) -> tuple[bytes, Message] | None:
        return self._received.popleft() if self._received else None

    def send(self, peer: bytes, message: Message) -> None:
        message, worker = decode(encode(message)), self.workers[peer]
        if isinstance(message, Welcome):
            worker.reset()
            self._received.append((peer, Ready(message.incarnation, worker.engine.facts)))
        else:
            handled = (Message,) if type(message).__name__ not in ("Heartbeat", "Shutdown", "Failure") else ()
            replies = worker.handle(message) if handled else []
            self._received += [(peer, decode(encode(reply))) for reply in replies]

    def close(self) -> None:
        pass


class Signals:
    """Signals that a test sends."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._waker = Waker()

    @property
    def fd(self) -> int:
        return self._waker.fd

    def drain(self) -> None:
        self._waker.clear()

    def send(self) -> None:
        self.received.append(15)
        self._waker.wake()

    def close(self) -> None:
        self._waker.close()


class World:
    """The running server; `http` is a client of it."""

    def __init__(
        self, config: Config, service: Service, workers: Workers, admission: Admission, front: Front, signals: Signals
    ) -> None:
        self.config, self.service, self.workers = config, service, workers
        self.admission, self.front, self.signals = admission, front, signals
        self.url = front.urls[0]
        self.http = httpx.Client(base_url=self.url, timeout=30.0)
        self._thread = threading.Thread(target=self._run, args=(Loop(service, admission, signals, front),))  # type: ignore[arg-type]

    def _run(self, loop: Loop) -> None:
        loop.ready()
        try:
            loop.serve()
            loop.drain(self.config.coordinator.grace_s)
        finally:
            loop.give_up()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.http.close()
        self.stop_serving()

    def stop_serving(self) -> None:
        """The coordinator ends, and the front is still there."""
        self.signals.received += [15]
        self.signals.send()
        self._thread.join(10.0)
        assert not self._thread.is_alive()

    def do(self, call: Callable[[], T]) -> T:
        """`call` in the coordinator's thread."""
        results: list[T] = []
        done = threading.Event()

        def run() -> None:
            results.append(call())
            done.set()

        self.front.bridge.post(run)
        assert done.wait(10.0)
        return results[0]

    def wait(self, predicate: Callable[[], Any]) -> None:
        """Until it is true, asked in the coordinator's thread after each of its turns."""
        for _ in range(10_000):
            if self.do(lambda: bool(predicate())):  # there: what it returns may be something that changes
                return
        raise AssertionError(f"never true: {predicate}")

    def n_sessions(self) -> int:
        """Sessions that any worker holds."""
        return sum(len(worker.slots) for worker in self.workers.workers.values())

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0, **fields}
        return self.http.post("/v1/chat/completions", json=body)


def make_config(*flags: str, draft: bool = True) -> Config:
    drafting = ["-md", DRAFT] if draft else []
    # Tests count drafts, which `auto` may leave out.
    common = ["--engine", "scripted", "-m", TARGET, *drafting, "--port", "0", "-n", "64", "--schedule", "lockstep"]
    argv = [*common, *flags]
    return load(parse_argv(argv, {}, SECTIONS).settings, environ={}).config


@contextmanager
def serving(*flags: str, draft: bool = True, connect: bool = True, **server: Any) -> Iterator[World]:
    """A server with these flags of `outrider serve`, and these keys of [server]."""
    config = make_config(*flags, draft=draft)
    config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, **server))
    workers, signals = Workers(config), Signals()
    limits = Limits(lost_after_s=3600.0)
    service = Service(workers, worker_names(config), make_schedule(config), limits=limits, keep_target=True)
    admission = Admission(service, config.server.max_queued)
    try:
        with front(config, service, admission, fixed_seed=True) as running:
            world = World(config, service, workers, admission, running, signals)
            for role in worker_names(config).values() if connect else ():
                workers.connect(role)
            world.start()
            try:
                if connect:
                    world.wait(lambda: service.target and (service.draft or not draft))
                yield world
            finally:
                world.stop()
    finally:
        signals.close()
