"""`outrider up` and `outrider serve`: coordinator, workers and, with `server.port`, the HTTP front, until SIGTERM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from coordinator.admission import Admission
from coordinator.assemble import Interrupted, needs_draft, started, wait_until_ready
from coordinator.clients import Clients
from coordinator.service import Service
from coordinator.signals import Signals
from coordinator.trace_file import tracing
from outrider.config import Config
from outrider.errors import ConfigError, WorkerLostError
from outrider.log import set_up_log

if TYPE_CHECKING:
    from coordinator.api.server import Front

DEFAULT_PORT = 8080


def with_port(config: Config) -> Config:
    """The same with an HTTP front: on the port that is configured, else 8080."""
    if config.server.port is not None:
        return config
    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=DEFAULT_PORT))


def execute(config: Config, *, fixed_seed: bool = False) -> int:
    """Serve `config` until SIGTERM or Ctrl-C; the exit code: 0 after a signal that came while it was serving.

    Then no new request is taken, and those that run are given `coordinator.grace_s` to end; a second signal ends
    them at once. `fixed_seed`: requests over HTTP that name no seed use that of the configuration."""
    set_up_log(config.log)
    with tracing(config.log.trace) as trace, Signals() as signals:
        try:
            with started(config, keep_target=True, observer=trace) as (service, transport):
                admission = Admission(service, config.server.max_queued)
                with _front(config, service, admission, fixed_seed) as front:
                    loop = Loop(service, admission, signals, front)
                    service.clients = Clients(service, config, admission)
                    try:
                        wait_until_ready(service, config, signals, loop.turn, draft_may_come=True)
                        loop.ready()
                        _say_ready(config, service, transport.endpoint, front)
                        loop.serve()
                        loop.drain(config.coordinator.grace_s)
                    finally:
                        loop.give_up()
        except Interrupted:
            pass
    return 0


class Loop:
    """The coordinator's turns, with those of the front between them."""

    def __init__(self, service: Service, admission: Admission, signals: Signals, front: Front | None) -> None:
        self._service, self._admission, self._signals, self._front = service, admission, signals, front

    def turn(self, timeout_s: float) -> None:
        fds = [self._signals.fd, *([self._front.bridge.fd] if self._front else [])]
        if self._signals.fd in self._service.turn(timeout_s, fds):
            self._signals.drain()
        if self._front is not None:
            self._front.bridge.run_calls()
        overdue = self._service.overdue
        if overdue is not None:
            self._admission.refuse(overdue)
        self._admission.pump()

    def ready(self) -> None:
        """All workers are there."""
        if self._front is not None:
            self._front.bridge.ready = True

    def serve(self) -> None:
        """Until a signal. Raises what makes it impossible to go on."""
        while not self._signals.received:
            self.turn(1.0)
            if self._service.fatal is not None:
                raise self._service.fatal

    def drain(self, grace_s: float) -> None:
        """Let requests that run come to their end, as long as one more signal or `grace_s` allow."""
        if self._front is not None:
            self._front.bridge.draining = True
        deadline = self._service.clock() + grace_s
        while self._admission.running or self._admission.waiting:
            left = deadline - self._service.clock()
            if left <= 0 or len(self._signals.received) > 1 or self._service.fatal is not None:
                break
            self.turn(min(left, 0.1))

    def give_up(self) -> None:
        """Whatever is not at its end yet ends with an error, while there is still a front to tell it."""
        error = WorkerLostError("the server is ending")
        if self._front is not None:
            self._front.bridge.end()
        self._admission.refuse(error)
        for number in list(self._service.live):
            self._service.fail(number, str(error), "worker_lost")
        self._service.questions.lost(error)


@contextmanager
def _front(config: Config, service: Service, admission: Admission, fixed_seed: bool) -> Iterator[Front | None]:
    if config.server.port is None:
        yield None
        return
    try:
        from coordinator.api.server import front
    except ImportError as error:
        raise ConfigError(
            f"server.port: the HTTP front needs the package {error.name}: install the extra, pip install 'outrider[server]'"
        ) from None
    with front(config, service, admission, fixed_seed=fixed_seed) as running:
        yield running


def _say_ready(config: Config, service: Service, endpoint: str, front: Front | None) -> None:
    address = config.coordinator.address or endpoint
    print(f"ready: outrider run --connect {address}", file=sys.stderr, flush=True)
    for url in front.urls if front else []:
        print(f"ready: {url}", file=sys.stderr, flush=True)
    if needs_draft(config) and service.draft is None:
        print(f"the draft worker {config.draft.name!r} may come at any time to {address}", file=sys.stderr, flush=True)
