"""What is refused: wrong bodies, violated bounds, missing keys. Each with its status, and others undisturbed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.api import requests
from outrider.wire.limited_log import LimitedLog
from tests.api.world import World, make_config, serving

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "text"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [123]}, "messages"),
        ({"messages": [{}]}, "messages"),
        ({"messages": [{"role": 1, "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.content"),
        ({"messages": [*MESSAGES, *[{"role": "assistant", "content": "a"}] * 2]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}] * 4097}, "messages"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 1 << 40}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": "x" * 2000}, "stop"),
        ({"stop": ""}, "stop"),
        ({"temperature": 1e9}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_logprobs": 1000, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"logit_bias": [[1, 1.0]] * 5000}, "logit_bias"),
        ({"logit_bias": [[-5, 1.0]]}, "logit_bias"),
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": 123}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"grammar": "root ::= x", "json_schema": {}}, "grammar"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"mirostat": 2}, "mirostat"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"id_slot": 2}, "id_slot"),
        ({"speculative.types": "ngram-mod"}, "speculative.types"),
        ({"speculative": {"n_max": "a"}}, "speculative.n_max"),
    ],
)
def test_a_wrong_field_is_named(server: World, fields: dict[str, Any], name: str) -> None:
    response = server.http.post("/v1/chat/completions", json={"messages": MESSAGES, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", 400)
    assert error["param"].partition("[")[0] == name


@pytest.mark.parametrize(
    "fields", [{"logit_bias": [[100_000, 1.0]]}, {"grammar": "root ::= (not"}, {"prompt": [70_000]}]
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_only_the_target_can_tell(server: World, fields: dict[str, Any], stream: bool) -> None:
    response = server.http.post("/v1/completions", json={"prompt": "a", "stream": stream, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert server.n_sessions() == 0


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"text"', b"\xff", b'{"prompt": NaN}', b"[" * 100_000, b'{"prompt": "\\ud800"}']
)
def test_bodies_that_are_no_objects(server: World, body: bytes) -> None:
    response = server.http.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert server.http.get("/health").json() == {"status": "ok"}


def test_a_body_that_is_too_long(server: World) -> None:
    response = server.http.post("/v1/completions", content=b" " * ((8 << 20) + 1))
    assert response.status_code == 413


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(server: World, stream: bool) -> None:
    response = server.http.post("/v1/completions", json={"prompt": "a" * 600, "stream": stream})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 600, 512)


@pytest.mark.parametrize("prompt", ["", [], None, 5, [1.5], [[]], {"prompt_string": 1}, [-1], [[1], 2.5]])
def test_prompts_that_are_none(server: World, prompt: Any) -> None:
    assert server.http.post("/completion", json={"prompt": prompt}).status_code == 400


def test_paths_and_methods(server: World) -> None:
    assert server.http.get("/nothing").json()["error"]["type"] == "not_found_error"
    assert server.http.get("/v1/chat/completions").status_code == 405
    embeddings = server.http.post("/v1/embeddings", json={"input": "a"})
    assert (embeddings.status_code, embeddings.json()["error"]["type"]) == (501, "not_supported_error")


def test_unknown_fields_are_let_pass_and_logged(
    server: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_limited", LimitedLog(log=logging.getLogger("outrider.http")))
    for _ in range(2):  # the second soon after the first: a flood of them fills no disk
        assert server.chat(metadata={"a": 1}, store=False, user="me", **{"x\ny": 1}).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "ignored fields that are not known here: ['x\\ny']"
    ]


# --- keys and origins ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# for the tests\nsk-one\nsk-two\n")
    with serving(
        api_key_file=str(keys), cors_origins=["http://here"], metrics=False, slots=False, props=False, page=False
    ) as world:
        yield world


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer sk-one"}, {"X-Api-Key": "sk-two"}])
def test_a_right_key(guarded: World, headers: dict[str, str]) -> None:
    assert guarded.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer sk-"}, {"Authorization": "Basic sk-one"}, {"X-Api-Key": "# for the tests"}],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/slots"])
def test_a_wrong_key(guarded: World, headers: dict[str, str], path: str) -> None:
    response = guarded.http.get(path, headers=headers)
    assert response.status_code == 401
    assert response.json() == {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}


def test_health_needs_no_key(guarded: World) -> None:
    assert guarded.http.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/slots", "/props"])
def test_endpoints_that_are_off(guarded: World, path: str) -> None:
    response = guarded.http.get(path, headers={"X-Api-Key": "sk-one"})
    assert response.status_code == 501


def test_origins(guarded: World) -> None:
    asked = {"Origin": "http://here", "Access-Control-Request-Method": "POST"}
    allowed = guarded.http.options("/v1/completions", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "http://here"
    assert "POST" in allowed.headers["access-control-allow-methods"]
    refused = guarded.http.options("/v1/completions", headers={**asked, "Origin": "http://there"})
    assert "access-control-allow-origin" not in refused.headers


def test_no_key_is_in_the_log(guarded: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        guarded.http.get("/v1/models", headers={"X-Api-Key": "sk-one"})
        guarded.http.get("/v1/models", headers={"X-Api-Key": "sk-wrong"})
    assert "/v1/models" in caplog.text
    assert "sk-" not in caplog.text


def test_a_port_in_use_is_one_clear_error() -> None:
    from coordinator.api.server import listen
    from outrider.errors import ConfigError

    sock = listen("127.0.0.1", 0)
    try:
        with pytest.raises(ConfigError, match=r"server\.port \d+: cannot listen there"):
            listen("127.0.0.1", sock.getsockname()[1])
    finally:
        sock.close()


@pytest.mark.parametrize("text", ["", "\n# only a comment\n"])
def test_a_file_without_keys_is_an_error(tmp_path: Path, text: str) -> None:
    from coordinator.api.server import read_keys
    from outrider.errors import ConfigError

    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(str(tmp_path / "keys"))
    assert make_config().server.port == 0
