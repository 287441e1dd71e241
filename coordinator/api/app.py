"""Routes, and what is done for all of them: keys, origins, bounds of the body, errors as JSON."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from secrets import token_hex
from time import perf_counter

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from coordinator.api import generation, handlers
from coordinator.api.errors import TYPES, ApiError
from coordinator.api.state import Api
from coordinator.api.streams import ClientGone, error_response, with_header

log = logging.getLogger("outrider.http")

Handler = Callable[[HttpRequest, Api, bytes], Awaitable[Response]]

#: Paths for which no key is needed.
PUBLIC = frozenset({"/", "/health", "/v1/health"})
#: Seconds that a client may take to send its body.
BODY_TIMEOUT_S = 30.0

_LOCALHOST = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")

GET: dict[str, Handler] = {
    "/health": handlers.get_health,
    "/models": handlers.get_models,
    "/version": handlers.get_version,
    "/props": handlers.get_props,
    "/slots": handlers.get_slots,
    "/metrics": handlers.get_metrics,
    "/": handlers.get_page,
}
POST: dict[str, Handler] = {
    "/chat/completions": generation.chat_completions,
    "/v1/completions": generation.completions,
    "/completion": generation.native_completion,
    "/completions": generation.native_completion,
    "/chat/completions/input_tokens": handlers.count_input_tokens,
    "/tokenize": handlers.tokenize,
    "/detokenize": handlers.detokenize,
    "/apply-template": handlers.apply_template,
    **dict.fromkeys(("/embeddings", "/embedding", "/rerank", "/infill", "/responses"), handlers.not_supported),
}
#: Paths that also stand behind /v1.
WITH_V1 = ("/health", "/models", "/chat/completions", "/chat/completions/input_tokens", "/embeddings", "/responses")


def make_app(api: Api) -> Starlette:
    routes = [
        Route(path, _endpoint(handler, api), methods=[method, "OPTIONS"])
        for method, table in (("GET", GET), ("POST", POST))
        for path, handler in _with_v1(table).items()
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


def _with_v1(table: dict[str, Handler]) -> dict[str, Handler]:
    return {**table, **{f"/v1{path}": table[path] for path in WITH_V1 if path in table}}


def _endpoint(handler: Handler, api: Api) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def endpoint(request: HttpRequest) -> Response:
        is_preflight = request.method == "OPTIONS"
        response = Response() if is_preflight else await _guarded(handler, api, request)
        headers = {**_origin(api, request), **(_preflight(api, request) if is_preflight else {})}
        for name, value in headers.items():
            with_header(response, name, value)
        return response

    return endpoint


async def _guarded(handler: Handler, api: Api, request: HttpRequest) -> Response:
    """The handler's response, or the one that says what went wrong."""
    id, start = token_hex(6), perf_counter()
    try:
        check_key(api.keys, request)
        data = await read_body(request, api.config.server.max_body_bytes) if request.method == "POST" else b""
        response = await handler(request, api, data)
    except ApiError as error:
        response = error_response(error)
    except (ClientGone, ClientDisconnect):
        response = Response(status_code=499)  # nobody reads it
    except Exception:
        log.exception("request %s: %s %s", id, request.method, request.url.path)
        response = error_response(ApiError(500, f"a fault of the server; its log has it under request {id}"))
    response.headers["X-Request-Id"] = id
    took_ms = 1e3 * (perf_counter() - start)
    log.info("request %s: %s %s %d %.0f ms", id, request.method, request.url.path, response.status_code, took_ms)
    return response


def check_key(keys: tuple[bytes, ...], request: HttpRequest) -> None:
    """Raise ApiError 401 unless the request has one of the keys, or needs none. Takes as long for every wrong key."""
    if not keys or request.url.path in PUBLIC:
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    matches = [hmac.compare_digest(given.encode("latin-1", "replace"), key) for key in keys]
    if not any(matches):
        raise ApiError(401, "Invalid API Key")


async def read_body(request: HttpRequest, limit: int) -> bytes:
    """Raises ApiError 413 for a longer body, 408 for one that does not come, ClientDisconnect."""
    parts: list[bytes] = []
    n_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                n_bytes += len(part)
                if n_bytes > limit:
                    raise ApiError(413, f"the body is longer than {limit} bytes (server.max_body_bytes)")
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {BODY_TIMEOUT_S:.0f} s") from None
    return b"".join(parts)


def _origin(api: Api, request: HttpRequest) -> dict[str, str]:
    """Pages of these origins may read our answers."""
    origin = request.headers.get("origin", "")
    if not origin or not is_allowed(origin, api.config.server.cors_origins):
        return {}
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def is_allowed(origin: str, allowed: Collection[str]) -> bool:
    """Is it one of these origins? `*`: all; `localhost`: those of this machine, on any port."""
    return "*" in allowed or origin in allowed or ("localhost" in allowed and bool(_LOCALHOST.fullmatch(origin)))


def _preflight(api: Api, request: HttpRequest) -> dict[str, str]:
    if not _origin(api, request):
        return {}
    return {
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": "*",
    }


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in TYPES else 500
    what = "has no such path" if status == 404 else str(error.detail)
    return error_response(ApiError(status, f"{request.method} {request.url.path}: {what}"))
