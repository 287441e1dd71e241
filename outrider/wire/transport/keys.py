"""CURVE keys: one pair per name, in two files of one folder (`outrider keys` makes them).

    NAME.key          the public key, to be given to the other side
    NAME.key_secret   both keys, for the process called NAME alone; mode 0600, or it is refused

The format is that of ZeroMQ's own tools. The coordinator's pair is called "coordinator".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth
from zmq.utils import z85

from outrider.errors import ConfigError

COORDINATOR = "coordinator"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEY_BYTES = 32
_MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both as 40 characters of Z85."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The coordinator's pair, and who may connect: name -> public key."""

    own: KeyPair
    allowed: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """A worker's or client's pair, and the public key by which it knows the coordinator."""

    own: KeyPair
    server: bytes


def generate_keys(folder: Path, names: Sequence[str]) -> list[Path]:
    """Make a pair for each name; returns the files written. An existing file is never replaced (ConfigError, and then
    nothing is written)."""
    _check_names(names)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = {name: (public_file(folder, name), secret_file(folder, name)) for name in names}
        for path in (path for pair in files.values() for path in pair):
            if path.exists():
                raise ConfigError(f"{path} exists already: remove it first if this key is to be replaced")
        for name, (public_path, secret_path) in files.items():
            public, secret = zmq.curve_keypair()
            _write(secret_path, f"Both keys of {name}. For this process alone.", public, secret)
            _write(public_path, f"Public key of {name}.", public)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None
    return [path for pair in files.values() for path in pair]


def load_server_keys(folder: Path, allow: Sequence[str]) -> ServerKeys:
    """The coordinator's pair and the public keys of the names that may connect."""
    allowed: dict[str, bytes] = {}
    for name in allow:
        key = load_public(public_file(folder, name))
        taken = next((other for other, its in allowed.items() if its == key), None)
        if taken is not None:
            raise ConfigError(f"{public_file(folder, name)}: the same key as {taken}'s: each name takes its own")
        allowed[name] = key
    if not allowed:
        raise ConfigError("coordinator.allow is empty: name those that may connect")
    return ServerKeys(load_pair(secret_file(folder, COORDINATOR)), allowed)


def load_client_keys(folder: Path, name: str) -> ClientKeys:
    """The pair of `name` and the coordinator's public key."""
    return ClientKeys(load_pair(secret_file(folder, name)), load_public(public_file(folder, COORDINATOR)))


def load_public(path: Path) -> bytes:
    """The public key in a file."""
    public, _ = _read(path)
    return _checked(path, "public", public)


def load_pair(path: Path) -> KeyPair:
    """Both keys in a file that nobody else may read."""
    public, secret = _read(path)
    if secret is None:
        raise ConfigError(f"{path}: there is no secret key in it; `outrider keys` writes NAME.key_secret")
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path}: other users may read this secret key: `chmod 600 {path}`")
    pair = KeyPair(_checked(path, "public", public), _checked(path, "secret", secret))
    if zmq.curve_public(pair.secret) != pair.public:
        raise ConfigError(f"{path}: secret and public key do not belong together: make a new pair")
    return pair


def public_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.key"


def secret_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.key_secret"


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"name {name!r}: 1 to 64 letters, digits, dots, dashes and underscores are allowed")
    if len(set(names)) != len(names):
        raise ConfigError(f"names {', '.join(names)}: one is there twice")


def _write(path: Path, title: str, public: bytes, secret: bytes | None = None) -> None:
    lines = [f"# {title}", "metadata", "curve", f'    public-key = "{public.decode()}"']
    if secret is not None:
        lines.append(f'    secret-key = "{secret.decode()}"')
    # 0600 from the first byte on, and never through a link or over another file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


def _read(path: Path) -> tuple[bytes, bytes | None]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES or not path.is_file():
            raise ConfigError(f"{path}: no key file; `outrider keys` makes them")
        return zmq.auth.load_certificate(path)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"{path}: {reason}: `outrider keys` makes key files (coordinator.keys is their folder)"
        ) from None
    except ValueError:
        raise ConfigError(f"{path}: there is no public key in it; `outrider keys` makes key files") from None


def _checked(path: Path, which: str, key: bytes) -> bytes:
    try:
        n_bytes = len(z85.decode(key))
    except (KeyError, ValueError, TypeError, OverflowError, zmq.ZMQError):
        n_bytes = 0
    if n_bytes != _KEY_BYTES:
        raise ConfigError(f"{path}: the {which} key is no Z85 text of {_KEY_BYTES} bytes: make a new pair")
    return key
