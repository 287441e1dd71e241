"""`outrider up`, clients that connect to it, and workers on other hosts: over tcp with keys."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.cli import DRAFT, TARGET, Cli, Started, kill, model_flags, poll_for

PROMPT = ["-p", "Once upon a time", "--temp", "0", "-n", "20"]
WORKER = [sys.executable, "-m"]


def local_config(folder: Path, extra: str = "") -> Path:
    path = folder / "up.toml"
    path.write_text(
        f'[target]\nmodel = "{TARGET}"\nengine = "scripted"\n[draft]\nmodel = "{DRAFT}"\nengine = "scripted"\n'
        f'[speculative]\nschedule = "lockstep"\n{extra}'
    )
    return path


@contextmanager
def up(cli: Cli, config: Path) -> Iterator[tuple[Started, str]]:
    """A coordinator that serves, and the address that it printed."""
    with cli.start("up", str(config)) as started:
        line = started.line()
        address = re.search(r"--connect (\S+)", line)
        assert address, line
        yield started, address[1]


def test_two_clients_and_sigterm(cli: Cli, tmp_path: Path) -> None:
    expected = cli.answer(*model_flags(), *PROMPT)
    with up(cli, local_config(tmp_path)) as (started, address):
        for _ in range(2):
            answer = cli.answer("--connect", address, *PROMPT)
            assert answer["tokens"] == expected["tokens"]
            assert answer["timings"]["draft_n"] > 0
        streamed = cli.run("run", "--connect", address, *PROMPT)
        assert streamed.stdout.rstrip("\n") == expected["text"].rstrip("\n")
        kill(started.pid, signal.SIGTERM)
        code, _, err = started.end(5)
    assert code == 0
    assert "Traceback" not in err


def test_a_client_that_goes_away_frees_its_place(cli: Cli, tmp_path: Path) -> None:
    """One sequence only: the next client would wait for ever for a place that is not given back."""
    with up(cli, local_config(tmp_path)) as (_, address):
        with cli.start("run", "--connect", address, "-p", "x", "--temp", "0", "--ignore-eos") as client:
            client.first_byte()
            kill(client.pid, signal.SIGINT)
            assert client.end(5)[0] == 130
        with cli.start("run", "--connect", address, "-p", "x", "--temp", "0", "--ignore-eos") as client:
            client.first_byte()
            kill(client.pid)
        assert cli.answer("--connect", address, *PROMPT)["finish_reason"] == "length"


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_killed_worker_is_started_again(cli: Cli, tmp_path: Path, role: str) -> None:
    with up(cli, local_config(tmp_path)) as (_, address):
        expected = cli.answer("--connect", address, *PROMPT)
        pid = cli.worker(role)
        kill(pid)
        poll_for(lambda: [other for other in cli.processes(f"{role}_worker") if other != pid])
        answer = poll_for(lambda: ask(cli, address))
        assert answer["tokens"] == expected["tokens"]


def ask(cli: Cli, address: str) -> dict[str, object] | None:
    """An answer with drafts, if both workers are there already."""
    done = cli.run("run", "--json", "--connect", address, *PROMPT)
    import json

    answer = json.loads(done.stdout) if done.returncode == 0 else None
    return answer if answer and answer["speculation"]["status"] == "on" else None


def test_a_wrong_address_is_one_line(cli: Cli) -> None:
    done = cli.run("run", "--connect", f"ipc://{cli.folder.parent}/nobody", *PROMPT)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


# --- over tcp, with keys ------------------------------------------------------------------------------------------


def tcp_config(folder: Path, keys: Path, port: int, name: str = "draft", extra: str = "") -> Path:
    path = folder / f"tcp-{name}.toml"
    path.write_text(
        f'[coordinator]\nlisten = "tcp://127.0.0.1:{port}"\naddress = "tcp://127.0.0.1:{port}"\nkeys = "{keys}"\n'
        f'allow = ["target", "draft", "client"]\n'
        f'[target]\nmodel = "{TARGET}"\nengine = "scripted"\n'
        f'[draft]\nmodel = "{DRAFT}"\nengine = "scripted"\nlaunch = false\nname = "{name}"\n{extra}'
    )
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def keys(cli: Cli, tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    assert cli.run("keys", str(folder), "coordinator", "target", "draft", "client", "stranger").returncode == 0
    return folder


def test_a_draft_worker_over_tcp(cli: Cli, tmp_path: Path, keys: Path) -> None:
    """The right one works; wrong ones are refused, each with a line, while it works on; garbage delivers nothing."""
    expected = cli.answer(*model_flags(), *PROMPT)
    port = free_port()
    config = tcp_config(tmp_path, keys, port)
    with cli.start("up", str(config)) as coordinator:
        with cli.start("--config", str(config), command=[*WORKER, "draft_worker"]):
            while "ready" not in (line := coordinator.line()):
                assert line
            client = ["--connect", f"tcp://127.0.0.1:{port}", "--keys", str(keys), *PROMPT]
            assert cli.answer(*client)["tokens"] == expected["tokens"]

            # A second worker of that name, and one that the configuration does not name.
            second = cli.run("--config", str(config), command=[*WORKER, "draft_worker"])
            assert second.returncode == 2
            assert "the name 'draft' is in use" in second.stderr
            unknown = tcp_config(tmp_path, keys, port, name="stranger")
            with cli.start("--config", str(unknown), command=[*WORKER, "draft_worker"]) as stranger:
                assert "does not know our key" in stranger.line()

            # Keys that are not the right ones, and none.
            wrong = tmp_path / "wrong"
            assert cli.run("keys", str(wrong), "coordinator", "draft").returncode == 0
            with cli.start(
                "--config", str(tcp_config(tmp_path, wrong, port)), command=[*WORKER, "draft_worker"]
            ) as other:
                assert "no connection to" in other.line()
            missing = cli.run(
                "--config", str(tcp_config(tmp_path, tmp_path / "no", port)), command=[*WORKER, "draft_worker"]
            )
            assert missing.returncode == 2
            assert len(missing.stderr.splitlines()) == 1

            for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x07\x00draft0\x06\x00hello", bytes(range(256)) * 8):
                with socket.create_connection(("127.0.0.1", port)) as raw:
                    raw.sendall(garbage)
            assert cli.answer(*client)["tokens"] == expected["tokens"]
        kill(coordinator.pid, signal.SIGTERM)
        code, _, err = coordinator.end(10)
    assert code == 0
    assert "Traceback" not in err


def test_tcp_without_keys_does_not_start(cli: Cli) -> None:
    done = cli.run("run", *model_flags(), *PROMPT, "--listen", "tcp://127.0.0.1:0")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "keys" in done.stderr
