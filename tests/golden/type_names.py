"""Names of the types of speculation, alone and in lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider.config.spec_types import type_from_name, types_from_names
from outrider.errors import ConfigError
from outrider.speculators.types import TYPE_NAMES

if TYPE_CHECKING:
    from pathlib import Path

#: Ours stand behind llama.cpp's.
OURS = ("ngram-suffix",)


def check(path: Path, data: dict[str, Any]) -> list[str]:
    """Differences between the recording and ours; empty = match."""
    known = [name for name in TYPE_NAMES if name not in OURS]
    differences = [] if known == data["all_types"] else [f"{path.name}: names: ours {known}"]
    for row in data["rows"]:
        ours = _result(row["names"])
        recorded = {key: value for key, value in row["result"].items() if key != "crashed"}
        if ours != recorded:
            differences.append(f"{path.name}: {row['names']}: ours {ours}, recorded {recorded}")
    return differences


def _result(names: list[str]) -> dict[str, Any]:
    each = [type_from_name(name) for name in names]
    try:
        return {"each": each, "types": types_from_names(names)}
    except ConfigError:
        return {"each": each, "error": "unknown"}
