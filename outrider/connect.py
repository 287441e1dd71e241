"""From the configuration to the two ends of a connection."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from outrider.errors import ConfigError
from outrider.wire.link import WorkerLink
from outrider.wire.messages import PROTOCOL_VERSION, Failure, Hello, Message, Shutdown, Welcome
from outrider.wire.transport import DealerTransport, RouterTransport, load_client_keys, load_server_keys

if TYPE_CHECKING:
    from outrider.config import Config
    from outrider.config.schema import Coordinator


def open_router(config: Coordinator) -> RouterTransport:
    """The coordinator's socket. Raises ConfigError for what it must not or cannot listen at."""
    keys = load_server_keys(Path(config.keys), config.allow) if config.keys else None
    return RouterTransport(config.listen, keys, allow_remote=config.allow_remote)


def open_link(role: Literal["target", "draft", "client"], name: str, address: str, keys: str) -> WorkerLink:
    """A link to the coordinator at `address`; `keys` is the folder of the key files, empty for ipc."""
    client_keys = load_client_keys(Path(keys), name) if keys else None
    return WorkerLink(DealerTransport(address, client_keys), Hello(PROTOCOL_VERSION, role, name, os.getpid()))


def worker_address(config: Config) -> str:
    """Where a worker of this configuration connects."""
    address = config.coordinator.address or config.coordinator.listen
    if "://" not in address:
        raise ConfigError(
            "coordinator.address: not given; a worker that is started by hand needs the coordinator's address"
            " (ipc:///PATH or tcp://HOST:PORT)"
        )
    return address


def welcome(link: WorkerLink, timeout_s: float | None = None) -> int:
    """Wait until the coordinator lets us in; the incarnation of the connection.

    Raises ConfigError with its reason if it does not, or if it does not answer in time.
    """
    messages = link.receive(timeout_s)
    if not messages:
        raise ConfigError(f"no coordinator answers within {timeout_s:g} s; is it running, and is this its address?")
    for message in messages:
        check_admitted(message)
    # Two greetings may have been under way: the last answer counts.
    incarnations = [message.incarnation for message in messages if isinstance(message, Welcome)]
    return incarnations[-1] if incarnations else welcome(link, timeout_s)


def check_admitted(message: Message) -> None:
    """Raise ConfigError if this message says that we are not wanted."""
    if isinstance(message, Failure) and message.code == "refused":
        raise ConfigError(f"the coordinator refused us: {message.reason}")
    if isinstance(message, Shutdown):
        raise ConfigError(f"the coordinator told us to end: {message.reason}")
