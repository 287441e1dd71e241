"""`outrider serve` as a program: real workers that die, signals, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.process.cli import DRAFT, SLOW, TARGET, Cli, Started, kill, model_flags, poll_for

pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

BODY = {"prompt": "Once upon a time", "n_predict": 60, "temperature": 0, "ignore_eos": True}


def get(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def stream(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    request = urllib.request.Request(f"{url}/completion", json.dumps({**body, "stream": True}).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def text(url: str, body: dict[str, Any]) -> str:
    events = list(stream(url, body))
    assert events[-1].get("stop") is True, events[-1]
    return "".join(event["content"] for event in events)


@contextmanager
def serving(cli: Cli, *flags: str) -> Iterator[tuple[Started, str]]:
    with cli.start("serve", *model_flags(TARGET + SLOW, DRAFT), "--port", "0", "-np", "4", *flags) as server:
        while "http://" not in (line := server.line()):
            assert line, server.end()
        yield server, line.rpartition(" ")[2]
        if server.process.poll() is None:
            kill(server.pid, signal.SIGTERM)
            code, _, err = server.end()
            assert (code, "Traceback" in err) == (0, False), err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("role", ["draft", "target"])
def test_four_streams_survive_the_loss_of_a_worker(cli: Cli, role: str, number: int) -> None:
    environ = {"OUTRIDER_COORDINATOR_LOST_AFTER_S": "1.5"}
    cli.environ |= environ
    with serving(cli) as (_, url), ThreadPoolExecutor(4) as pool:
        expected = text(url, BODY)
        answers = [pool.submit(text, url, BODY) for _ in range(4)]
        poll_for(lambda: sum(slot["next_token"][0]["n_decoded"] > 3 for slot in slots(url)) == 4)
        kill(cli.worker(role), number)
        assert [answer.result() for answer in answers] == [expected] * 4
        poll_for(lambda: get(f"{url}/health") == (200, {"status": "ok"}))


def slots(url: str) -> list[Any]:
    return list(get(f"{url}/slots")[1])  # type: ignore[arg-type]


def test_health_while_the_target_is_away(cli: Cli) -> None:
    with serving(cli) as (_, url):
        assert get(f"{url}/health") == (200, {"status": "ok"})
        kill(cli.worker("target"))
        poll_for(lambda: get(f"{url}/health")[0] == 503)
        poll_for(lambda: get(f"{url}/health")[0] == 200)
        assert text(url, {**BODY, "n_predict": 3})


def metric(url: str, name: str) -> dict[str, float]:
    """Values of one metric, by role."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    samples = [line.removeprefix(f'{name}{{role="').split('"} ') for line in lines if line.startswith(f"{name}{{")]
    return {role: float(value) for role, value in samples}


def test_the_system_takes_the_draft_for_its_memory(cli: Cli) -> None:
    """The memory of each process is told, and a draft that is killed for it is a lost draft like any other."""
    with serving(cli) as (_, url):
        held, peak = (metric(url, f"outrider:resident_memory{word}_bytes") for word in ("", "_max"))
        assert held.keys() == {"coordinator", "target", "draft"}
        assert all(1e7 < held[role] <= peak[role] * 1.01 for role in held)
        kill(cli.worker("draft"), signal.SIGKILL)
        assert text(url, BODY)
        poll_for(lambda: metric(url, "outrider:worker_up") == {"target": 1, "draft": 1})
        assert metric(url, "outrider:worker_restarts_total") == {"target": 0, "draft": 1}


def test_sigterm_lets_a_stream_end(cli: Cli) -> None:
    with serving(cli) as (server, url):
        expected = text(url, BODY)
        events = stream(url, BODY)
        first = next(events)
        kill(server.pid, signal.SIGTERM)
        rest = list(events)
        assert rest[-1]["stop"] is True
        assert first["content"] + "".join(event["content"] for event in rest) == expected
        assert server.end()[0] == 0


def test_up_has_a_front_only_with_a_port(cli: Cli) -> None:
    with cli.start("up", *model_flags()) as up:
        assert "outrider run --connect" in up.line()
        kill(up.pid, signal.SIGTERM)
        code, _, err = up.end()
    assert code == 0
    assert "http" not in err


def test_settings_of_one_request_are_refused(cli: Cli) -> None:
    done = cli.run("serve", *model_flags(), "-p", "hi")
    assert done.returncode == 2
    assert "generation.prompt belongs to one request" in done.stderr
    assert os.sep not in done.stdout
