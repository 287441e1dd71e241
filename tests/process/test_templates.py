"""A hostile chat template and the program that serves it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.process.cli import Cli, kill, poll_for
from tests.process.test_serve import BODY, get, serving, text

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def post(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def chat(url: str) -> tuple[int, dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    return post(f"{url}/v1/chat/completions", body)


def flags(tmp_path: Path, template: str) -> list[str]:
    path = tmp_path / "template.jinja"
    path.write_text(template)
    return ["--chat-template-file", str(path)]


def test_a_template_of_its_own(cli: Cli, tmp_path: Path) -> None:
    with serving(cli, *flags(tmp_path, PLAIN)) as (_, url):
        assert (
            post(f"{url}/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})[1]["prompt"] == "[user]Hi"
        )
        assert chat(url)[0] == 200
        assert len(cli.processes("template_child")) == 1


def test_others_go_on(cli: Cli, tmp_path: Path) -> None:
    with serving(cli, *flags(tmp_path, ENDLESS)) as (_, url), ThreadPoolExecutor(3) as pool:
        target, expected = cli.worker("target"), text(url, BODY)
        streams = [pool.submit(text, url, BODY) for _ in range(3)]
        status, answer = chat(url)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert "took more than 1 s" in answer["error"]["message"]
        assert "\n" not in answer["error"]["message"]
        assert [stream.result() for stream in streams] == [expected] * 3
        assert get(f"{url}/health") == (200, {"status": "ok"})
        assert cli.worker("target") == target


def test_a_worker_that_dies_while_its_template_runs(cli: Cli, tmp_path: Path) -> None:
    with serving(cli, *flags(tmp_path, ENDLESS)) as (_, url), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(chat, url)
        child = poll_for(lambda: cli.processes("template_child"))
        kill(cli.worker("target"))
        assert answer.result()[0] == 503
        poll_for(lambda: not set(child) & set(cli.processes("template_child")))
