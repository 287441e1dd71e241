"""What a session wants done. The service does it, and every result comes back to the session as an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.types import TokenLogprobs, WorkerRole
from outrider.wire.messages import FailureCode, SessionMessage

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Send:
    """Give this message to the worker of that role."""

    role: WorkerRole
    message: SessionMessage


@dataclass(frozen=True, slots=True)
class Part:
    """One committed token: the bytes it adds to the text, and the text that it released (which may lag behind)."""

    token: int
    piece: bytes
    text: str
    logprobs: TokenLogprobs | None = None
    accepted: bool = False  # a draft had it


@dataclass(frozen=True, slots=True)
class Emit:
    """New text for the client, and the tokens committed since the last Emit (the text may lag behind them)."""

    text: str
    tokens: tuple[int, ...]
    parts: tuple[Part, ...] = ()
    n_held: int | None = None  # instead of text: so many tokens of the prompt are read


@dataclass(frozen=True, slots=True)
class Finished:
    """The session is over. `error` is the one line that explains finish_reason "error", `code` its kind if a worker
    told it ("bad_request": the request can never be served as asked)."""

    reason: FinishReason
    error: str | None = None
    code: FailureCode | None = None


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `wake` at this time, unless something else happens before."""

    time: float


Command = Send | Emit | Finished | WakeAt
