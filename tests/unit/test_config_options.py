"""The table of options: complete, unambiguous, and each row alive."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from outrider.config import schema
from outrider.config.argv import parse_argv
from outrider.config.merge import get, merge
from outrider.config.options import BY_ENV, BY_FLAG, BY_KEY, FLAG_SETS, OPTIONS, Option, schema_keys
from outrider.config.refused import REFUSED_FLAGS, REFUSED_KEYS
from outrider.config.render import reference
from outrider.config.schema import Config
from outrider.config.sources import from_environment
from outrider.engine.options import CACHE_TYPES, FLASH_ATTN
from outrider.speculators.types import TYPE_NAMES
from tests.unit.config_samples import argv_for, sample

ALL = Config.__struct_fields__
FLAGS = [(flag, option) for flag, (option, _) in BY_FLAG.items()]


def test_every_key_has_a_row_and_every_row_a_key() -> None:
    assert sorted(BY_KEY) == sorted(schema_keys())
    assert len(BY_KEY) == len(OPTIONS)


def test_names_are_unambiguous() -> None:
    assert len(BY_ENV) == len(OPTIONS)
    assert len({flag for option in OPTIONS for flag in option.flags}) == sum(len(option.flags) for option in OPTIONS)
    taken = BY_FLAG.keys() | FLAG_SETS.keys()
    assert not taken & REFUSED_FLAGS.keys()
    assert not BY_KEY.keys() & REFUSED_KEYS.keys()


@pytest.mark.parametrize(("flag", "option"), FLAGS, ids=[flag for flag, _ in FLAGS])
def test_every_flag_reaches_its_key(flag: str, option: Option) -> None:
    argv, value = argv_for(option, flag)
    merged = merge(parse_argv(argv, {}, ALL).settings, lambda: 0)
    assert get(merged.config, option.key) == value
    assert str(merged.origins[option.key]) == f"command line {flag}"
    others = [key for key in BY_KEY if key != option.key and merged.origins[key].explicit]
    assert not others


@pytest.mark.parametrize("option", OPTIONS, ids=[option.env for option in OPTIONS])
def test_every_variable_reaches_its_key(option: Option) -> None:
    text, value = sample(option)
    merged = merge(from_environment({option.env: text}), lambda: 0)
    assert get(merged.config, option.key) == value
    assert str(merged.origins[option.key]) == f"environment {option.env}"


def test_a_set_of_flags_sets_its_keys() -> None:
    merged = merge(parse_argv(["--spec-ngram-mod-n-min", "2", "--spec-default"], {}, ALL).settings, lambda: 0)
    assert merged.config.speculative.types == ["ngram-mod"]
    assert merged.config.speculative.ngram_mod.n_min == 48


def test_choices_are_those_of_the_engines_and_speculators() -> None:
    assert set(typing.get_args(schema.CacheType)) == set(CACHE_TYPES)
    assert set(typing.get_args(schema.FlashAttention)) == set(FLASH_ATTN)
    assert BY_KEY["speculative.types"].allowed == "list of: " + ", ".join(TYPE_NAMES[1:])


def test_sampling_is_what_travels() -> None:
    config = Config()
    assert config.sampling.params() == schema.SamplingParams()


def test_the_reference_is_the_table() -> None:
    """`python -m outrider.config > docs/configuration.md` was run after the last change of the table."""
    path = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert path.read_text() == reference()
