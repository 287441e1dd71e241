"""The endpoints that generate: `/v1/chat/completions`, `/v1/completions` and llama-server's `/completion`.

Each is: parse, make prompts, start, and either collect the answers or stream them. What differs is a `Shape`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from coordinator.api import responses, settings
from coordinator.api.bridge import Done, Run
from coordinator.api.errors import ApiError, bad_field
from coordinator.api.prompts import Prompt
from coordinator.api.requests import Chat, Completion, Generate, parse
from coordinator.api.responses import Head, Native, Object
from coordinator.api.state import Api
from coordinator.api.streams import DONE, EventStream, Json, event, while_connected
from coordinator.assemble import make_session_chain
from coordinator.instructions import Emit, Part
from coordinator.request import Request
from outrider.config import Config

log = logging.getLogger("outrider.http")


class Shape(Protocol):
    """How the answers of one endpoint look. A stream is: progress, first, chunks, last of each choice, end."""

    def whole(self, answers: Sequence[Object]) -> Any: ...
    def progress(self, index: int) -> list[Object]: ...
    def first(self, index: int) -> list[Object]: ...
    def chunk(self, index: int, part: Part | None, text: str) -> list[Object]: ...
    def last(self, index: int, answer: Object) -> list[Object]: ...
    def end(self, answers: Sequence[Object]) -> list[Object]: ...

    ends_with_done: bool


@dataclass(slots=True)
class Started:
    """A request that runs."""

    config: Config
    requests: list[Request]
    run: Run


async def chat_completions(request: HttpRequest, api: Api, data: bytes) -> Response:
    body = parse(data, Chat)

    is_verbose = body.verbose if body.verbose is not None else api.config.log.verbose

    async def prepare() -> list[Prompt]:
        prompt = await api.prompts.of_chat(body)
        return await _as_read(api, [prompt]) if is_verbose else [prompt]

    prompts, started = await _start(request, api, body, prepare)
    # llama-server's `__verbose`: the request in its own form.
    verbose = _native(api, body, prompts[0].text, started.requests[0], started.config) if is_verbose else None
    shape = ChatShape(api.head(), body.include_usage, verbose, bool(body.draft_marks))
    return await _answer(request, api, body, shape, started)


async def completions(request: HttpRequest, api: Api, data: bytes) -> Response:
    """OpenAI's. Without `/v1` the path means llama-server's own."""
    body = parse(data, Completion)
    if body.best_of is not None and body.best_of != body.n_choices:
        raise bad_field("best_of", "is not supported; ask for n")
    if body.echo and body.stream:
        raise bad_field("echo", "is not supported in a stream")

    async def prepare() -> list[Prompt]:
        return (await api.prompts.of_completion(body.prompt))[0]

    prompts, started = await _start(request, api, body, prepare)
    echoes = [prompt.text if body.echo else "" for prompt in prompts for _ in range(body.n_choices)]
    shape = TextShape(api.head(), body.include_usage, echoes, len(prompts))
    return await _answer(request, api, body, shape, started)


async def native_completion(request: HttpRequest, api: Api, data: bytes) -> Response:
    body = parse(data, Completion)

    async def prepare() -> list[Prompt]:
        return await _as_read(api, (await api.prompts.of_completion(body.prompt))[0])

    prompts, started = await _start(request, api, body, prepare)
    texts = [prompt.text for prompt in prompts for _ in range(body.n_choices)]
    natives = [
        _native(api, body, text, made, started.config) for text, made in zip(texts, started.requests, strict=True)
    ]
    return await _answer(request, api, body, NativeShape(natives, body.response_fields or []), started)


def _native(api: Api, body: Generate, text: str, request: Request, config: Config) -> Native:
    return Native(
        api.names[0],
        text,
        settings.shown(config, request, stream=bool(body.stream)),
        request.n_predict,
        bool(body.return_tokens),
        config.sampling.post_sampling_probs,
    )


async def _as_read(api: Api, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with the texts that the target reads: a BOS, say, is part of them."""
    return [Prompt(prompt.tokens, await api.prompts.detokenize(prompt.tokens, special=True)) for prompt in prompts]


# --- what all three do -------------------------------------------------------------------------------------------


async def _start(request: HttpRequest, api: Api, body: Generate, prepare: Any) -> tuple[list[Prompt], Started]:
    if api.bridge.draining:
        raise ApiError(503, "the server is ending")
    n_seq = api.config.coordinator.n_seq
    if body.id_slot is not None and body.id_slot >= n_seq:
        raise bad_field("id_slot", f"there are {n_seq} slots, from 0 on")

    async def work() -> tuple[list[Prompt], Config, list[int]]:
        prompts = await prepare()
        biases = await api.prompts.logit_bias(body.logit_bias)
        prediction = await api.prompts.prediction(body.prediction)
        return prompts, settings.configured(api.config, body, biases, fixed_seed=api.fixed_seed), prediction

    prompts, config, prediction = await while_connected(request, work())
    made = settings.requests(config, body, [prompt.tokens for prompt in prompts], prediction)
    run = api.bridge.start(made, lambda: make_session_chain(config, api.shared))
    return prompts, Started(config, made, run)


async def _answer(request: HttpRequest, api: Api, body: Generate, shape: Shape, started: Started) -> Response:
    """The response. The first event of a stream is awaited for a while, so that what fails at once has a status of its own;
    then the stream begins, for a client must not be left without a sign of life while a long prompt is read."""
    run = started.run
    try:
        if not body.stream:
            return Json(shape.whole(await while_connected(request, _collect(run, len(started.requests)))))
        first = asyncio.ensure_future(run.next())
        try:
            await while_connected(request, asyncio.wait((first,), timeout=api.config.server.ping_s))
            if first.done():
                first.result()
        except BaseException:
            first.cancel()
            raise
        events = _stream(run, shape, first, started.requests, bool(body.timings_per_token))
        return EventStream(events, run.cancel, api.config.server.ping_s)
    except BaseException:
        run.cancel()
        raise


async def _collect(run: Run, n: int) -> list[Object]:
    answers: dict[int, Object] = {}
    while len(answers) < n:
        index, item = await run.next()
        if isinstance(item, Done):
            answers[index] = item.answer
    return [answers[i] for i in range(n)]


async def _stream(
    run: Run, shape: Shape, first: Awaitable[tuple[int, Emit | Done]], requests: Sequence[Request], timed: bool
) -> AsyncIterator[bytes]:
    """Events as bytes. An error after the beginning is a last event without `[DONE]` behind it."""
    answers: dict[int, Object] = {}
    begun: dict[int, Pace] = {}
    reading: dict[int, Reading] = {}
    n = len(requests)
    try:
        index, item = await first
        while True:
            if isinstance(item, Emit) and item.n_held is not None:
                progress = reading.setdefault(index, Reading(len(requests[index].prompt), item.n_held))
                yield b"".join(event(progress.on(chunk, item.n_held)) for chunk in shape.progress(index))
                index, item = await run.next()
                continue
            objects = shape.first(index) if index not in begun else []
            pace = begun.setdefault(index, Pace())
            if isinstance(item, Done):
                answers[index] = item.answer
                objects += shape.last(index, item.answer)
            else:
                chunks = [chunk for part, text in _pieces(item) for chunk in shape.chunk(index, part, text)]
                pace.count(len(item.parts))
                objects += [{**chunk, "timings": pace.timings()} for chunk in chunks] if timed else chunks
            if len(answers) == n:
                objects += shape.end([answers[i] for i in range(n)])
            yield b"".join(map(event, objects)) or b": \n\n"
            if len(answers) == n:
                break
            index, item = await run.next()
    except ApiError as error:
        yield event(error.body)
        return
    if shape.ends_with_done:
        yield DONE


class Reading:
    """How far the prompt of one answer is read, as `return_progress` shows it. The first report is the beginning."""

    def __init__(self, total: int, cached: int) -> None:
        self._total, self._cached, self._start = total, cached, perf_counter()

    def on(self, chunk: Object, n_held: int) -> Object:
        """`chunk` with the state of things."""
        n, ms = n_held - self._cached, 1e3 * (perf_counter() - self._start) if n_held > self._cached else 0.0
        shown = {"total": self._total, "cache": self._cached, "processed": n_held, "time_ms": int(ms)}
        timings = {"cache_n": self._cached, "prompt_n": n, "prompt_ms": ms, "predicted_n": 0, "predicted_ms": 0.0}
        return {**chunk, "prompt_progress": shown, "timings": timings}


@dataclass(slots=True)
class Pace:
    """How fast the tokens of one answer come, as `timings_per_token` shows it."""

    start: float = 0.0  # of the first tokens
    n: int = 0
    n_first: int = 0

    def count(self, n: int) -> None:
        if not self.n:
            self.start, self.n_first = perf_counter(), n
        self.n += n

    def timings(self) -> Object:
        seconds = perf_counter() - self.start
        rate = (self.n - self.n_first) / seconds if seconds > 0 else 0.0
        return {"predicted_n": self.n, "predicted_ms": 1e3 * seconds, "predicted_per_second": rate}


def _pieces(emit: Emit) -> list[tuple[Part | None, str]]:
    """Token by token; what was held back to the end has no token."""
    if not emit.parts:
        return [(None, emit.text)] if emit.text else []
    return [(part, part.text) for part in emit.parts]


@dataclass(slots=True)
class ChatShape:
    head: Head
    include_usage: bool
    verbose: Native | None
    draft_marks: bool
    ends_with_done: bool = True

    def whole(self, answers: Sequence[Object]) -> Object:
        response = responses.chat_answer(self.head, answers)
        if self.verbose is not None:
            response["__verbose"] = self.verbose.final(0, answers[0], stream=False)
        return response

    def progress(self, index: int) -> list[Object]:
        return [responses.chat_chunk(self.head, index, {})]

    def first(self, index: int) -> list[Object]:
        return [responses.chat_chunk(self.head, index, {"role": "assistant", "content": None})]

    def chunk(self, index: int, part: Part | None, text: str) -> list[Object]:
        probs = responses.part_probabilities(part) if part else []
        marked = self.draft_marks and part is not None
        if not text and not probs and not marked:
            return []
        chunk = responses.chat_chunk(self.head, index, {"content": text}, probs=probs)
        return [{**chunk, "draft": {"accepted": part.accepted}} if marked and part else chunk]

    def last(self, index: int, answer: Object) -> list[Object]:
        return [responses.chat_chunk(self.head, index, {}, answer["finish_reason"])]

    def end(self, answers: Sequence[Object]) -> list[Object]:
        if not self.include_usage:
            return []
        return [responses.with_counts(self.head.chat([], "chat.completion.chunk"), answers)]


@dataclass(slots=True)
class TextShape:
    head: Head
    include_usage: bool
    echoes: list[str]
    n_prompts: int
    ends_with_done: bool = True
    _n_chars: Counter[int] = field(default_factory=Counter)  # of the tokens of each choice so far

    def whole(self, answers: Sequence[Object]) -> Object:
        return responses.text_answer(self.head, answers, self.echoes, self.n_prompts)

    def progress(self, index: int) -> list[Object]:
        return [self.head.text([responses.text_choice(index, "", None)])]

    def first(self, index: int) -> list[Object]:
        return []

    def chunk(self, index: int, part: Part | None, text: str) -> list[Object]:
        probs = responses.part_probabilities(part) if part else []
        offset = self._n_chars[index]
        self._n_chars[index] += sum(len(entry["token"]) for entry in probs)
        return [self.head.text([responses.text_choice(index, text, None, probs, offset)])] if text or probs else []

    def last(self, index: int, answer: Object) -> list[Object]:
        return [self.head.text([responses.text_choice(index, "", answer["finish_reason"])])]

    def end(self, answers: Sequence[Object]) -> list[Object]:
        if not self.include_usage:
            return []
        return [responses.with_counts(self.head.text([]), answers, n_prompts=self.n_prompts)]


class NativeShape:
    """One object for a single prompt, a list for several."""

    ends_with_done = False

    def __init__(self, natives: Sequence[Native], fields: Sequence[str]) -> None:
        self._natives, self._fields = natives, fields
        self._n_tokens = [0] * len(natives)

    def whole(self, answers: Sequence[Object]) -> Any:
        finals = [
            responses.selected(native.final(i, answer, stream=False), self._fields)
            for i, (native, answer) in enumerate(zip(self._natives, answers, strict=True))
        ]
        return finals[0] if len(finals) == 1 else finals

    def progress(self, index: int) -> list[Object]:
        return [self._natives[index].chunk(index, 0, None, "")]

    def first(self, index: int) -> list[Object]:
        return []

    def chunk(self, index: int, part: Part | None, text: str) -> list[Object]:
        self._n_tokens[index] += part is not None
        return [self._natives[index].chunk(index, self._n_tokens[index], part, text)]

    def last(self, index: int, answer: Object) -> list[Object]:
        return [responses.selected(self._natives[index].final(index, answer, stream=True), self._fields)]

    def end(self, answers: Sequence[Object]) -> list[Object]:
        return []
