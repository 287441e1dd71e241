"""Clients of every bad kind against the running program: no sequence is lost, no process starts again, memory stays flat."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.process.cli import Cli, poll_for
from tests.process.test_serve import BODY, get, serving, slots, stream, text

N_CLIENTS = 200
ENDLESS = {**BODY, "n_predict": -1, "stream": True}
#: A leak of this many bytes per client is found. Allocators keep some room that they do not need at once.
MAX_LEAK = 2048


def connected(url: str, path: str, body: dict[str, Any], cut: int | None = None) -> socket.socket:
    """A connection on which this request was sent, perhaps only its first `cut` bytes."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall((head + data)[:cut])
    return connection


def many_at_once(url: str, random: Random) -> None:
    bodies = [{**BODY, "prompt": f"Number {i}", "n_predict": 1 + i % 4, "stream": i % 2 == 0} for i in range(N_CLIENTS)]

    def ask(body: dict[str, Any]) -> None:
        with connected(url, "/completion", body) as connection:
            assert b"200 OK" in connection.recv(100)
            while connection.recv(1 << 16).find(b'"stop":true') < 0:
                pass

    with ThreadPoolExecutor(N_CLIENTS) as pool:
        list(pool.map(ask, bodies))


def slow_readers(url: str, random: Random) -> None:
    """They take all sequences, read nothing, and go away."""
    readers = [connected(url, "/completion", ENDLESS) for _ in range(6)]
    poll_for(lambda: all(slot["is_processing"] for slot in slots(url)))
    for reader in readers:
        reader.close()


def half_sent(url: str, random: Random) -> None:
    """What waits for the rest disturbs nobody."""
    waiting = [connected(url, "/completion", BODY, random.randrange(1, 150)) for _ in range(N_CLIENTS)]
    assert text(url, {**BODY, "n_predict": 2})
    for connection in waiting:
        connection.close()


def gone_at_any_moment(url: str, random: Random) -> None:
    """Before they are read, while they wait, are drafted for or verified, and in mid-stream."""
    for i in range(N_CLIENTS):
        content = "x" * random.randrange(1, 600)
        path, asked = random.choice(
            [
                ("/completion", {"prompt": content, "n_predict": -1}),
                ("/v1/completions", {"prompt": content}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}),
            ]
        )
        with connected(url, path, {**asked, "ignore_eos": True, "stream": i % 2 == 0}) as connection:
            if i % 4 == 0:
                connection.recv(random.randrange(1, 3000))


KINDS = (many_at_once, slow_readers, half_sent, gone_at_any_moment)


def abuse(url: str, random: Random) -> None:
    for kind in KINDS:
        kind(url, random)
        poll_for(lambda: not any(slot["is_processing"] for slot in slots(url)))
        assert get(f"{url}/health") == (200, {"status": "ok"})


def memory(pids: Sequence[int]) -> dict[str, int]:
    """Bytes of memory that each process holds, by its module."""
    held = {}
    for pid in pids:
        name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2].decode()
        held[name] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return held


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_abuse_leaves_nothing_behind(cli: Cli) -> None:
    random, n_rounds = Random(1), 6
    with serving(cli, "--max-queued", "256", "-n", "-1", "--ctx-size", "4096") as (_, url):
        expected, pids = text(url, BODY), sorted(cli.processes())
        for _ in range(3):
            abuse(url, random)
        before = memory(pids)
        for _ in range(n_rounds):
            abuse(url, random)
        after = memory(pids)
        assert sorted(cli.processes()) == pids
        assert text(url, BODY) == expected
    room = MAX_LEAK * 3 * N_CLIENTS * n_rounds
    assert {name: n for name in before if (n := after[name] - before[name]) > room} == {}


def drafted(url: str) -> tuple[str, int, int]:
    """Text, drafted and accepted tokens of one fixed request."""
    (*events, last) = list(stream(url, BODY))
    counts = last["timings"]
    return "".join(event["content"] for event in events), counts["draft_n"], counts["draft_n_accepted"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_thousand_requests_with_drafting_on_and_off(cli: Cli) -> None:
    """Memory stays flat, and a fixed request finds as many drafts accepted at the end as at the beginning."""
    random, n_requests = Random(2), 1000

    def ask(i: int) -> str:
        body = {**BODY, "prompt": "x" * random.randrange(1, 300), "n_predict": 8, "speculative.n_max": 3 * (i % 2)}
        return text(url, body)

    with serving(cli, "--schedule", "lockstep") as (_, url), ThreadPoolExecutor(4) as pool:
        expected, pids = drafted(url), sorted(cli.processes())
        assert expected[1] > expected[2] > 0
        list(pool.map(ask, range(400)))
        before = memory(pids)
        for _ in range(5):
            list(pool.map(ask, range(n_requests // 5)))
            assert drafted(url) == expected
        after = memory(pids)
    assert {name: n for name in before if (n := after[name] - before[name]) > MAX_LEAK * n_requests} == {}
