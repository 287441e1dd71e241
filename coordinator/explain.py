"""`--explain`: what the controller measured, predicted and chose, and why. Pure; for people.

It reads the object of `--json` alone, so it explains a run of another coordinator as well. What was not measured is said
to be so, and never shown as a zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: The longest round trip that the controller looks at.
_ENDLESS_MS = 60_000.0


def explain(answer: Mapping[str, Any]) -> str:
    """Aligned lines, without a newline at the end."""
    return "\n".join(f"{label:<12}{text}" for label, text in _lines(answer))


def _lines(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    speculation = answer["speculation"]
    controller = speculation.get("controller")
    if speculation["status"] == "off":
        yield "drafting", "off" + (f": {speculation['reason']}" if speculation["reason"] else "")
    if not controller:
        fixed = "fixed, nothing was chosen (--schedule auto chooses by what it measures)"
        yield "schedule", f"{speculation['schedule']}: {fixed}"
        return
    yield "schedule", f"{speculation['schedule']}, last choice: {_choice(controller)}"
    yield "rounds", _joined(controller.get("rounds_by_mode"), "{} {}") or "none"
    yield "measured", _measured(controller)
    yield "predicted", _predicted(controller)
    yield from _speed(answer, controller)
    yield "why", _why(controller)
    yield "break-even", _break_even(controller)


def _choice(controller: Mapping[str, Any]) -> str:
    return "no drafts" if controller["chosen"] == "off" else f"{controller['chosen']}, drafts of {controller['n']}"


def _measured(controller: Mapping[str, Any]) -> str:
    rows = _joined(_known(controller.get("verify_ms")), "{}: {:.1f} ms") or "not yet"
    parts = [f"target by rows {rows}"]
    for key, name in (("draft_step_ms", "draft step"), ("round_trip_ms", "round trip")):
        parts.append(f"{name} {controller[key]:.1f} ms" if controller.get(key) else f"{name} not measured")
    if controller.get("acceptance") is not None:
        parts.append(f"acceptance {controller['acceptance']:.0%}")
    return "; ".join(parts)


def _predicted(controller: Mapping[str, Any]) -> str:
    values = _known(controller.get("predicted_per_second"))
    return f"{_joined(values, '{} {:.1f}')} tokens/s" if values else "nothing yet"


def _speed(answer: Mapping[str, Any], controller: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The speed of this run against what the controller thinks that plain decoding would have brought."""
    speed = answer["timings"]["predicted_per_second"]
    alone = _known(controller.get("predicted_per_second")).get("off")
    if speed and alone:
        yield "speed", f"{speed:.1f} tokens/s, {speed / alone:.2f} x its own estimate of plain decoding ({alone:.1f})"


def _why(controller: Mapping[str, Any]) -> str:
    values = _known(controller.get("predicted_per_second"))
    chosen, alone = controller["chosen"], values.get("off")
    others = {mode: value for mode, value in values.items() if mode != "off"}
    if not alone or not others:
        return "too little was measured to compare"
    best = max(others, key=lambda mode: others[mode])
    ratio = others[best] / alone
    if chosen == "off":
        return f"{best} promises {ratio:.2f} x plain decoding, too little to draft"
    own = f"{chosen} promises {values.get(chosen, 0.0) / alone:.2f} x plain decoding"
    return (
        f"{own}, the most" if chosen == best else f"{own}; {best} promises {ratio:.2f} x, too little, or brought less"
    )


def _break_even(controller: Mapping[str, Any]) -> str:
    """Round trips up to which drafting pays."""
    limits = controller.get("break_even_ms") or {}
    if not limits or any(limit_ms is None for limit_ms in limits.values()):
        return "not known: no draft was measured"
    parts = []
    for mode, limit_ms in limits.items():
        limit = f"up to a round trip of {limit_ms:.0f} ms" if limit_ms < _ENDLESS_MS else "at any round trip"
        parts.append(f"{mode} pays {limit}" if limit_ms >= 0 else f"{mode} never pays")
    return "; ".join(parts)


def _known(values: Mapping[Any, float | None] | None) -> dict[Any, float]:
    """Those that were measured."""
    return {key: value for key, value in (values or {}).items() if value}


def _joined(values: Mapping[Any, Any] | None, form: str) -> str:
    return ", ".join(form.format(key, value) for key, value in (values or {}).items())
