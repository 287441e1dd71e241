"""OpenAI's client for Node against the running program. It needs Node and the npm package `openai`, found by NODE_PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.process.cli import Cli, poll_for
from tests.process.test_serve import serving

SCRIPT = Path(__file__).with_name("openai_client.cjs")
KEY = "sesame"


def why_not() -> str:
    """Why the client cannot be run here; empty if it can."""
    node = shutil.which("node")
    if node is None:
        return "Node is not installed"
    found = subprocess.run([node, "-e", "require.resolve('openai')"], cwd=SCRIPT.parent, capture_output=True)
    return "the npm package openai is not found (npm install openai, NODE_PATH=…/node_modules)" * bool(found.returncode)


REASON = why_not()
pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(REASON), reason=REASON)]


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    folder = tmp_path / "t"
    folder.mkdir()
    cli = Cli(folder, uuid4().hex)
    yield cli
    poll_for(lambda: not cli.processes(), 3.0)


def session(url: str) -> dict[str, Any]:
    done = subprocess.run(["node", str(SCRIPT), url, KEY], capture_output=True, timeout=100, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_session(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    with serving(cli, "--api-key-file", str(keys), "--ctx-size", "5000", "-np", "1") as (_, url):
        seen = session(url)  # with one sequence: it could not go on if a cancelled request kept its own
    text = seen["chat"]["content"]
    assert seen["chat"]["role"] == "assistant"
    assert seen["usage"]["completion_tokens"] == 12
    assert seen["streamed"] == {"text": text, "tokens": 12}
    assert seen["helper"] == text
    assert seen["models"] == ["model"]
    assert seen["logprobs"] == 12
    assert list(seen["json"]) == ["a"]
    assert seen["abortedStream"] < 100
    assert seen["abortedAnswer"]["name"] == "APIUserAbortError"
    errors = {step: (seen[step]["name"], seen[step]["status"]) for step in ("badField", "tooLong", "badPath", "badKey")}
    assert errors == {
        "badField": ("BadRequestError", 400),
        "tooLong": ("BadRequestError", 400),
        "badPath": ("NotFoundError", 404),
        "badKey": ("AuthenticationError", 401),
    }
    assert "temperature" in seen["badField"]["message"]
    assert "context" in seen["tooLong"]["message"]
