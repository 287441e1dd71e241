"""What keys mean together: drafting is never off in silence, and nothing that was asked for is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import has_draft_worker, why_off
from outrider.config.merge import Merged, merge
from outrider.config.settle import require_request, require_target, settle
from outrider.errors import ConfigError
from outrider.speculators.types import LOOKUP_TYPES, MODEL_TYPES, RUNNABLE
from outrider.types import Grammar
from tests.unit.config_samples import setting

TARGET = {"target.model": "t.gguf"}
PAIR = {**TARGET, "draft.model": "d.gguf"}
TCP = {"coordinator.listen": "tcp://127.0.0.1:5570", "coordinator.keys": "keys", "coordinator.allow": "target,draft"}


def settled(*values: dict[str, str], level: str = "command line") -> Merged:
    return settle(merge([setting(k, v, level) for one in values for k, v in one.items()], lambda: 0))


def warnings(*values: dict[str, str], level: str = "command line") -> str:
    return "\n".join(settled(*values, level=level).warnings)


# --- is something drafted, and who says so ------------------------------------------------------------------------


def test_a_draft_model_switches_drafting_on() -> None:
    result = settled(PAIR)
    assert result.config.speculative.types == ["ngram-suffix", "draft-simple"]
    assert str(result.origins["speculative.types"]) == "follows draft.model"
    assert not result.warnings
    assert why_off(result.config) is None


@pytest.mark.parametrize(
    "values",
    [
        {"speculative.schedule": "lockstep"},
        {"speculative.schedule": "overlap"},
        {"speculative.schedule": "branches"},
        {"speculative.n_max": "0"},
        {"speculative.p_min": "1.5"},
        {"speculative.synth_len": "2.0"},
    ],
)
def test_only_auto_looks_up_what_nobody_asked_for(values: dict[str, str]) -> None:
    """And not where drafting was switched off, or its acceptance is made up."""
    assert settled(PAIR, values).config.speculative.types == ["draft-simple"]


def test_without_a_draft_model_the_reason_is_known() -> None:
    result = settled(TARGET)
    assert result.config.speculative.types == []
    assert why_off(result.config) == "no draft model and no type of speculation was given"
    assert not has_draft_worker(result.config)


def test_a_draft_model_that_is_not_used_is_told_loudly() -> None:
    result = settled(PAIR, {"speculative.types": "none"})
    assert why_off(result.config) == "--spec-type none"
    assert len(result.warnings) == 1
    assert "a draft model is given but NOT used" in result.warnings[0]
    assert "NOT used" in warnings(PAIR, {"speculative.types": "ngram-mod"})
    assert not warnings(PAIR, {"speculative.types": "ngram-mod,draft-simple"})


def test_drafting_without_a_draft_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft-simple needs a draft model"):
        settled(TARGET, {"speculative.types": "ngram-mod,draft-simple"})


@pytest.mark.parametrize("name", sorted(set(MODEL_TYPES) - RUNNABLE))
def test_types_that_cannot_run_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot run yet"):
        settled(PAIR, {"speculative.types": name})


@pytest.mark.parametrize("name", LOOKUP_TYPES)
def test_types_without_a_model_need_none(name: str) -> None:
    result = settled(TARGET, {"speculative.types": name})
    assert why_off(result.config) is None
    assert not result.warnings


def test_a_draft_worker_of_another_host_switches_drafting_on() -> None:
    result = settled(TARGET, TCP, {"draft.launch": "false"})
    assert result.config.speculative.types == ["ngram-suffix", "draft-simple"]


@pytest.mark.parametrize("values", [{"speculative.n_max": "0"}, {"speculative.p_min": "1.5"}])
def test_settings_under_which_nothing_is_drafted_are_a_reason(values: dict[str, str]) -> None:
    config = settled(PAIR, values).config
    assert config.speculative.draft_n_max == 0
    assert why_off(config)


# --- senseless values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"speculative.n_min": "48", "speculative.n_max": "3"}, "n_min 48 is above n_max 3: every draft"),
        ({"speculative.n_max": "1000"}, "n_max 1000 is above the 512"),
        ({"speculative.p_min": "2"}, "p_min 2.0 is no probability: nothing will be drafted"),
        ({"speculative.p_min": "nan"}, "p_min nan is no probability: drafts are never stopped"),
        ({"target.threads": "4", "target.cpus": "0-1"}, "target: 4 threads on 2 CPUs"),
    ],
)
def test_a_senseless_value_is_a_warning(values: dict[str, str], words: str) -> None:
    assert words in warnings(PAIR, values)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("ngram-mod", {"speculative.ngram_mod.n_min": "99"}, "ngram-mod: n_min 99 is above n_max 64"),
        ("ngram-mod", {"speculative.ngram_mod.n_match": "4"}, "n_match 4 is below 16"),
        ("ngram-simple", {"speculative.ngram_simple.size_m": "4"}, "it will never draft"),
        ("ngram-map-k4v", {"speculative.ngram_map_k4v.min_hits": "65537"}, "counts modulo 65536: 1"),
    ],
)
def test_senseless_values_of_lookup_types(name: str, values: dict[str, str], words: str) -> None:
    assert words in warnings(TARGET, {"speculative.types": name}, values)


@pytest.mark.parametrize("level", ["command line", "environment"])
def test_settings_of_a_type_that_is_off_are_told(level: str) -> None:
    told = warnings(PAIR, {"speculative.ngram_mod.n_max": "8"}, level=level)
    assert "speculative.ngram_mod.n_max" in told
    assert "ngram-mod is not among the types" in told
    assert "speculative.n_max" in warnings(TARGET, {"speculative.n_max": "8"}, level=level)


def test_a_file_may_hold_settings_of_other_types() -> None:
    assert not warnings(PAIR, {"speculative.ngram_mod.n_max": "8"}, level="file")


def test_what_travels_is_in_bounds() -> None:
    spec = settled(PAIR, {"speculative.n_max": "9999", "speculative.n_min": "-5", "speculative.p_min": "nan"}).config
    values = spec.speculative
    assert (values.draft_n_max, values.draft_n_min, values.draft_p_min) == (512, 0, 0.0)


# --- combinations that are refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"generation.prompt": "a", "generation.file": "b"}, "one prompt at a time"),
        ({"generation.prompt": "a", "generation.prompt_tokens": "1"}, "one prompt at a time"),
        ({"generation.prompt_tokens": "1", "generation.chat": "true"}, "--chat"),
        ({"generation.grammar": "a", "generation.json_schema_file": "b"}, "one grammar at a time"),
        ({"speculative.synth_len": "2", "speculative.synth_rates": "0.5"}, "exclude one another"),
        ({"speculative.synth_len": "2", "generation.grammar": "a"}, "excludes a grammar"),
        ({"target.name": "same", "draft.name": "same"}, "give them different names"),
        ({"coordinator.listen": "tcp://127.0.0.1:1"}, "needs coordinator.keys"),
        ({"coordinator.listen": "tcp://127.0.0.1:1", "coordinator.keys": "k"}, "needs coordinator.allow"),
        ({**TCP, "coordinator.allow": ""}, "needs coordinator.allow"),
        ({**TCP, "coordinator.listen": "tcp://0.0.0.0:1"}, "not loopback"),
        ({**TCP, "coordinator.listen": "tcp://*:1"}, "not loopback"),
        ({"draft.launch": "false"}, "draft.launch is false: give coordinator.listen"),
        ({"target.engine": "numpy", "target.cache_type_k": "q8_0"}, "the numpy engine has no such option"),
        ({"target.engine": "scripted", "target.threads": "2"}, "the scripted engine has no such option"),
        ({"target.flash_attn": "off", "target.cache_type_v": "q8_0"}, "target.cache_type_v"),
    ],
)
def test_refused_combinations(values: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settled(PAIR, values)
    assert words in str(caught.value)


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1", "ipc", "ipc:///tmp/s"])
def test_local_addresses_are_allowed(listen: str) -> None:
    assert settled(PAIR, {**TCP, "coordinator.listen": listen}).config.coordinator.listen == listen


def test_remote_addresses_where_they_are_meant() -> None:
    settled(PAIR, {**TCP, "coordinator.listen": "tcp://0.0.0.0:1", "coordinator.allow_remote": "true"})


def test_synthetic_acceptance_is_loud() -> None:
    assert any("INVALID" in line for line in settled(PAIR, {"speculative.synth_len": "2"}).warnings)
    assert any("INVALID" in line for line in settled(PAIR, {"speculative.synth_rates": "0.5,0.5,0"}).warnings)
    assert not settled(PAIR).warnings
    with pytest.raises(ConfigError, match="needs speculation"):
        settled(TARGET, {"speculative.synth_len": "2"})


def test_a_grammar_in_a_file_becomes_its_text(tmp_path: Path) -> None:
    file = tmp_path / "list.gbnf"
    file.write_text('root ::= "é"\n')
    merged = settled(TARGET, {"generation.grammar_file": str(file)})
    assert merged.config.generation.constraint == Grammar("gbnf", 'root ::= "é"\n')
    assert merged.config.generation.grammar_file == ""
    schema = settled(TARGET, {"generation.json_schema": "{}"}).config.generation
    assert schema.constraint == Grammar("json_schema", "{}")
    assert settled(TARGET).config.generation.constraint is None


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), (b"\xff", "not UTF-8"), (b" \n", "is empty")])
def test_a_grammar_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "schema.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="generation\\.json_schema_file") as caught:
        settled(TARGET, {"generation.json_schema_file": str(file)})
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


def test_a_draft_on_another_engine_does_not_follow_in_what_it_does_not_have() -> None:
    config = settled(PAIR, {"target.flash_attn": "on", "target.threads": "2", "draft.engine": "numpy"}).config
    assert config.draft.flash_attn == "auto"
    assert config.draft.threads == 2


def test_a_prompt_of_a_stronger_source_replaces_the_others() -> None:
    file, flag = setting("generation.prompt", "a", "file"), setting("generation.prompt_tokens", "1,2")
    merged = settle(merge([setting("target.model", "t"), file, flag], lambda: 0))
    assert merged.config.generation.prompt is None
    assert merged.config.generation.prompt_tokens == [1, 2]
    assert not merged.origins["generation.prompt"].explicit


# --- clients ------------------------------------------------------------------------------------------------------


def test_a_client_has_no_models() -> None:
    connect = {"client.connect": "ipc:///tmp/s", "generation.prompt": "x"}
    result = settled(connect, {"speculative.n_max": "2", "speculative.types": "draft-simple"})
    assert not result.warnings
    require_request(result.config)
    with pytest.raises(ConfigError, match="excludes --connect"):
        settled(connect, TARGET)
    with pytest.raises(ConfigError, match=r"needs coordinator\.keys"):
        settled({"client.connect": "tcp://h:1"})


def test_what_a_run_needs() -> None:
    with pytest.raises(ConfigError, match="a target model is needed"):
        require_request(settled({"generation.prompt": ""}).config)
    with pytest.raises(ConfigError, match="a target model is needed"):
        require_target(settled().config)
    require_request(settled(TARGET, {"generation.prompt": ""}).config)


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({"server.port": "80", "server.host": "0.0.0.0"}, True),
        ({"server.port": "80", "server.host": "::1,127.0.0.1,localhost"}, False),
        ({"server.port": "80", "server.host": "0.0.0.0", "server.api_key_file": "keys"}, False),
        ({"server.host": "0.0.0.0"}, False),
    ],
)
def test_a_server_for_everybody_is_warned_about(values: dict[str, str], warned: bool) -> None:
    assert ("anybody" in warnings(TARGET, values)) == warned
