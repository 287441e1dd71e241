"""Holding recorded facts against the code: every JSON file of a folder, by its topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Lines that say what differs; empty for a match. Those that start with NOTE are worth telling and no difference.
Check = Callable[[Path, dict[str, Any]], list[str]]
NOTE = "note: "


class Skipped(Exception):
    """The file cannot be checked here; the message says what is missing."""


@dataclass(frozen=True)
class Outcome:
    """Of one file. `differences` is empty for a match; `skipped` says why it was not checked."""

    path: Path
    topic: str
    differences: tuple[str, ...] = ()
    skipped: str | None = None
    notes: tuple[str, ...] = ()


def golden_files(folder: Path) -> list[Path]:
    """All JSON files under `folder`, or the file itself."""
    return [folder] if folder.is_file() else sorted(folder.rglob("*.json"))


def check_file(path: Path) -> Outcome:
    """Hold one file against the code. A file that is no such record, or a check that breaks, is a difference."""
    try:
        data = json.loads(path.read_bytes())
        topic = data["header"]["topic"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Outcome(path, "?", (f"no golden file: {type(error).__name__}: {error}",))
    check = find_check(topic)
    if check is None:
        return Outcome(path, str(topic), skipped="no check for this topic")
    try:
        lines = check(path, data)
    except Skipped as reason:
        return Outcome(path, topic, skipped=str(reason))
    except Exception as error:
        return Outcome(path, topic, (f"the check broke: {type(error).__name__}: {error}",))
    notes = tuple(line for line in lines if line.startswith(NOTE))
    return Outcome(path, topic, tuple(line for line in lines if line not in notes), notes=notes)


def find_check(topic: object) -> Check | None:
    """`check` of tests/golden/<topic>.py, or None if there is no such module."""
    if not isinstance(topic, str) or not topic.isidentifier():
        return None
    name = f"{__package__}.{topic}"
    if find_spec(name) is None:
        return None
    check: Check | None = getattr(import_module(name), "check", None)
    return check


def check_folder(folder: Path) -> Iterator[Outcome]:
    for path in golden_files(folder):
        yield check_file(path)


def first_differences(name: str, expected: Any, actual: Any) -> list[str]:
    """One line if the two are not equal; of lists the first row that differs."""
    if expected == actual:
        return []
    if isinstance(expected, list) and isinstance(actual, list):
        for i, (a, b) in enumerate(zip(expected, actual, strict=False)):
            if a != b:
                return [f"{name}[{i}]: expected {_short(a)}, got {_short(b)}"]
        return [f"{name}: expected {len(expected)} rows, got {len(actual)}"]
    return [f"{name}: expected {_short(expected)}, got {_short(actual)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 300 else text[:297] + "..."
