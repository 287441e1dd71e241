"""Sources and their precedence: what a value is, where it came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import load
from outrider.config.merge import LEVELS, Merged, Setting, get, merge
from outrider.config.sources import from_environment, from_file
from outrider.errors import ConfigError
from tests.unit.config_samples import setting


def merged(*settings: Setting, seed: int = 99) -> Merged:
    return merge(settings, lambda: seed)


def from_text(tmp_path: Path, text: str) -> Merged:
    path = tmp_path / "outrider.toml"
    path.write_text(text)
    return merge(from_file(path), lambda: 0)


# --- precedence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_the_strongest_source_counts(order: int) -> None:
    sources = [setting("target.threads", value, level) for value, level in enumerate(LEVELS[2:5], 1)]
    for n in range(1, len(sources) + 1):
        result = merged(*sources[:n][::order])
        assert result.config.target.threads == n
        assert result.origins["target.threads"].level == sources[n - 1].origin.level


def test_all_four_sources_together(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[target]\nthreads = 1\nctx_size = 1\nbatch_size = 1\n")
    environ = {"OUTRIDER_TARGET_THREADS": "2", "OUTRIDER_TARGET_CTX_SIZE": "2", "OUTRIDER_CONFIG": str(file)}
    result = load([setting("target.threads", "3")], environ=environ)
    target = result.config.target
    assert (target.threads, target.ctx_size, target.batch_size, target.engine) == (3, 2, 1, "auto")
    origins = [result.origins[f"target.{name}"].level for name in ("threads", "ctx_size", "batch_size", "engine")]
    assert origins == ["command line", "environment", "file", "default"]


def test_a_file_named_on_the_command_line_replaces_that_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[target]\nthreads = 7\n")
    result = load(file=str(file), environ={"OUTRIDER_CONFIG": "/nowhere.toml"})
    assert result.config.target.threads == 7


def test_defaults_do_not_depend_on_the_source(tmp_path: Path) -> None:
    assert from_text(tmp_path, "").config == merged().config == merge(from_environment({}), lambda: 0).config


def test_the_draft_follows_the_target_where_it_is_not_told_otherwise() -> None:
    result = merged(setting("target.threads", 4), setting("target.ctx_size", 64), setting("draft.ctx_size", 32))
    assert result.config.draft.threads == 4
    assert result.config.draft.ctx_size == 32
    assert str(result.origins["draft.threads"]) == "follows target.threads"
    assert not result.origins["draft.threads"].explicit


# --- lists --------------------------------------------------------------------------------------------------------


def test_an_empty_list_that_is_given_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[speculative]\ntypes = ["ngram-mod"]\n[target]\ncpus = [1]\n[coordinator]\nallow = ["a"]\n')
    environ = {"OUTRIDER_TARGET_CPUS": "", "OUTRIDER_COORDINATOR_ALLOW": ""}
    result = load(file=str(file), environ=environ)
    assert result.config.target.cpus == []
    assert result.config.coordinator.allow == []
    assert result.origins["target.cpus"].level == "environment"


def test_an_empty_list_of_types_switches_drafting_off(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[draft]\nmodel = "d.gguf"\n[speculative]\ntypes = []\n')
    result = load(file=str(file), environ={})
    assert result.config.speculative.types == []
    assert any("NOT used" in warning for warning in result.warnings)


def test_repeated_flags_add_up_where_lists_are_meant() -> None:
    result = merged(*(setting("generation.stop", text) for text in ("a", "b,c")))
    assert result.config.generation.stop == ["a", "b,c"]
    assert not result.warnings


def test_another_source_replaces_a_list() -> None:
    result = merged(setting("generation.stop", ["a"], "file"), setting("generation.stop", "b"))
    assert result.config.generation.stop == ["b"]


def test_other_repeated_flags_say_which_one_counts() -> None:
    result = merged(setting("target.threads", "1"), setting("target.threads", "2"))
    assert result.config.target.threads == 2
    assert "the last one counts" in result.warnings[0]


# --- types of speculation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "types"),
    [
        (["none"], []),
        (["ngram-mod,none"], []),
        (["none,no-such-type"], []),
        (["ngram-mod", "ngram-cache"], ["ngram-mod", "ngram-cache"]),
        (["ngram-mod,ngram-mod"], ["ngram-mod"]),
    ],
)
def test_none_anywhere_in_a_list_is_none(texts: list[str], types: list[str]) -> None:
    result = merged(*(setting("speculative.types", text) for text in texts))
    assert result.config.speculative.types == types


def test_a_none_that_switches_nothing_off_says_so() -> None:
    result = merged(setting("speculative.types", "ngram-mod"), setting("speculative.types", "none"))
    assert result.config.speculative.types == ["ngram-mod"]
    assert "speculation stays on with ngram-mod" in result.warnings[0]


@pytest.mark.parametrize("name", ["Ngram-mod", "ngram_mod", " ngram-mod", "draft", "", "ngram-mod,"])
def test_names_of_types_are_exact(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown type of speculation"):
        merged(setting("speculative.types", name))


# --- forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("target.cpus", "5,0-2", [0, 1, 2, 5]),
        ("target.n_gpu_layers", "auto", -1),
        ("target.flash_attn", "1", "on"),
        ("sampling.temp", "-1", -1.0),
        ("sampling.repeat_last_n", "-1", -1),
        ("sampling.seed", "-1", 99),
        ("generation.n_predict", " -1 ", -1),
        ("generation.stream", "off", False),
        ("generation.prompt_tokens", "", []),
        ("speculative.p_min", "1e-1", 0.1),
    ],
)
def test_text_forms(key: str, text: str, value: object) -> None:
    assert get(merged(setting(key, text)).config, key) == value


@pytest.mark.parametrize(
    ("toml", "key", "value"),
    [
        ('target.cpus = "0-2"', "target.cpus", [0, 1, 2]),
        ("target.cpus = [2, 0]", "target.cpus", [2, 0]),
        ('target.n_gpu_layers = "all"', "target.n_gpu_layers", -2),
        ("target.flash_attn = true", "target.flash_attn", "on"),
        ('sampling.logit_bias = ["7+1", [8, -2]]', "sampling.logit_bias", None),
        ("sampling.temp = 1", "sampling.temp", 1.0),
        ('speculative.types = ["ngram-mod", "none"]', "speculative.types", []),
        ('generation.stop = "x"', "generation.stop", ["x"]),
    ],
)
def test_forms_in_a_file(tmp_path: Path, toml: str, key: str, value: object) -> None:
    got = get(from_text(tmp_path, toml).config, key)
    if key == "sampling.logit_bias":
        assert [(one.token, one.bias) for one in got] == [(7, 1.0), (8, -2.0)]
    else:
        assert got == value


def test_a_forbidden_token_has_a_finite_bias() -> None:
    (bias,) = merged(setting("sampling.logit_bias", "2-inf")).config.sampling.logit_bias
    assert bias.bias == -1e9


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target.threads", "four"),
        ("target.threads", "-1"),
        ("target.threads", "4.5"),
        ("target.threads", "4_0"),
        ("target.threads", 4.0),
        ("target.threads", True),
        ("target.ctx_size", "99999999999"),
        ("target.cpus", "3-1"),
        ("target.cpus", "a"),
        ("target.cpus", [-1]),
        ("target.engine", "torch"),
        ("target.cache_type_k", "q9"),
        ("target.name", "no blanks"),
        ("target.sha256", "abc"),
        ("target.launch", "maybe"),
        ("sampling.seed", str(2**64)),
        ("sampling.seed", "-2"),
        ("sampling.top_p", "1.5"),
        ("sampling.temp", "nan"),
        ("sampling.logit_bias", "15"),
        ("sampling.logit_bias", "x+1"),
        ("sampling.logit_bias", "15+nan"),
        ("generation.prompt_tokens", "1,,2"),
        ("generation.prompt_tokens", [-1]),
        ("generation.stop", [""]),
        ("speculative.synth_len", "-1"),
        ("speculative.synth_rates", "0.5,,0.1"),
        ("speculative.ngram_mod.n_match", "1025"),
        ("speculative.n_max", "-1"),
        ("coordinator.listen", "localhost:99"),
        ("coordinator.heartbeat_s", "0"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_is_allowed(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        merged(setting(key, value))
    message = str(caught.value)
    assert message.startswith(f"{key} = {value!r} (from command line test)")
    assert "; allowed: " in message
    assert "\n" not in message


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(ConfigError) as caught:
        merged(setting("target.threads", "x" * 10_000))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("target.treads = 1", "unknown key target.treads: did you mean target.threads?"),
        ("[speculativ]\ntypes = []", "unknown key speculativ: did you mean speculative?"),
        ("target = 3", "target must be a table"),
        ("threads = 3", "did you mean target.threads or draft.threads?"),
        ("draft.n_max = 3", "draft.n_max is refused: use speculative.n_max"),
        ("speculative.p_split = 0.1", "speculative.p_split is refused: retired"),
        ("sampling.mirostat = 2", "sampling.mirostat is refused: not supported"),
        ("sampling.xtc_probability = 0.5", "is refused"),
        ("sampling.dry_multiplier = 0.5", "is refused"),
        ("target.threads = '4'", "allowed: whole number"),
        ("target.threads.x = 4", "allowed: whole number"),
        ("target.threads = ", "configuration file"),
    ],
)
def test_wrong_files(tmp_path: Path, toml: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_text(tmp_path, toml)
    assert words in str(caught.value)
    assert "outrider.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=reason):
            from_file(path)
    (tmp_path / "latin.toml").write_bytes(b'log.file = "\xe9"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        from_file(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("OUTRIDER_TARGET_TREADS", "did you mean OUTRIDER_TARGET_THREADS?"),
        ("OUTRIDER_SPECULATIVE_P_SPLIT", "is refused: retired"),
        ("OUTRIDER_DRAFT_N_MAX", "is refused: use speculative.n_max"),
        ("OUTRIDER_", "is no option"),
    ],
)
def test_unknown_variables_are_errors(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match="environment variable") as caught:
        load(environ={name: "1"})
    assert words in str(caught.value)


def test_a_variable_with_a_wrong_value_is_named() -> None:
    with pytest.raises(ConfigError, match="from environment OUTRIDER_TARGET_THREADS"):
        load(environ={"OUTRIDER_TARGET_THREADS": "many"})


def test_variables_of_others_are_let_alone() -> None:
    load(environ={"OUTRIDER_MODELS": "/models", "LLAMA_ARG_MODEL": "x", "OUTRIDERX": "y"})


# --- paths --------------------------------------------------------------------------------------------------------


def test_paths_of_a_file_count_from_it(tmp_path: Path) -> None:
    result = from_text(tmp_path, '[target]\nmodel = "models/t.gguf"\n[draft]\nmodel = "/abs/d.gguf"\n')
    assert result.config.target.model == str(tmp_path / "models/t.gguf")
    assert result.config.draft.model == "/abs/d.gguf"
    above = from_text(tmp_path, '[target]\nmodel = "../t.gguf"\n')
    assert above.config.target.model == str(tmp_path.parent / "t.gguf")


def test_paths_that_are_none() -> None:
    result = merged(setting("target.model", "scripted:seed=1"), setting("generation.file", "-"))
    assert result.config.target.model == "scripted:seed=1"
    assert result.config.generation.file == "-"
    assert merged(setting("draft.model", "")).config.draft.model == ""


def test_a_file_of_an_installed_package() -> None:
    import msgspec

    path = merged(setting("target.model", "package:msgspec/py.typed")).config.target.model
    assert Path(path) == Path(msgspec.__file__).parent / "py.typed"
    for wrong in ("package:no_such_package/x.gguf", "package:msgspec", "package:/x"):
        with pytest.raises(ConfigError, match="no installed package"):
            merged(setting("target.model", wrong))
