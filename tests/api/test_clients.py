"""The official client of OpenAI against the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api.world import World, serving

openai = pytest.importorskip("openai", reason="the package openai is not installed")
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def client(server: World) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat(client: Any) -> None:
    answer = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=8, temperature=0)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.completion_tokens == 8
    assert answer.system_fingerprint.startswith("b")


def test_a_stream(client: Any) -> None:
    ask: Any = {"model": "m", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens == 8


def test_structured_output(client: Any) -> None:
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    format = {"type": "json_schema", "json_schema": {"name": "s", "schema": {**schema, "additionalProperties": False}}}
    answer = client.chat.completions.create(model="m", messages=MESSAGES, response_format=format, max_tokens=60)
    assert set(json.loads(answer.choices[0].message.content)) == {"a"}


def test_models(client: Any) -> None:
    assert [model.object for model in client.models.list()] == ["model"]


def test_errors_are_the_client_s_exceptions(client: Any, server: World) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="m", messages=MESSAGES, temperature=1e6)
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        client.completions.create(model="m", prompt="a" * 1000)
    with pytest.raises(openai.NotFoundError):
        client.get("/nothing", cast_to=object)


def test_a_client_that_stops_reading(client: Any, server: World) -> None:
    stream = client.completions.create(model="m", prompt="a", max_tokens=64, stream=True)
    next(iter(stream))
    stream.close()
    server.wait(lambda: not server.admission.running)


@pytest.fixture
def small() -> Iterator[tuple[World, Any]]:
    """A server for one request at a time, and a client."""
    with (
        serving("-np", "1", "--max-queued", "0") as world,
        openai.OpenAI(base_url=f"{world.url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield world, client


def test_a_server_that_is_busy(small: tuple[World, Any]) -> None:
    world, client = small
    ask = lambda: client.completions.create(model="m", prompt="a", max_tokens=4)  # noqa: E731
    assert ask().usage.completion_tokens == 4  # a free sequence needs no place in the queue
    world.workers.paused = {"target"}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(ask)
        world.wait(lambda: world.admission.running)
        with pytest.raises(openai.RateLimitError):
            ask()
        world.workers.paused = set()
        assert held.result().usage.completion_tokens == 4


def test_the_program_llm(server: World, tmp_path: Path) -> None:
    """Somebody else's command line, which knows nothing of us."""
    pytest.importorskip("llm", reason="the package llm is not installed")
    entry = {"model_id": "ours", "model_name": "ours", "api_base": f"{server.url}/v1"}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
    environ = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    command = [sys.executable, "-m", "llm", "-m", "ours", "-o", "max_tokens", "8", "-o", "temperature", "0", "Hi"]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer = server.chat(max_tokens=8).json()["choices"][0]["message"]["content"]
    assert done.stdout.decode().rstrip("\n") == answer.rstrip("\n")
