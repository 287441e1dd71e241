"""Where a socket may listen and connect, and what the others are told."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.wire.transport import DealerTransport, RouterTransport
from outrider.wire.transport.endpoint import MAX_IPC_PATH, connecting, listening


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-") as name:
        yield Path(name)


def refused(endpoint: str, *, keys: bool = True, remote: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        listening(endpoint, has_keys=keys, allow_remote=remote).remove()
    return str(caught.value)


def test_ipc_alone_is_a_socket_in_a_new_private_folder() -> None:
    first, second = (listening("ipc", has_keys=False, allow_remote=False) for _ in range(2))
    assert first.url != second.url
    for place in (first, second):
        assert place.folder is not None
        assert place.url == f"ipc://{place.folder}/coordinator"
        assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
        assert not place.is_tcp
        place.remove()
        assert not place.folder.exists()
        place.remove()


def test_folders_of_killed_coordinators_go_and_those_that_go_by_themselves_are_no_obstacle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    left, gone, running = (folder / f"outrider-{pid}-x" for pid in (process.pid, f"{process.pid}-2", os.getpid()))
    for name in (left, running):
        name.mkdir()
        (name / "coordinator").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(Path, "glob", lambda parent, pattern: iter([gone, left, running]))  # gone: since it was listed
    listening("ipc", has_keys=False, allow_remote=False).remove()
    assert list(folder.iterdir()) == [running]


def test_a_temporary_folder_with_a_long_name_is_refused_and_nothing_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = folder / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    reason = refused("ipc")
    assert "TMPDIR" in reason
    assert str(MAX_IPC_PATH) in reason
    assert not list(deep.iterdir())


def test_the_longest_socket_path_works(folder: Path) -> None:
    name = "x" * (MAX_IPC_PATH - len(str(folder)) - 1)
    RouterTransport(f"ipc://{folder}/{name}").close()
    reason = refused(f"ipc://{folder}/{name}y")
    assert "108 bytes" in reason
    assert "shorter" in reason
    # Bytes count, not letters.
    assert "bytes" in refused(f"ipc://{folder}/{'ü' * 60}")


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o1777])
def test_a_socket_of_ones_own_naming_lies_in_a_private_folder(folder: Path, mode: int) -> None:
    place = listening(f"ipc://{folder}/c", has_keys=False, allow_remote=False)
    assert place.folder is None  # not ours to remove
    folder.chmod(mode)
    assert f"chmod 700 {folder}" in refused(f"ipc://{folder}/c")
    with pytest.raises(ConfigError, match="chmod 700"):
        connecting(f"ipc://{folder}/c", has_keys=False)


@pytest.mark.parametrize("endpoint", ["ipc://@abstract", "ipc://relative/path", "ipc://", "ipc://*"])
def test_an_ipc_name_that_has_no_folder_is_refused(endpoint: str) -> None:
    assert "ipc:///FOLDER/NAME" in refused(endpoint)


def test_a_folder_that_does_not_exist_is_named(folder: Path) -> None:
    reason = refused(f"ipc://{folder}/none/c")
    assert str(folder / "none") in reason
    assert "coordinator.listen" in reason


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:*"),
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
        ("tcp://localhost:5555", "tcp://127.0.0.1:5555"),
        ("tcp://[::1]:5555", "tcp://[::1]:5555"),
    ],
)
def test_loopback_with_keys_may_listen(endpoint: str, url: str) -> None:
    assert listening(endpoint, has_keys=True, allow_remote=False).url == url


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5555", "tcp://[::1]:0", "tcp://10.1.2.3:5555"])
@pytest.mark.parametrize("remote", [False, True])
def test_no_tcp_without_keys_not_even_on_loopback(endpoint: str, remote: bool) -> None:
    reason = refused(endpoint, keys=False, remote=remote)
    assert "coordinator.keys" in reason
    assert "outrider keys" in reason
    with pytest.raises(ConfigError, match=r"coordinator\.keys"):
        connecting(endpoint, has_keys=False)
    with pytest.raises(ConfigError, match="CURVE"):
        RouterTransport(endpoint, allow_remote=remote)
    with pytest.raises(ConfigError, match="CURVE"):
        DealerTransport(endpoint)


@pytest.mark.parametrize(
    "host", ["*", "0.0.0.0", "0", "0x0", "00.0.0.0", "[::]", "[::ffff:0.0.0.0]", "10.1.2.3", "eth0", "[fe80::1]"]
)
def test_other_hosts_are_let_in_only_if_asked_for(host: str) -> None:
    reason = refused(f"tcp://{host}:5555")
    assert "coordinator.allow_remote" in reason
    assert listening(f"tcp://{host}:5555", has_keys=True, allow_remote=True).is_tcp


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp",
        "tcp://",
        "tcp://:5555",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:x",
        "tcp://127.0.0.1:5555/x",
        "tcp://127.0.0.1;10.0.0.1:5555",
        "udp://127.0.0.1:5555",
        "inproc://x",
        "ws://127.0.0.1:5555",
        "vmci://1:2",
        "/tmp/x",
        "127.0.0.1:5555",
        "tcp://127.0.0.1:5555\n",
    ],
)
def test_whatever_else_is_no_address(endpoint: str) -> None:
    assert "ipc, ipc:///PATH or tcp://HOST:PORT" in refused(endpoint, remote=True)
    with pytest.raises(ConfigError):
        connecting(endpoint, has_keys=True)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://*:5555", "ipc"])
def test_to_connect_takes_a_whole_address(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"coordinator\.address"):
        connecting(endpoint, has_keys=True)


def test_a_host_name_may_be_connected_to() -> None:
    assert connecting("tcp://gpu-box.local:5555", has_keys=True).url == "tcp://gpu-box.local:5555"
    assert connecting("tcp://[::1]:5555", has_keys=True).is_ipv6
