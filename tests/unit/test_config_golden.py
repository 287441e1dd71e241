"""Command lines and type names, held against what llama.cpp does with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden import cli, type_names
from tests.golden.runner import check_folder

DATA = Path(__file__).parents[1] / "data" / "golden"


@pytest.mark.parametrize(("topic", "n_files"), [("cli", 12), ("type_names", 3)])
def test_recordings_match(topic: str, n_files: int) -> None:
    outcomes = list(check_folder(DATA / topic))
    assert [line for outcome in outcomes for line in outcome.differences] == []
    assert [outcome.topic for outcome in outcomes] == [topic] * n_files


def test_a_wrong_recording_is_found() -> None:
    path = DATA / "cli" / "cli_07.json"
    data = json.loads(path.read_text())
    data["rows"][2]["result"]["draft"]["p_min"] = 0.5
    data["rows"][1]["result"] = {"parsed": True}
    assert len(cli.check(path, data)) == 2
    path = DATA / "type_names" / "type_names_03.json"
    data = json.loads(path.read_text())
    data["rows"][0]["result"] = {"each": ["ngram-mod"], "types": ["ngram-mod"]}
    assert len(type_names.check(path, data)) == 1
