"""The thread in which uvicorn serves the app. The caller's thread stays the coordinator's."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn

from coordinator.admission import Admission
from coordinator.api.app import make_app
from coordinator.api.bridge import Bridge
from coordinator.api.metrics import Metrics
from coordinator.api.state import Api
from coordinator.assemble import load_tables
from coordinator.service import Service
from outrider.config import Config
from outrider.errors import ConfigError

#: Seconds that open connections are given at the end.
_LAST_WORDS_S = 1


@contextlib.contextmanager
def front(config: Config, service: Service, admission: Admission, *, fixed_seed: bool) -> Iterator[Front]:
    """The HTTP front, listening from the first moment on (`/health` says 503 until the workers are there).

    Raises ConfigError for an address that cannot be used or a file of keys that cannot be read."""
    keys = read_keys(config.server.api_key_file)
    sockets = [listen(host, config.server.port or 0) for host in config.server.host]
    bridge = Bridge(service, admission)
    metrics = Metrics(service, admission, config)
    bridge.on_done = metrics.add
    api = Api(config, bridge, load_tables(config), metrics, keys, fixed_seed)
    running = Front(api, sockets)
    running.start()
    try:
        yield running
    finally:
        running.stop()
        bridge.close()


class Front:
    """One running web server."""

    def __init__(self, api: Api, sockets: Sequence[socket.socket]) -> None:
        self.api, self.bridge = api, api.bridge
        self.urls = [_url(sock) for sock in sockets]
        self._sockets = list(sockets)
        settings = uvicorn.Config(
            make_app(api),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_LAST_WORDS_S,
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, args=(self._sockets,), name="http")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the server and its thread. `bridge.end` comes before, or what is awaited is never answered."""
        self._server.should_exit = True
        self._thread.join(_LAST_WORDS_S + 2)
        self._server.force_exit = True
        self._thread.join()
        for sock in self._sockets:
            sock.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(512)
    except OSError as error:
        sock.close()
        raise ConfigError(f"server.host {host}, server.port {port}: cannot listen there: {error.strerror}") from None
    return sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def read_keys(path: str) -> tuple[bytes, ...]:
    """The keys of a file, one a line; none where no file is named. Raises ConfigError."""
    if not path:
        return ()
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"server.api_key_file {path}: {error.strerror}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith(b"#"))
    if not keys:
        raise ConfigError(f"server.api_key_file {path}: it holds no key; one a line is needed")
    return keys
