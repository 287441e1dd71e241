"""Many requests, clients that go away, workers that go away, the end of the server."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import httpx
import pytest

from coordinator.api.bridge import Bridge
from coordinator.api.errors import ApiError
from tests.api.world import World, serving

LONG = {"prompt": "Once upon a time", "n_predict": 64, "temperature": 0, "ignore_eos": True}


def raw_post(world: World, path: str, body: dict[str, Any], *, cut: int | None = None) -> socket.socket:
    """A connection on which this request was sent, perhaps only its first `cut` bytes."""
    host, port = world.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    connection = socket.create_connection((host, int(port)))
    connection.sendall((head + data)[:cut])
    return connection


def all_free(world: World) -> bool:
    return not world.admission.running and not world.admission.waiting and world.n_sessions() == 0


def test_many_requests_share_the_sequences_and_all_get_their_own_text() -> None:
    with serving("-np", "4") as world:
        bodies = [{**LONG, "prompt": f"Number {i}", "n_predict": 5 + i % 7} for i in range(40)]
        alone = [world.http.post("/completion", json=body).json()["content"] for body in bodies]
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda body: world.http.post("/completion", json=body).json()["content"], bodies))
        assert together == alone
        world.wait(lambda: all_free(world))


def test_a_full_queue_says_when_to_come_back() -> None:
    with serving("-np", "1", "--max-queued", "2") as world:
        world.workers.paused = {"target", "draft"}
        held = [raw_post(world, "/completion", LONG) for _ in range(3)]
        world.wait(lambda: len(world.admission.running) == 1 and len(world.admission.waiting) == 2)
        refused = world.http.post("/completion", json=LONG)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert refused.headers["retry-after"] == "1"
        slots = world.http.get("/slots").json()
        assert [slot["is_processing"] for slot in slots] == [True]
        # A client that goes away while it waits leaves the queue.
        held[2].close()
        world.wait(lambda: len(world.admission.waiting) == 1)
        world.workers.paused = set()
        for connection in held[:2]:
            assert b"200 OK" in connection.recv(1000)
            connection.close()
        world.wait(lambda: all_free(world))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("waits_for", ["draft", "target"])
def test_a_client_that_goes_away_frees_its_sequence(stream: bool, waits_for: str) -> None:
    with serving("-np", "1") as world:
        for _ in range(10):
            world.workers.paused = {waits_for}
            connection = raw_post(world, "/v1/completions", {**LONG, "max_tokens": 64, "stream": stream})
            world.wait(lambda: any(live.session.waits_for == waits_for for live in world.service.live.values()))
            connection.close()
            world.wait(lambda: all_free(world))
            world.workers.paused = set()
        assert world.chat().status_code == 200


def test_a_client_that_goes_away_in_mid_stream() -> None:
    with serving("-np", "1", "-n", "-1", "--ctx-size", "100000") as world:
        with world.http.stream("POST", "/completion", json={**LONG, "n_predict": -1, "stream": True}) as response:
            next(response.iter_lines())
        world.wait(lambda: all_free(world))
        assert world.chat().status_code == 200


def test_half_sent_bodies_disturb_nobody() -> None:
    with serving("-np", "1") as world:
        connections = [raw_post(world, "/completion", LONG, cut=cut) for cut in (10, 70, 100)]
        assert world.chat().status_code == 200
        for connection in connections:
            connection.close()
        assert world.chat().status_code == 200
        assert world.do(lambda: all_free(world))


def test_a_lost_draft_fails_no_request_and_health_says_so() -> None:
    with serving("-np", "2") as world:
        expected = world.http.post("/completion", json=LONG).json()["content"]
        world.workers.paused = {"draft"}
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(world.http.post, "/completion", json=LONG) for _ in range(2)]
            world.wait(lambda: len(world.service.live) == 2)
            world.do(lambda: world.service._forget(world.service.draft, "killed"))  # type: ignore[arg-type]
            assert [answer.result().json()["content"] for answer in answers] == [expected] * 2
        health = world.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        world.workers.paused = set()
        world.do(lambda: world.workers.connect("draft"))
        world.wait(lambda: world.service.draft)
        assert world.http.get("/health").json() == {"status": "ok"}
        assert world.http.post("/completion", json=LONG).json()["timings"]["draft_n"] > 0


def test_streams_go_on_where_they_were_when_the_target_comes_back() -> None:
    with serving("-np", "4") as world:
        expected = world.http.post("/completion", json=LONG).json()["content"]
        with ThreadPoolExecutor(4) as pool:
            world.workers.paused = {"target"}
            streams = [pool.submit(_streamed, world) for _ in range(4)]
            world.wait(lambda: len(world.service.live) == 4)
            world.workers.paused = set()
            world.wait(lambda: all(len(live.session.generated) > 5 for live in world.service.live.values()))
            world.workers.paused = {"target"}
            world.do(lambda: world.service._forget(world.service.target, "killed"))  # type: ignore[arg-type]
            health = world.http.get("/health")
            assert (health.status_code, health.json()["error"]["type"]) == (503, "unavailable_error")
            refused = world.http.post("/completion", json=LONG)
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            world.workers.paused = set()
            world.do(lambda: world.workers.connect("target"))
            assert [stream.result() for stream in streams] == [expected] * 4
        assert world.http.get("/health").status_code == 200


def _streamed(world: World) -> str:
    with httpx.stream("POST", f"{world.url}/completion", json={**LONG, "stream": True}, timeout=30.0) as response:
        lines = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1]["stop"] is True
    return "".join(line["content"] for line in lines)


def test_an_error_after_the_beginning_is_a_last_event() -> None:
    with serving("-np", "1") as world, ThreadPoolExecutor(1) as pool:
        body = {"prompt": "a", "max_tokens": 60, "stream": True, "ignore_eos": True}
        world.workers.paused = {"target"}
        stream = pool.submit(httpx.post, f"{world.url}/v1/completions", json=body, timeout=30.0)
        world.wait(lambda: world.service.live)
        world.workers.paused = set()
        world.wait(lambda: any(live.session.generated for live in world.service.live.values()))
        world.do(lambda: [world.service.fail(number, "it broke") for number in list(world.service.live)])
        text = stream.result().text
        if "[DONE]" not in text:  # else it was finished before
            last = json.loads(text.strip().rpartition("data: ")[2])
            assert last["error"]["message"] == "it broke"
            assert last["error"]["type"] == "server_error"


def test_no_request_is_taken_before_the_workers_are_there() -> None:
    with serving(connect=False) as world:
        health = world.http.get("/health")
        assert (health.status_code, health.json()["error"]["message"]) == (503, "the target worker is lost")
        assert world.chat().status_code == 503


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_finished_at_the_end_is_told_so(stream: bool) -> None:
    with serving("-np", "1") as world, ThreadPoolExecutor(2) as pool:
        world.workers.paused = {"target"}
        body = {"prompt": "a", "max_tokens": 60, "stream": stream}
        asked = [pool.submit(httpx.post, f"{world.url}/v1/completions", json=body, timeout=30.0) for _ in range(2)]
        world.wait(lambda: world.service.live and world.admission.waiting)
        for _ in range(2):  # the second one ends what runs
            world.signals.send()
        for answer in (one.result() for one in asked):
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == "the server is ending"


def test_what_comes_after_the_end_is_told_so() -> None:
    with serving() as world:
        world.stop_serving()
        for path in ("/health", "/slots", "/metrics"):
            assert world.http.get(path).status_code == 503, path
        for path, body in (("/completion", LONG), ("/tokenize", {"content": "a"})):
            answer = world.http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the server is ending")


def test_what_was_asked_for_before_the_end_is_done_at_the_end() -> None:
    with serving() as world:
        world.stop_serving()
        done: list[int] = []
        bridge = Bridge(world.service, world.admission)
        bridge.post(lambda: done.append(1))
        bridge.end()
        assert done == [1]
        with pytest.raises(ApiError, match="the server is ending"):
            bridge.post(lambda: done.append(2))
        bridge.close()


def test_a_stream_begins_before_there_is_anything_to_say() -> None:
    with serving("-np", "1", ping_s=0.05) as world:
        world.workers.paused = {"target"}
        body = {"prompt": "a", "max_tokens": 4, "stream": True}
        with httpx.stream("POST", f"{world.url}/v1/completions", json=body, timeout=30.0) as response:
            lines = response.iter_lines()
            assert next(lines) == ": ping"
            world.workers.paused = set()
            world.do(lambda: None)
            assert "data: [DONE]" in list(lines)


def test_the_end_lets_running_requests_finish() -> None:
    with serving("-np", "1") as world:
        expected = world.http.post("/completion", json=LONG).json()["content"]
        world.workers.paused = {"target"}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(world.http.post, "/completion", json=LONG)
            world.wait(lambda: world.service.live)
            world.signals.send()
            world.wait(lambda: world.front.bridge.draining)
            assert world.http.get("/health").status_code == 503
            assert world.chat().status_code == 503
            world.workers.paused = set()
            assert answer.result().json()["content"] == expected


def test_two_hundred_at_once() -> None:
    with serving("-np", "8", "--max-queued", "256") as world:
        bodies = [{**LONG, "prompt": f"Number {i}", "n_predict": 4, "stream": i % 2 == 0} for i in range(200)]
        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(lambda body: world.http.post("/completion", json=body), bodies))
        assert [answer.status_code for answer in answers] == [200] * 200
        world.wait(lambda: all_free(world))


def test_two_hundred_clients_that_go_away_at_any_moment() -> None:
    random = Random(1)
    with serving("-np", "3", "--max-queued", "256", "-n", "-1", "--ctx-size", "4096") as world:
        expected = world.http.post("/completion", json=LONG).json()["content"]
        for i in range(200):
            body = {**LONG, "prompt": "x" * random.randrange(1, 600), "n_predict": -1, "stream": i % 2 == 0}
            connection = raw_post(world, random.choice(["/completion", "/v1/completions"]), body)
            if i % 2 == 0 and random.random() < 0.5:
                connection.recv(random.randrange(1, 3000))
            connection.close()
        world.wait(lambda: all_free(world))
        assert world.http.post("/completion", json=LONG).json()["content"] == expected
        assert world.http.get("/health").json() == {"status": "ok"}
        incarnations = world.do(lambda: sorted(c.incarnation for c in world.service.connections))
        assert incarnations == [1, 2]  # no worker was started again


def test_a_slow_reader_holds_nobody_up() -> None:
    with serving("-np", "2", "-n", "-1", "--ctx-size", "8192") as world:
        slow = raw_post(world, "/completion", {**LONG, "n_predict": -1, "stream": True})
        world.wait(lambda: any(live.session.generated for live in world.service.live.values()))
        assert world.chat().status_code == 200
        slow.close()
        world.wait(lambda: all_free(world))
