"""Grammars, probabilities, shared noise and synthetic acceptance from the command line to the JSON answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process.cli import Cli, model_flags

pytestmark = pytest.mark.process

PROMPT = ["-p", "Once upon a time", "-n", "40", "--seed", "5"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_an_answer_obeys_its_schema_and_tells_probabilities(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed (extra `grammar`)")
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    answer = cli.answer(*model_flags(), *PROMPT, "--json-schema-file", str(file), "--n-probs", "3")
    assert isinstance(json.loads(answer["text"])["a"], int)
    assert answer["finish_reason"] == "stop"
    assert [entry["id"] for entry in answer["logprobs"]] == answer["tokens"]
    same = cli.answer(*model_flags(), *PROMPT, "-j", json.dumps(SCHEMA), "--spec-draft-n-max", "0")
    assert same["tokens"] == answer["tokens"]


def test_a_grammar_that_cannot_be_converted_is_one_line_and_exit_code_2(cli: Cli) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed (extra `grammar`)")
    done = cli.run("run", *model_flags(), *PROMPT, "--grammar", "root ::= missing")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "rule `missing` is not defined" in line


def test_synthetic_acceptance_is_loud_at_both_ends(cli: Cli) -> None:
    done = cli.run("run", *model_flags(), *PROMPT, "--spec-synth-len", "2.5", "--json")
    assert done.returncode == 0
    assert "INVALID" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["valid"] is False
    assert answer["speculation"]["synthetic"] is True
    wrong = cli.run("run", *model_flags(), *PROMPT, "--schedule", "lockstep", "--spec-synth-rates", "0.5")
    assert wrong.returncode == 2
    assert "3 needed" in wrong.stderr


def test_shared_noise_changes_no_token(cli: Cli) -> None:
    answers = [cli.answer(*model_flags(), *PROMPT, "--spec-draft-sampling", kind) for kind in ("greedy", "coupled")]
    assert answers[0]["tokens"] == answers[1]["tokens"]
    assert answers[1]["speculation"]["draft_sampling"] == "coupled"
