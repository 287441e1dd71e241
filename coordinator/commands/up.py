"""`outrider up`: coordinator and workers of a configuration, until SIGTERM."""

from __future__ import annotations

import sys

from coordinator.assemble import Interrupted, running
from coordinator.clients import Clients
from coordinator.signals import Signals
from outrider.config import Config
from outrider.log import set_up_log


def execute(config: Config) -> int:
    """Serve `config` until SIGTERM or Ctrl-C; the exit code: 0 after a signal that came while it was serving."""
    set_up_log(config.log)
    with Signals() as signals:
        try:
            with running(config, signals, keep_target=True) as (service, transport):
                service.clients = Clients(service, config)
                print(f"ready: outrider run --connect {transport.endpoint}", file=sys.stderr, flush=True)
                while not signals.received:
                    service.turn(1.0, [signals.fd])
                    if service.fatal is not None:
                        raise service.fatal
        except Interrupted:
            pass
    return 0
