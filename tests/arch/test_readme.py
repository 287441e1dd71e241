"""The tables of tests/README.md name tests that exist."""

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
