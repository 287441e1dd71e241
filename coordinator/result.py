"""What a request reports when it is done: the object of `--json`, and the statistics block of the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coordinator.instructions import Part
from coordinator.session import Session


def result(session: Session, accounting: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object of a finished session. Names in `timings` are llama-server's; times are milliseconds.

    `accounting`: what was seen of its messages (`coordinator/accounting.py`), where somebody watched."""
    request = session.request
    answer: dict[str, Any] = {
        "text": session.text.text,
        "tokens": session.generated,
        "prompt_tokens": len(request.prompt),
        "valid": not request.speculation.synth_rates,
        "finish_reason": session.finish_reason,
        "stopped_by": session.text.stopped_by,
        "timings": timings(session),
        "speculation": {**speculation(session), "accounting": accounting},
    }
    if session.error is not None:
        answer["error"] = session.error
        answer["error_code"] = session.error_code
    if request.sampling.n_probs:
        answer["logprobs"] = [_logprobs(part) for part in session.parts if part.logprobs is not None]
    if request.row_hashes:
        answer["row_hashes"] = [f"{value:016x}" for value in session.row_hashes]
    return answer


def _logprobs(part: Part) -> dict[str, Any]:
    """One generated token and what the target thought of it. Names are llama-server's."""
    own = part.logprobs
    assert own is not None
    best = zip(own.tokens, own.pieces, own.logprobs, strict=True)
    return {**_token(part.token, part.piece, own.logprob), "top_logprobs": [_token(*entry) for entry in best]}


def _token(token: int, piece: bytes, logprob: float) -> dict[str, Any]:
    return {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": logprob}


def timings(session: Session) -> dict[str, Any]:
    """The generation rate leaves the first token out: its time is the prompt's."""
    counts = session.counts
    prompt_n = len(session.request.prompt) - counts.n_cached
    prompt_ms = 1e3 * max(session.first_token_at - session.started_at, 0.0)
    predicted_n = len(session.generated)
    predicted_ms = 1e3 * max(session.finished_at - session.first_token_at, 0.0)
    return {
        "cache_n": counts.n_cached,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, prompt_n),
        "prompt_per_second": _ratio(1e3 * prompt_n, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, predicted_n),
        "predicted_per_second": _ratio(1e3 * max(predicted_n - session.n_first, 0), predicted_ms),
        "draft_n": counts.draft_n,
        "draft_n_accepted": counts.draft_n_accepted,
        "draft_n_verified": counts.n_verified,
        "draft_n_per_pos": list(counts.drafted_per_pos),
        "draft_n_accepted_per_pos": list(counts.accepted_per_pos),
        "rounds": counts.rounds,
        "mean_acceptance_length": 1 + _ratio(counts.draft_n_accepted, counts.rounds),
        "draft_decode_ms": counts.draft_decode_us / 1e3,
        "target_decode_ms": counts.target_decode_us / 1e3,
        "stale_replies": counts.n_stale,
        "requests_resent": counts.n_resent,
    }


def speculation(session: Session) -> dict[str, Any]:
    """Whether drafts were used, and if not why; with the values that were in effect."""
    settings = session.request.speculation
    active = session.speculates
    reasons = ([settings.off_reason] if settings.off_reason else []) + session.notes
    return {
        "status": "on" if active else "off",
        "reason": "; ".join(reasons) or None,
        "types": list(settings.types),
        "schedule": session.schedule.name,
        "n_max": settings.n_max,
        "n_min": settings.n_min,
        "p_min": settings.p_min,
        "draft_sampling": settings.draft_sampling,
        "synthetic": bool(settings.synth_rates),
        "per_type": {name: stats.summary() for name, stats in session.stats().speculators.items()},
        "controller": session.explain(),
    }


def summary(answer: Mapping[str, Any]) -> str:
    """The block for the terminal: a few lines, for people."""
    t, s = answer["timings"], answer["speculation"]
    rate = _ratio(t["draft_n_accepted"], t["draft_n"])
    lines = [
        f"prompt      {t['prompt_n']} tokens, {t['prompt_per_second']:.1f} per second"
        + (f" ({t['cache_n']} more from the cache)" if t["cache_n"] else ""),
        f"generated   {t['predicted_n']} tokens, {t['predicted_per_second']:.1f} per second, {t['rounds']} rounds"
        f" (ended by {answer['finish_reason']})",
    ]
    if s["synthetic"]:
        lines.insert(
            0, "INVALID     synthetic acceptance: drafts were accepted at random, this is not the target's text"
        )
    if s["status"] == "on" or t["draft_n"]:
        lines.append(
            f"drafts      {t['draft_n_accepted']} of {t['draft_n']} tokens accepted ({rate:.0%}),"
            f" {t['mean_acceptance_length']:.2f} tokens per round, {s['schedule']}, n_max {s['n_max']}"
        )
    if s["accounting"] and s["accounting"]["drafted"]:
        lines.append(accounting_line(s["accounting"]))
    lines.append(f"speculation {s['status']}" + (f": {s['reason']}" if s["reason"] else f" ({', '.join(s['types'])})"))
    return "\n".join(lines)


def accounting_line(a: Mapping[str, Any]) -> str:
    """Where the time of drafting went."""
    total = a["draft_hidden_ms"] + a["draft_exposed_ms"]
    return (
        f"drafting    {total / 1e3:.2f} s, {_ratio(a['draft_hidden_ms'], total):.0%} of it hidden behind verification;"
        f" {a['stale']} of {a['drafted']} tokens unused; target idle for {a['target_idle_share']:.0%},"
        f" {a['round_trips']} waits for a draft"
    )


def to_json(answer: Mapping[str, Any]) -> str:
    return json.dumps(answer, ensure_ascii=False, allow_nan=False)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0
