"""Context shift: where the context is full and a request is not at its end, it goes on with a part of its text.

The first token (if it is BOS) and the second half of the rest become the prompt of a session that takes the place of the
first; the text goes on without a seam. Workers know nothing of it: they see a prompt whose rows they mostly lack, and read
it again, so what follows is exactly what the target says after that text. Requests with a grammar, or without a limit, end
with their context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as struct_replace

from coordinator.accounting import combined
from coordinator.request import Request
from coordinator.session import Session

#: Sessions of one request differ in their streams of random numbers: positions come again.
_CHOICE_STEP = 1 << 16

_SUMS = (
    *("predicted_n", "draft_n", "draft_n_accepted", "draft_n_verified", "rounds", "draft_decode_ms"),
    *("target_decode_ms", "stale_replies", "requests_resent"),
)
_LISTS = ("draft_n_per_pos", "draft_n_accepted_per_pos")


def is_shiftable(request: Request) -> bool:
    return request.n_predict >= 0 and request.grammar is None


def shifted(session: Session) -> Request | None:
    """The request that goes on where this finished session had no more room; None where it is over."""
    request = session.request
    if not (request.text_goes_on and session.context_full):
        return None
    tokens, bos = session.history.tokens, session.target_facts.vocab.bos
    n_keep = int(tokens[0] == bos)
    n_dropped = max((len(tokens) - n_keep) // 2, 1)
    sampling = request.sampling
    return replace(
        request,
        prompt=tokens[:n_keep] + tokens[n_keep + n_dropped :],
        n_predict=request.n_predict - session.n_generated,
        choice=request.choice + _CHOICE_STEP,
        sampling=struct_replace(sampling, min_tokens=max(sampling.min_tokens - session.n_generated, 0)),
        text=session.text,
        report_progress=False,
    )


def joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answers of the sessions of one request as one: the prompt's figures are the first's, the end is the last's."""
    first, last = answers[0], answers[-1]
    answer = {**last, "prompt_tokens": first["prompt_tokens"], "context_shifts": len(answers) - 1}
    for name in ("tokens", "logprobs", "row_hashes"):
        if name in last:
            answer[name] = [entry for one in answers for entry in one[name]]
    reports = [one["speculation"]["accounting"] for one in answers]
    if all(reports):
        answer["speculation"] = {**last["speculation"], "accounting": combined(reports)}
    answer["timings"] = _timings([one["timings"] for one in answers])
    return answer


def _timings(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Reading the kept text again counts as time of the generation."""
    total = {**parts[0], **{name: sum(part[name] for part in parts) for name in _SUMS}}
    for name in _LISTS:
        length = max(len(part[name]) for part in parts)
        total[name] = [sum(part[name][i] for part in parts if i < len(part[name])) for i in range(length)]
    ms = sum(part["predicted_ms"] for part in parts) + sum(part["prompt_ms"] for part in parts[1:])
    total["predicted_ms"] = ms
    total["predicted_per_token_ms"] = ms / total["predicted_n"] if total["predicted_n"] else 0.0
    total["predicted_per_second"] = 1e3 * max(total["predicted_n"] - 1, 0) / ms if ms > 0 else 0.0
    total["mean_acceptance_length"] = 1 + (total["draft_n_accepted"] / total["rounds"] if total["rounds"] else 0.0)
    return total
