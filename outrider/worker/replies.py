"""Replies that every worker can give."""

from __future__ import annotations

from outrider.wire.messages import Failure, FailureCode, Message, SessionMessage

_MAX_REASON = 4096


def failure(request: Message, code: FailureCode, reason: str) -> Failure:
    """The failure of `request`, with the numbers that let the other side find it again."""
    if isinstance(request, SessionMessage):
        ids = (request.incarnation, request.session, request.round, request.epoch, request.committed_len)
        return Failure(*ids, request=0, code=code, reason=reason[:_MAX_REASON])
    number = getattr(request, "request", 0)
    incarnation = getattr(request, "incarnation", 0)
    return Failure(incarnation, 0, 0, 0, 0, request=number, code=code, reason=reason[:_MAX_REASON])
