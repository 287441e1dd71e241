"""What went wrong, as HTTP status and body. Shapes and types are llama-server's, which OpenAI's clients understand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import BusyError, OutriderError, PromptTooLongError, RequestError, WorkerLostError

#: Seconds after which a refused client may try again.
RETRY_AFTER_S = 1

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """An answer other than 200. `more`: further fields of the error object."""

    def __init__(self, status: int, message: str, type: str = "", **more: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.type, self.more = status, message, type or TYPES[status], more

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.status, "message": self.message, "type": self.type, **self.more}}

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(RETRY_AFTER_S)} if self.status in (429, 503) else {}


def bad_field(name: str, problem: str) -> ApiError:
    """400 that names the field."""
    return ApiError(400, f"{name}: {problem}", param=name)


def from_error(error: OutriderError) -> ApiError:
    match error:
        case PromptTooLongError():
            kind = "exceed_context_size_error"
            return ApiError(400, str(error), kind, n_prompt_tokens=error.n_prompt, n_ctx=error.n_ctx)
        case BusyError():
            return ApiError(429, str(error))
        case RequestError():
            return ApiError(400, str(error))
        case WorkerLostError():
            return ApiError(503, str(error))
    return ApiError(500, str(error))


def from_answer(answer: Mapping[str, Any]) -> ApiError | None:
    """The error of a finished session, if it has one."""
    if answer["finish_reason"] == "cancelled":
        return ApiError(503, "the request was cancelled")
    if answer["finish_reason"] != "error":
        return None
    status = {"bad_request": 400, "worker_lost": 503}.get(answer.get("error_code") or "", 500)
    return ApiError(status, answer["error"])
