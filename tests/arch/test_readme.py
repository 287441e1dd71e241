"""Documents agree with the tree: tests, functions and scripts that they name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def named() -> set[tuple[str, str]]:
    return set(re.findall(r"`([\w/]+\.py)::(\w+)`", (TESTS / "README.md").read_text()))


def test_every_named_test_exists() -> None:
    missing = []
    for file, name in sorted(named()):
        tree = ast.parse((TESTS / file).read_text()) if (TESTS / file).exists() else ast.Module([], [])
        if name not in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}:
            missing.append(f"{file}::{name}")
    assert missing == []
    assert len(named()) > 30


ROOT = TESTS.parent


def test_every_function_named_in_the_round_exists() -> None:
    text = (ROOT / "docs" / "round.md").read_text()
    found = re.findall(r"`([\w/]+\.py):([\w.]+)`", text)
    assert len(found) > 8
    for file, name in found:
        tree = ast.parse((ROOT / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert set(name.split(".")) <= names, f"{file}:{name}"


def test_every_file_named_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`?((?:bench|docs|configs|tests|demo)/[\w/.-]+\.\w+)", text))
    assert len(named) > 8
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
