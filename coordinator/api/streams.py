"""Server-sent events, and clients that go away: whatever is sent or awaited ends as soon as nobody listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from coordinator.api.errors import ApiError

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """Nobody listens any more."""


class Json(JSONResponse):
    """Fast, and refuses what JSON does not have (nan, inf become null)."""

    def render(self, content: Any) -> bytes:
        return _encode(content)


def with_header(response: Response, name: str, value: str) -> Response:
    """The same response with this header, its name as it is written here (the library would make it lower case)."""
    response.raw_headers.append((name.encode("latin-1"), value.encode("latin-1")))
    return response


def error_response(error: ApiError) -> Response:
    return Json(error.body, error.status, headers=dict(error.headers))


def event(data: Any) -> bytes:
    return b"data: " + _encode(data) + b"\n\n"


async def while_connected(request: HttpRequest, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client goes away: then ClientGone is raised."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, gone)


class EventStream(Response):
    """Sends what `events` yields. Silence of `ping_s` seconds is filled with comments, so that proxies keep the
    connection. `close` is called at the end, however it comes."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None], ping_s: float) -> None:
        self._events, self._close, self._ping_s = events, close, ping_s
        self.status_code, self.background = 200, None
        self.media_type = "text/event-stream"
        self.body = b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sender, gone), return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                with contextlib.suppress(OSError):  # it went away just now
                    sender.result()
        finally:
            self._close()
            await _end(sender, gone)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        waiting: asyncio.Future[bytes] = asyncio.ensure_future(_following(self._events))
        try:
            while True:
                ready, _ = await asyncio.wait((waiting,), timeout=self._ping_s)
                if not ready:
                    await _send_body(send, PING)
                    continue
                chunk = waiting.result()
                if not chunk:
                    break
                await _send_body(send, chunk)
                waiting = asyncio.ensure_future(_following(self._events))
        finally:
            await _end(waiting)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _following(events: AsyncIterator[bytes]) -> bytes:
    """The next event; empty at the end."""
    return await anext(events, b"")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
