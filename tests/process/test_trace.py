"""`--trace` and `--explain` with real processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.process.cli import Cli, kill, model_flags

PROMPT = ["-p", "Once upon a time", "--temp", "0", "-n", "40"]


def events(path: Path) -> list[dict[str, Any]]:
    everything: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return [event for event in everything if event["ph"] == "X"]


def test_a_run_leaves_its_trace(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    answer = cli.answer(*model_flags(), *PROMPT, "--trace", str(path))
    found = events(path)
    assert sum(event["name"].startswith("verify ") for event in found) == answer["timings"]["rounds"]
    accounting = answer["speculation"]["accounting"]
    assert accounting["submitted"] == answer["timings"]["draft_n"]
    assert accounting["bytes_per_round"] > 50
    assert accounting["coordinator_us_per_round"] > 0
    assert all(event["args"]["bytes"] > 5 for event in found if event["cat"].startswith("coordinator →"))


def test_a_trace_that_cannot_be_written_is_an_error_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("run", *model_flags("scripted:seed=1,no_such_key=1"), *PROMPT, "--trace", str(tmp_path / "no" / "t"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("outrider: error: log.trace: ")
    assert "cannot be written: No such file or directory" in line


@pytest.mark.parametrize("command", ["up", "run"])
def test_a_signal_does_not_cost_the_trace(cli: Cli, tmp_path: Path, command: str) -> None:
    path, config = tmp_path / "trace.json", tmp_path / "c.toml"
    config.write_text('[target]\nmodel = "scripted:seed=1,decode_us=2000"\nengine = "scripted"\n')
    if command == "up":
        with cli.start("up", str(config), "--trace", str(path)) as up:
            address = up.line().split("--connect ")[1]
            cli.answer("--connect", address, *PROMPT)
            kill(up.pid, signal.SIGTERM)
            assert up.end()[0] == 0
    else:
        with cli.start("run", "--config", str(config), *PROMPT[:-1], "100000", "--trace", str(path)) as run:
            run.first_byte()
            kill(run.pid, signal.SIGTERM)
            assert run.end()[0] == 143
    assert sum(event["name"].startswith("verify ") for event in events(path)) > 0


def test_the_trace_is_the_coordinators(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("run", "--connect", "ipc:///nowhere", *PROMPT, "--trace", str(tmp_path / "t.json"))
    assert done.returncode == 2
    assert "--trace excludes --connect" in done.stderr


def test_explain_speaks_after_the_answer(cli: Cli) -> None:
    done = cli.run("run", *model_flags(), *PROMPT, "--schedule", "auto", "--json", "--explain")
    assert json.loads(done.stdout)["speculation"]["controller"]["rounds_by_mode"]
    assert "\nschedule    auto, last choice: " in done.stderr
    assert "\nbreak-even  " in done.stderr
