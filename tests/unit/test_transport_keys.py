"""Keys: made for their owner alone, never replaced, and every damaged or open file refused by its name."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth

from outrider.errors import ConfigError
from outrider.wire.transport import generate_keys, load_client_keys, load_server_keys
from outrider.wire.transport.keys import load_pair, load_public, public_file, secret_file

NAMES = ["coordinator", "draft", "target"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    generate_keys(folder, NAMES)
    return folder


def refused(path: Path, load: object = None) -> str:
    with pytest.raises(ConfigError) as caught:
        (load or load_pair)(path)  # type: ignore[operator]
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_files_are_written_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    files = generate_keys(folder, NAMES)
    assert sorted(files) == sorted(folder.iterdir())
    assert len(files) == 6
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_both_sides_know_one_another(folder: Path) -> None:
    server = load_server_keys(folder, ["draft", "target"])
    for name in ("draft", "target"):
        client = load_client_keys(folder, name)
        assert server.allowed[name] == client.own.public == zmq.curve_public(client.own.secret)
        assert client.server == server.own.public
    assert len({server.own.public, *server.allowed.values()}) == 3


def test_zeromqs_own_tools_read_the_files(folder: Path) -> None:
    public, secret = zmq.auth.load_certificate(secret_file(folder, "draft"))
    assert (public, None) == zmq.auth.load_certificate(public_file(folder, "draft"))
    assert secret is not None
    assert secret not in public_file(folder, "draft").read_bytes()


def test_a_secret_shows_nowhere(folder: Path) -> None:
    client, server = load_client_keys(folder, "draft"), load_server_keys(folder, ["draft"])
    for keys in (client, server):
        assert keys.own.secret.decode() not in repr(keys)


@pytest.mark.parametrize("taken", ["target.key", "target.key_secret"])
def test_an_existing_key_is_never_replaced(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(ConfigError, match=taken):
        generate_keys(tmp_path, NAMES)
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


def test_a_key_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "draft.key_secret").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"draft\.key_secret"):
        generate_keys(folder, ["draft"])
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("names", [["../evil"], [""], ["a/b"], ["a\n"], ["x" * 65], ["a", "a"]])
def test_names_are_names(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(ConfigError):
        generate_keys(tmp_path / "keys", names)
    assert not list(tmp_path.rglob("*.key*"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        generate_keys(tmp_path / "file" / "keys", NAMES)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o610])
def test_a_secret_that_others_may_read_is_refused(folder: Path, mode: int) -> None:
    path = secret_file(folder, "draft")
    path.chmod(mode)
    assert f"chmod 600 {path}" in refused(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "curve\n",
        'curve\n    public-key = ""\n',
        'curve\n    public-key = "too short"\n',
        f'curve\n    public-key = "{"~" * 40}"\n',
        f'curve\n    public-key = "{"ü" * 40}"\n',
        f'curve\n    public-key = "{"x" * 45}"\n',
        "\0" * 100,
        "<html></html>",
        "x" * 100_000,
    ],
)
def test_a_file_without_a_good_public_key_is_refused(folder: Path, text: str) -> None:
    path = public_file(folder, "draft")
    path.write_text(text)
    refused(path, load_public)
    path = secret_file(folder, "draft")
    path.write_text(text)
    refused(path)
    with pytest.raises(ConfigError, match=r"draft\.key"):
        load_server_keys(folder, ["target", "draft"])


def test_a_file_without_a_good_secret_is_refused(folder: Path) -> None:
    assert "no secret key" in refused(public_file(folder, "draft"))
    path, other = secret_file(folder, "draft"), secret_file(folder, "target")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], other.read_text().splitlines()[-1]]))
    assert "do not belong together" in refused(path)
    path.write_text("\n".join([*lines[:-1], '    secret-key = "x"']))
    assert "secret key is no Z85" in refused(path)


def test_files_that_are_not_there_are_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"other\.key_secret.*outrider keys"):
        load_client_keys(folder, "other")
    with pytest.raises(ConfigError, match=r"other\.key.*outrider keys"):
        load_server_keys(folder, ["other"])
    refused(folder, load_public)
    public_file(folder, "coordinator").unlink()
    with pytest.raises(ConfigError, match=r"coordinator\.key"):
        load_client_keys(folder, "draft")


def test_a_key_belongs_to_one_name(folder: Path) -> None:
    public_file(folder, "target").write_bytes(public_file(folder, "draft").read_bytes())
    with pytest.raises(ConfigError, match="the same key"):
        load_server_keys(folder, ["draft", "target"])


def test_nobody_allowed_is_a_mistake(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"coordinator\.allow"):
        load_server_keys(folder, [])
