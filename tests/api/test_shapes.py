"""Shapes of answers and streams: OpenAI's own types accept them, and the order of events is llama-server's."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api.world import World

openai_types = pytest.importorskip("openai.types", reason="the package openai is not installed")
chat_types = pytest.importorskip("openai.types.chat")


def events(response: httpx.Response) -> list[Any]:
    """The data of a stream; the last one is "[DONE]" where it was sent."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def text_of(chunks: list[Any]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c != "[DONE]" and c["choices"])


def test_a_chat_answer_is_what_openai_defines(server: World) -> None:
    raw = server.chat().json()
    answer = chat_types.ChatCompletion.model_validate(raw)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_one_counter_feeds_all_reports_of_drafts(server: World) -> None:
    raw = server.chat(max_tokens=40).json()
    timings, details = raw["timings"], raw["usage"]["completion_tokens_details"]
    metrics = raw["metrics"]["speculative_decoding"]
    assert 0 < timings["draft_n_accepted"] < timings["draft_n"]
    assert details["accepted_prediction_tokens"] == metrics["num_accepted_draft_tokens"] == timings["draft_n_accepted"]
    assert details["rejected_prediction_tokens"] == timings["draft_n"] - timings["draft_n_accepted"]
    assert sum(metrics["acceptance_histogram"]) == metrics["num_spec_steps"]
    n_accepted = sum(i * n for i, n in enumerate(metrics["acceptance_histogram"]))
    assert n_accepted == metrics["num_accepted_draft_tokens"]


def test_the_order_of_a_chat_stream(server: World) -> None:
    whole = server.chat().json()
    chunks = events(server.chat(stream=True, stream_options={"include_usage": True}))
    for chunk in chunks[:-1]:
        chat_types.ChatCompletionChunk.model_validate(chunk)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:-2])
    assert chunks[-3]["choices"][0] == {"finish_reason": "length", "index": 0, "delta": {}}
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["completion_tokens"] == 8
    assert "timings" in chunks[-2]
    assert chunks[-1] == "[DONE]"
    assert len({c["id"] for c in chunks[:-1]}) == 1
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]


def test_a_stream_without_usage_ends_with_the_finish_reason(server: World) -> None:
    chunks = events(server.chat(stream=True))
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


def test_text_completions(server: World) -> None:
    raw = server.http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 6, "echo": True}).json()
    answer = openai_types.Completion.model_validate(raw)
    assert answer.choices[0].text.startswith("Once")
    chunks = events(server.http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 6, "stream": True}))
    openai_types.Completion.model_validate(chunks[-2])  # the others have no finish reason, as OpenAI's have not
    assert "Once" + "".join(c["choices"][0]["text"] for c in chunks[:-1]) == answer.choices[0].text


def test_several_choices_and_prompts(server: World) -> None:
    chosen = server.chat(n=3, temperature=1.0, max_tokens=12).json()["choices"]
    assert [choice["index"] for choice in chosen] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in chosen}) == 3
    chunks = events(server.chat(n=3, temperature=1.0, max_tokens=12, stream=True))
    for i, choice in enumerate(chosen):
        own = [c for c in chunks[:-1] if c["choices"][0]["index"] == i]
        assert text_of(own) == choice["message"]["content"]
    both = server.http.post("/completion", json={"prompt": ["a", [97]], "n_predict": 4, "temperature": 0}).json()
    assert [one["index"] for one in both] == [0, 1]
    assert both[0]["content"] == both[1]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_every_prompt_counts_once(server: World, stream: bool) -> None:
    body = {"prompt": ["Once", "Once upon a time"], "n": 2, "max_tokens": 3, "stream": stream, "cache_prompt": False}
    if stream:
        body["stream_options"] = {"include_usage": True}
    response = server.http.post("/v1/completions", json=body)
    usage = (events(response)[-2] if stream else response.json())["usage"]
    alone = [
        server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 3}).json()["usage"]["prompt_tokens"]
        for prompt in body["prompt"]
    ]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (sum(alone), 12)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12


def test_logprobs_of_text_completions(server: World) -> None:
    body = {"prompt": "Once", "max_tokens": 6, "logprobs": 2, "echo": True}
    choice = openai_types.Completion.model_validate(server.http.post("/v1/completions", json=body).json()).choices[0]
    found = choice.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 6
    assert "".join(found.tokens) == choice.text.removeprefix("Once")
    assert found.text_offset[:2] == [4, 4 + len(found.tokens[0])]
    assert all(1 <= len(best) <= 2 for best in found.top_logprobs)  # two that are no text look alike
    chunks = events(server.http.post("/v1/completions", json={**body, "echo": False, "stream": True}))
    streamed = [n for c in chunks[:-1] if (own := c["choices"][0]["logprobs"]) for n in own["text_offset"]]
    assert streamed == [n - 4 for n in found.text_offset]


def test_no_tokens_asked_for(server: World) -> None:
    answer = server.chat(max_tokens=0).json()
    assert answer["choices"][0]["message"]["content"] == ""
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 0)


def test_seeds(server: World) -> None:
    texts = [server.chat(temperature=1.0, seed=seed).json()["choices"][0]["message"]["content"] for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def test_logprobs_of_chats(server: World) -> None:
    raw = server.chat(logprobs=True, top_logprobs=3).json()
    entries = chat_types.ChatCompletion.model_validate(raw).choices[0].logprobs.content
    assert len(entries) == 8
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    chunks = events(server.chat(logprobs=True, top_logprobs=3, stream=True))
    streamed = [e for c in chunks[1:-2] for e in c["choices"][0]["logprobs"]["content"]]
    assert streamed == raw["choices"][0]["logprobs"]["content"]
    assert (
        b"".join(bytes(entry.bytes) for entry in entries).decode("utf-8", "replace")
        == (raw["choices"][0]["message"]["content"])
    )


def test_probabilities_after_sampling(server: World) -> None:
    body = {"prompt": "a", "n_predict": 4, "n_probs": 5, "post_sampling_probs": True, "temperature": 1.0, "top_k": 2}
    entries = server.http.post("/completion", json={**body, "min_p": 0, "top_p": 1}).json()["completion_probabilities"]
    assert len(entries) == 4
    for entry in entries:
        assert len(entry["top_probs"]) == 2
        assert sum(best["prob"] for best in entry["top_probs"]) == pytest.approx(1.0)
        assert entry["prob"] in [best["prob"] for best in entry["top_probs"]]


def test_stop_strings_and_the_reason(server: World) -> None:
    body = {"prompt": "a", "n_predict": 20, "temperature": 0}
    text = server.http.post("/completion", json=body).json()["content"]
    stop = text[6:8]
    stopped = server.http.post("/completion", json={**body, "stop": [stop]}).json()
    assert stopped["content"] == text[: text.index(stop)]
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", stop)


def test_the_native_answer(server: World) -> None:
    body = {"prompt": "abc", "n_predict": 5, "return_tokens": True, "seed": 3}
    answer = server.http.post("/completion", json=body).json()
    assert answer["tokens_predicted"] == len(answer["tokens"]) == 5
    assert answer["generation_settings"]["n_predict"] == 5
    assert (answer["stop_type"], answer["truncated"], answer["prompt"]) == ("limit", False, "abc")
    chosen = server.http.post(
        "/completion", json={**body, "response_fields": ["content", "timings/predicted_n"]}
    ).json()
    assert chosen == {"content": answer["content"], "timings/predicted_n": 5}
    chunks = events(server.http.post("/completion", json={**body, "stream": True}))
    assert [token for c in chunks[:-1] for token in c["tokens"]] == answer["tokens"]
    assert chunks[-1]["stop"] is True
    assert "".join(c["content"] for c in chunks) == answer["content"]


def test_a_context_that_is_full_is_said_to_be(server: World) -> None:
    body = {"prompt": [97] * 500, "n_predict": 60, "temperature": 0, "ignore_eos": True}
    answer = server.http.post("/completion", json=body).json()
    assert answer["tokens_predicted"] == 12
    assert (answer["stop_type"], answer["truncated"]) == ("limit", True)


def test_text_services(server: World) -> None:
    tokens = server.http.post("/tokenize", json={"content": "héllo"}).json()["tokens"]
    assert server.http.post("/detokenize", json={"tokens": tokens}).json() == {"content": "héllo"}
    pieces = server.http.post("/tokenize", json={"content": "hé", "with_pieces": True}).json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["h", [0xC3], [0xA9]]
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    rendered = server.http.post("/apply-template", json={"messages": messages}).json()
    assert rendered == {"prompt": "<user>a\nb\n<assistant>"}
    counted = server.http.post("/v1/chat/completions/input_tokens", json={"messages": messages}).json()
    assert counted["input_tokens"] == len(rendered["prompt"])


def test_an_answer_that_is_begun_is_gone_on_with(server: World) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rendered = server.http.post("/apply-template", json={"messages": messages}).json()
    assert rendered == {"prompt": "<user>a\n<assistant>b"}


def test_models_props_slots(server: World) -> None:
    (model,) = server.http.get("/v1/models").json()["data"]
    openai_types.Model.model_validate(model)
    props = server.http.get("/props").json()
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert [slot["is_processing"] for slot in server.http.get("/slots").json()] == [False, False]


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health(server: World, path: str) -> None:
    assert server.http.get(path).json() == {"status": "ok"}


def test_speculation_of_one_request(server: World) -> None:
    plain = server.chat(**{"speculative.n_max": 0}).json()
    off = server.chat(speculative={"types": "none"}).json()
    drafted = server.chat().json()
    assert "draft_n" not in plain["timings"]
    assert "draft_n" not in off["timings"]
    assert drafted["timings"]["draft_n"] > 0
    assert len({answer["choices"][0]["message"]["content"] for answer in (plain, off, drafted)}) == 1


def test_json_and_grammars(server: World) -> None:
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    answer = server.chat(response_format=format, max_tokens=40).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"a": "x"}
    answer = server.chat(grammar='root ::= "ab"{2}').json()
    assert answer["choices"][0]["message"]["content"] == "abab"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_tokens_of_drafts_are_marked(server: World) -> None:
    chunks = events(server.chat(stream=True, max_tokens=30, draft_marks=True, stream_options={"include_usage": True}))
    marks = [chunk["draft"]["accepted"] for chunk in chunks if chunk != "[DONE]" and "draft" in chunk]
    assert len(marks) == 30
    assert sum(marks) == chunks[-2]["timings"]["draft_n_accepted"]


def test_the_page(server: World) -> None:
    page = server.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert page.text.startswith("<!doctype html>")
    assert "http://" not in page.text.replace("http://www.w3.org", "")  # nothing is loaded from elsewhere


def test_a_prediction_saves_rounds_and_changes_nothing(server: World) -> None:
    plain = server.chat(max_tokens=60, **{"speculative.n_max": 0}).json()
    text = plain["choices"][0]["message"]["content"].replace("\ufffd", "")
    prediction = {"type": "content", "content": [{"type": "text", "text": text}]}
    predicted = server.chat(max_tokens=60, prediction=prediction, **{"speculative.n_max": 0}).json()
    assert predicted["choices"] == plain["choices"]
    assert predicted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0


def test_timings_of_every_token(server: World) -> None:
    chunks = events(server.chat(stream=True, timings_per_token=True))
    assert "timings" not in chunks[0]
    counts = [chunk["timings"]["predicted_n"] for chunk in chunks[1:-2]]
    assert counts == sorted(counts)
    assert counts[-1] == 8


def test_progress_of_the_prompt(server: World) -> None:
    body = {"prompt": [98] * 400, "n_predict": 3, "stream": True, "return_progress": True}
    chunks = events(server.http.post("/completion", json=body))
    reports = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert reports[0] == {"total": 400, "cache": 0, "processed": 0, "time_ms": 0}
    processed = [report["processed"] for report in reports]
    assert processed == sorted(set(processed))
    assert processed[-1] == 400
    assert len(processed) >= 3
    again = events(server.http.post("/completion", json=body))
    first = again[0]["prompt_progress"]
    assert first["cache"] == first["processed"] == 399
    assert "".join(chunk["content"] for chunk in again) == "".join(chunk["content"] for chunk in chunks)
