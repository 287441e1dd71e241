"""Where sockets may listen and connect: ipc in a private folder, or tcp with keys; everything else is a ConfigError."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from outrider.errors import ConfigError

PRIVATE_IPC = "ipc"
#: `sockaddr_un.sun_path` holds 108 bytes on Linux, one of them the closing zero.
MAX_IPC_PATH = 107

#: In front of the process id in the name of a private folder.
_FOLDER_PREFIX = "outrider-"

_KEYS_REMEDY = "make keys with `outrider keys` and set coordinator.keys, or use ipc on one host"


@dataclass(frozen=True, slots=True)
class Place:
    """A checked address. `folder` was made for this socket and goes with it."""

    url: str
    is_tcp: bool
    folder: Path | None = None

    @property
    def is_ipv6(self) -> bool:
        return self.is_tcp and "[" in self.url

    def remove(self) -> None:
        if self.folder is not None:
            with contextlib.suppress(OSError):
                (self.folder / "coordinator").unlink(missing_ok=True)
                self.folder.rmdir()


#: What can be listened on and not connected to.
_WILDCARDS = ("*", "0.0.0.0", "::")


def listening(endpoint: str, *, has_keys: bool, allow_remote: bool) -> Place:
    """The place to listen at: "ipc" (a socket in a new folder of mode 0700), "ipc:///PATH" or "tcp://HOST:PORT"."""
    if endpoint == PRIVATE_IPC:
        return _private_ipc()
    if endpoint.startswith("ipc://"):
        path = _ipc_path("coordinator.listen", endpoint)
        _refuse_if_alive(path)
        return Place(endpoint, is_tcp=False)
    host, port = _tcp("coordinator.listen", endpoint, has_keys)
    host = "127.0.0.1" if host == "localhost" else host  # libzmq binds to numbers and interface names only
    if not (allow_remote or _is_loopback(host)):
        raise ConfigError(
            f"coordinator.listen = {endpoint!r} can be reached from other hosts: "
            "use tcp://127.0.0.1:PORT, or set coordinator.allow_remote = true (--allow-remote) if that is meant"
        )
    return Place(_tcp_url(host, port), is_tcp=True)


def connecting(endpoint: str, *, has_keys: bool) -> Place:
    """The place to connect to: "ipc:///PATH" or "tcp://HOST:PORT"."""
    if endpoint.startswith("ipc://"):
        _ipc_path("coordinator.address", endpoint)
        return Place(endpoint, is_tcp=False)
    host, port = _tcp("coordinator.address", endpoint, has_keys)
    if port == 0 or host in _WILDCARDS:
        raise ConfigError(f"coordinator.address = {endpoint!r}: to connect takes a host and a port")
    return Place(_tcp_url(host, port), is_tcp=True)


# --- ipc ---------------------------------------------------------------------------------------------------------


def _private_ipc() -> Place:
    _remove_leftovers(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-"))  # mode 0700
    place = Place(f"ipc://{folder / 'coordinator'}", is_tcp=False, folder=folder)
    try:
        _check_length("coordinator.listen", folder / "coordinator", "set TMPDIR to a shorter folder")
    except ConfigError:
        place.remove()
        raise
    return place


def _remove_leftovers(parent: Path) -> None:
    """Folders of coordinators that were killed: their names tell the process, and it is gone."""
    for folder in parent.glob(f"{_FOLDER_PREFIX}[0-9]*-*"):
        pid = folder.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        if pid.isdecimal() and _is_ours(folder) and not _is_running(int(pid)):
            Place("", is_tcp=False, folder=folder).remove()


def _is_ours(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except FileNotFoundError:  # its coordinator ends at this moment
        return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _ipc_path(key: str, endpoint: str) -> Path:
    path = Path(endpoint.removeprefix("ipc://"))
    if not path.is_absolute():  # also @name, an abstract socket: it has no permissions at all
        raise ConfigError(f"{key} = {endpoint!r}: give an absolute path, ipc:///FOLDER/NAME")
    _check_length(key, path, "choose a shorter path")
    _check_private(key, path.parent)
    return path


def _check_length(key: str, path: Path, remedy: str) -> None:
    n_bytes = len(os.fsencode(path))
    if n_bytes > MAX_IPC_PATH:
        raise ConfigError(f"{key}: the socket {path} has {n_bytes} bytes, the system takes {MAX_IPC_PATH}: {remedy}")


def _check_private(key: str, folder: Path) -> None:
    """Whoever can enter the folder can speak to the socket, so only its owner may."""
    try:
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"{key}: folder {folder}: {error.strerror}; make it with `mkdir -m 700`") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise ConfigError(f"{key}: {folder} is open to other users: use a folder of its own, `chmod 700 {folder}`")
    if os.geteuid() not in (status.st_uid, 0):
        raise ConfigError(f"{key}: {folder} belongs to another user: use a folder of your own")


def _refuse_if_alive(path: Path) -> None:
    """libzmq replaces an existing socket file, and with it a coordinator that runs; a stale one may go."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError as error:
            raise ConfigError(f"coordinator.listen: {path} cannot be used: {error.strerror or error}") from None
    raise ConfigError(f"coordinator.listen: another process listens at {path}: stop it or choose another path")


# --- tcp ---------------------------------------------------------------------------------------------------------


def _tcp(key: str, endpoint: str, has_keys: bool) -> tuple[str, int]:
    host, colon, port = endpoint.removeprefix("tcp://").rpartition(":")
    number = 0 if port == "*" else int(port) if port.isascii() and port.isdigit() else -1
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (endpoint.startswith("tcp://") and bare and colon and 0 <= number < 2**16) or set(bare) & set("[]/;@ "):
        forms = "ipc, ipc:///PATH" if key == "coordinator.listen" else "ipc:///PATH"
        raise ConfigError(f"{key} = {endpoint!r}: give {forms} or tcp://HOST:PORT")
    if not has_keys:
        raise ConfigError(f"{key} = {endpoint!r}: tcp takes CURVE keys, on loopback too: {_KEYS_REMEDY}")
    return bare, number


def _tcp_url(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}"


def _is_loopback(host: str) -> bool:
    """False for the wildcard in all its spellings ("*", "0", "::", …) and for names of network interfaces."""
    try:
        info = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except OSError:
        return False
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in info)
