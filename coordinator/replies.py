"""Which reply belongs to which request, and which failures may pass."""

from __future__ import annotations

from operator import attrgetter

from outrider.types import WorkerRole
from outrider.wire.messages import Failure, SessionMessage

#: Failures in a row after which a draft is left alone, and a target gives the request up.
MAX_DRAFT_FAILURES = 3
MAX_TARGET_FAILURES = 2
#: Times in a row that a worker may say that it has missed something.
MAX_MISSED = 100


def may_ask_again(role: WorkerRole, failure: Failure, n_failures: int) -> bool:
    """Can the same request succeed now, after `n_failures` in a row?

    A worker that lacks a prefix or a session only missed a message; an engine that fails may do so for good.
    """
    if failure.code == "engine":
        return n_failures <= (MAX_TARGET_FAILURES if role == "target" else MAX_DRAFT_FAILURES)
    return failure.code in ("missing_prefix", "unknown_session") and n_failures <= MAX_MISSED


_stamp = attrgetter(*SessionMessage.__struct_fields__)


def answers(reply: SessionMessage, request: SessionMessage) -> bool:
    """Does a reply repeat the five numbers of this request?"""
    return bool(_stamp(reply) == _stamp(request))
