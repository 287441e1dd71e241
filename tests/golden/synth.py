"""Resolution and validation of the settings of synthetic acceptance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.decoding.synthetic import SyntheticAcceptanceError, conditional_rates, resolve_rates

if TYPE_CHECKING:
    from pathlib import Path


def check(path: Path, data: dict[str, Any]) -> list[str]:
    """Differences between the recording and `resolve_rates`; empty = match."""
    expected = data["result"]
    length = None if data["len"] is None else float(data["len"])
    rates = None if data["rates"] is None else [float(rate) for rate in data["rates"]]
    try:
        resolved = resolve_rates(data["n_max"], length, rates)
    except SyntheticAcceptanceError as error:
        return _differences(path, {"accepted": False, "error": error.check}, expected)
    ours = {
        "accepted": True,
        "rates": resolved,
        "conditional": conditional_rates(resolved),
        "mean_len": sum(resolved, 1.0),
    }
    return _differences(path, ours, expected)


def _differences(path: Path, ours: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    # what the recording does not have cannot differ (`conditional` needs an initialised speculator)
    compared = {key for key in ours if key in expected} | ({"error", "rates"} & expected.keys())
    return [
        f"{path.name}: {key}: ours {ours.get(key)!r}, recorded {expected[key]!r}"
        for key in sorted(compared)
        if not _equal(ours.get(key), expected[key])
    ]


def _equal(ours: Any, expected: Any) -> bool:
    if isinstance(ours, float):
        return abs(ours - float(expected)) <= 1e-12  # the mean length was summed in another order
    return bool(ours == expected)
