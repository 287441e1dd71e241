"""A configuration as JSON, as TOML, and in the words of the parts that use it."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.config import Config, engine_options, from_json, load, load_worker_config, speculator_params, to_json
from outrider.config.merge import merge
from outrider.config.options import OPTIONS
from outrider.config.render import merged_toml
from outrider.config.sources import from_environment, from_file
from outrider.config.values import parse_float, parse_int
from outrider.errors import ConfigError
from tests.unit.config_samples import sample, setting


def full() -> Config:
    """Every key away from its default (before rules are applied)."""
    return merge(from_environment({option.env: sample(option)[0] for option in OPTIONS}), lambda: 0).config


def test_json_and_back() -> None:
    for config in (Config(), full()):
        line = to_json(config)
        assert "\n" not in line
        assert from_json(line) == config


def test_json_keeps_what_is_no_number() -> None:
    config = merge([setting("speculative.p_min", "nan"), setting("speculative.synth_len", "inf")], lambda: 0).config
    again = from_json(to_json(config))
    assert again.speculative.synth_len == float("inf")
    assert again.speculative.p_min != again.speculative.p_min


@pytest.mark.parametrize("text", ["", "{", "[]", '{"target": {"treads": 1}}', '{"target": {"threads": "4"}}', "\xff"])
def test_wrong_json_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="configuration on stdin") as caught:
        from_json(text)
    assert "\n" not in str(caught.value)


def test_the_printout_reads_back(tmp_path: Path) -> None:
    environ = {option.env: sample(option)[0] for option in OPTIONS}
    merged = merge(from_environment(environ), lambda: 0)
    path = tmp_path / "printed.toml"
    path.write_text(merged_toml(merged))
    assert merge(from_file(path), lambda: 0).config == merged.config


@settings(deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_prompt_survives_the_printout(prompt: str) -> None:
    import tomllib

    merged = merge([setting("generation.prompt", prompt)], lambda: 0)
    assert tomllib.loads(merged_toml(merged))["generation"]["prompt"] == prompt


def test_the_printout_says_where_values_come_from() -> None:
    merged = load(
        [setting("target.threads", "2"), setting("draft.model", "d"), setting("target.model", "t", "file")], environ={}
    )
    lines = {line.split(" ", 1)[0]: line for line in merged_toml(merged).splitlines() if "=" in line}
    text = merged_toml(merged)
    assert "# command line test" in lines["threads"] or "# follows target.threads" in lines["threads"]
    assert "# file test" in text
    assert 'types = ["ngram-suffix", "draft-simple"]' in lines["types"]
    assert "# follows draft.model" in lines["types"]
    assert "# default" in lines["n_seq"]


# --- workers ------------------------------------------------------------------------------------------------------


def test_a_launched_worker_reads_one_line() -> None:
    stdin = io.BytesIO(to_json(full()).encode() + b"\nnot ours")
    config, launched = load_worker_config(["--config", "-"], "worker", {"OUTRIDER_TARGET_THREADS": "9"}, stdin)
    assert launched
    assert config == full()
    assert stdin.read() == b"not ours"


def test_a_worker_on_its_own_host_reads_a_file_and_its_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[draft]\nthreads = 3\nmodel = 'd.gguf'\n")
    config, launched = load_worker_config(["--config", str(file)], "worker", {"OUTRIDER_DRAFT_THREADS": "9"})
    assert not launched
    assert config.draft.threads == 9
    assert config.draft.model == str(tmp_path / "d.gguf")


@pytest.mark.parametrize("argv", [[], ["--config"], ["x"], ["--config", "a", "b"], ["--config", "a", "-t", "1"]])
def test_workers_take_a_configuration_and_nothing_else(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        load_worker_config(argv, "worker", {})


def test_reading_a_configuration_loads_nothing_that_computes() -> None:
    """Processors and thread counts are set after it, and before numpy is imported."""
    code = "import sys, outrider.config; print([m for m in ('numpy', 'zmq', 'gguf', 'llama_cpp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- conversions --------------------------------------------------------------------------------------------------


def test_defaults_are_the_speculators_own() -> None:
    from outrider.speculators.types import SpeculatorParams

    config = load([setting("speculative.schedule", "lockstep")], environ={}).config
    assert speculator_params(config.speculative) == SpeculatorParams()


def test_what_runs_ahead_may_draft_more_than_lockstep() -> None:
    assert Config().speculative.schedule == "auto"
    assert Config().speculative.n_max == 8
    asked = [setting("speculative.schedule", "lockstep"), setting("speculative.n_max", "5")]
    assert load(asked, environ={}).config.speculative.n_max == 5


def test_defaults_are_the_engines_own() -> None:
    from outrider.engine.options import EngineOptions

    assert engine_options(Config().target, 1) == EngineOptions()


def test_every_setting_of_a_speculator_arrives() -> None:
    from dataclasses import asdict, astuple

    from outrider.speculators.types import SpeculatorParams

    ours, default = asdict(speculator_params(full().speculative)), asdict(SpeculatorParams())
    same = [f"{part}.{name}" for part in ours for name in ours[part] if ours[part][name] == default[part][name]]
    assert not same
    assert astuple(speculator_params(full().speculative).ngram_simple) == (13, 49, 2)


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), (" +3 ", 3), ("-0", 0), ("٣", None), ("3.0", None), ("1_0", None), ("", None)]
)
def test_whole_numbers(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(ValueError, match="not a whole number"):
            parse_int(text)
    else:
        assert parse_int(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e1", 10.0), ("0x1p1", 2.0), ("\t2\n", 2.0), ("-inf", float("-inf")), (".5", 0.5), ("+2", 2.0)],
)
def test_numbers(text: str, value: float) -> None:
    assert parse_float(text) == value


@pytest.mark.parametrize("text", ["", " ", "3.4x", "1_0", "1e999", "0xg", "one"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_float(text)
