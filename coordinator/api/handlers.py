"""The endpoints that do not generate: health, models, text services, state, metrics, the page."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response

from coordinator.api.errors import ApiError
from coordinator.api.requests import Chat, DetokenizeBody, Template, TokenizeBody, parse
from coordinator.api.settings import shown
from coordinator.api.state import Api, facts, fingerprint, health
from coordinator.api.streams import Json, error_response, while_connected, with_header
from coordinator.assemble import make_request
from coordinator.live import Live

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def get_health(request: HttpRequest, api: Api, data: bytes) -> Response:
    """200 while requests can be answered, with `degraded` where drafting is on and cannot happen; else 503."""
    bridge = api.bridge
    state, reason = await bridge.get(lambda: health(bridge, api.config))
    if state in ("loading", "unavailable"):
        return error_response(ApiError(503, reason))
    return Json({"status": state, **({"reason": reason} if reason else {})})


async def get_models(request: HttpRequest, api: Api, data: bytes) -> Response:
    names = api.names
    model = {
        "id": names[0],
        "object": "model",
        "created": api.started,
        "owned_by": "outrider",
        "aliases": names,
        "tags": sorted(api.config.server.tags),
    }
    return Json({"object": "list", "data": [model]})


async def get_version(request: HttpRequest, api: Api, data: bytes) -> Response:
    return Json({"version": fingerprint()})


async def tokenize(request: HttpRequest, api: Api, data: bytes) -> Response:
    body = parse(data, TokenizeBody)
    work = api.prompts.tokenize(
        body.content,
        add_special=body.add_special,
        parse_special=body.parse_special,
        with_pieces=body.with_pieces,
    )
    result = await while_connected(request, work)
    if not body.with_pieces:
        return Json({"tokens": result.tokens})
    pairs = zip(result.tokens, result.pieces, strict=True)
    return Json({"tokens": [{"id": token, "piece": _shown_piece(piece)} for token, piece in pairs]})


def _shown_piece(piece: bytes) -> str | list[int]:
    """Text, or the bytes where they are no text by themselves."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(request: HttpRequest, api: Api, data: bytes) -> Response:
    body = parse(data, DetokenizeBody)
    text = await while_connected(request, api.prompts.detokenize(body.tokens, special=True))
    return Json({"content": text})


async def apply_template(request: HttpRequest, api: Api, data: bytes) -> Response:
    text = await while_connected(request, api.prompts.render(parse(data, Template)))
    return Json({"prompt": text})


async def count_input_tokens(request: HttpRequest, api: Api, data: bytes) -> Response:
    prompt = await while_connected(request, api.prompts.of_chat(parse(data, Chat)))
    return Json({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})


async def get_props(request: HttpRequest, api: Api, data: bytes) -> Response:
    if not api.config.server.props:
        raise ApiError(501, "this server was started without the endpoint /props (server.props)")
    known = await _facts(api)
    params = shown(api.config, make_request(api.config, [0]), stream=True)
    return Json(
        {
            "default_generation_settings": {"n_ctx": known["n_ctx"], "params": params},
            "total_slots": known["n_seq"],
            "model_path": api.config.target.model,
            "model_alias": api.names[0],
            "has_chat_template": known["has_chat_template"],
            "modalities": {"vision": False, "audio": False},
            "build_info": fingerprint(),
        }
    )


async def _facts(api: Api) -> dict[str, Any]:
    known = await api.bridge.get(lambda: facts(api.bridge.service))
    if known is None:
        raise ApiError(503, "Loading model")
    return known


async def get_slots(request: HttpRequest, api: Api, data: bytes) -> Response:
    if not api.config.server.slots:
        raise ApiError(501, "this server was started without the endpoint /slots (server.slots)")
    slots = await api.bridge.get(lambda: _slots(api))
    if slots is None:
        raise ApiError(503, "Loading model")
    return Json(slots)


def _slots(api: Api) -> list[dict[str, Any]] | None:
    """One entry per sequence of the target: first those that are busy. In the coordinator's thread."""
    service, known = api.bridge.service, facts(api.bridge.service)
    if known is None:
        return None
    running = [service.live[t.session] for t in api.bridge.admission.running if t.session in service.live]
    busy = [_busy(live) for live in running]
    idle = [
        {"is_processing": False, "n_prompt_tokens": 0, "next_token": [{"n_decoded": 0, "n_remain": -1}]}
        for _ in range(known["n_seq"] - len(busy))
    ]
    speculative = bool(api.config.speculative.types)
    return [
        {"id": i, "n_ctx": known["n_ctx"], "speculative": speculative, **slot} for i, slot in enumerate([*busy, *idle])
    ]


def _busy(live: Live) -> dict[str, Any]:
    session = live.session
    n_decoded = len(session.generated)
    n_remain = session.request.n_predict - n_decoded if session.request.n_predict >= 0 else -1
    return {
        "is_processing": True,
        "id_task": session.request.session,
        "n_prompt_tokens": len(session.request.prompt),
        "phase": session.phase.value,
        "next_token": [{"n_decoded": n_decoded, "n_remain": n_remain}],
    }


async def get_metrics(request: HttpRequest, api: Api, data: bytes) -> Response:
    if not api.config.server.metrics:
        raise ApiError(501, "this server was started without the endpoint /metrics (server.metrics)")
    text = await api.bridge.get(api.metrics.text)
    response = Response(text, headers={"Content-Type": METRICS_TYPE})
    return with_header(response, "Process-Start-Time-Unix", str(api.started))


async def get_page(request: HttpRequest, api: Api, data: bytes) -> Response:
    if not api.config.server.page:
        raise ApiError(404, "this server was started without the page (server.page)")
    return HTMLResponse(files("coordinator.api").joinpath("page/index.html").read_text())


async def not_supported(request: HttpRequest, api: Api, data: bytes) -> Response:
    raise ApiError(501, f"{request.url.path} is not supported: Outrider generates text from text")
