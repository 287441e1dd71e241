"""What one request may change: lower, never raise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.config import Config, apply_request, load, request_options
from outrider.config.merge import Merged
from outrider.errors import RequestError
from tests.unit.config_samples import setting


def server(**values: str) -> Config:
    keys = {"target.model": "t", "draft.model": "d", "speculative.n_max": "8"}
    keys |= {name.replace("__", "."): value for name, value in values.items()}
    return load([setting(key, value) for key, value in keys.items()], environ={}).config


def asked(base: Config, **tables: Any) -> Config:
    return apply_request(base, json.dumps(tables), lambda: 7)


def client(*pairs: tuple[str, str]) -> Merged:
    return load([setting("client.connect", "ipc:///s"), *(setting(*pair) for pair in pairs)], environ={})


@pytest.mark.parametrize(("n_max", "used"), [(0, 0), (1, 1), (4, 4), (8, 8), (16, 8)])
def test_a_request_lowers_the_longest_draft_and_cannot_raise_it(n_max: int, used: int) -> None:
    config = asked(server(), speculative={"n_max": n_max})
    assert config.speculative.n_max == used
    assert config.speculative.draft_n_max == used


def test_the_other_lengths_are_capped_too() -> None:
    base = server(speculative__types="ngram-mod,draft-simple")
    config = asked(base, speculative={"ngram_mod": {"n_max": 1000, "n_min": 2}, "ngram_map_k": {"size_m": 4}})
    assert config.speculative.ngram_mod.n_max == 64
    assert config.speculative.ngram_mod.n_min == 2
    assert config.speculative.ngram_map_k.size_m == 4


def test_limits_of_a_request_have_effect() -> None:
    config = asked(server(), speculative={"n_min": 2, "p_min": 0.5})
    assert (config.speculative.draft_n_min, config.speculative.draft_p_min) == (2, 0.5)


def test_a_request_chooses_among_the_types_that_are_on() -> None:
    base = server(speculative__types="ngram-mod,draft-simple")
    assert asked(base, speculative={"types": ["ngram-mod"]}).speculative.types == ["ngram-mod"]
    assert asked(base, speculative={"types": ["none"]}).speculative.types == []
    with pytest.raises(RequestError, match="ngram-cache is not on here"):
        asked(base, speculative={"types": ["ngram-cache"]})


def test_what_is_not_asked_for_stays() -> None:
    base = server(sampling__temp="0", sampling__top_k="5")
    config = asked(base, sampling={"temp": 0.5})
    assert (config.sampling.temp, config.sampling.top_k) == (0.5, 5)
    assert apply_request(base, "") == base


def test_a_random_seed_is_drawn_where_the_request_is_served() -> None:
    assert asked(server(), sampling={"seed": -1}).sampling.seed == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{", "request"),
        ("[]", "an object"),
        ('{"target": {"model": "x"}}', "an object with the tables"),
        ('{"sampling": {"tmp": 1}}', "did you mean sampling.temp?"),
        ('{"sampling": {"mirostat": 2}}', "is refused"),
        ('{"speculative": {"p_split": 0.1}}', "retired"),
        ('{"sampling": {"temp": "0.5"}}', "sampling.temp"),
        ('{"sampling": {"top_k": -1}}', "allowed: whole number"),
        ('{"speculative": {"ngram_cache": {"static": "/etc/passwd"}}}', "can only be set where the coordinator runs"),
        ('{"generation": {"file": "/etc/passwd"}}', "can only be set"),
    ],
)
def test_wrong_requests_are_refused_by_name(options: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        apply_request(server(), options)
    assert words in str(caught.value)


def test_a_client_sends_what_its_user_set() -> None:
    merged = client(
        ("sampling.temp", "0.5"), ("generation.prompt", "p"), ("generation.stop", "x"), ("log.verbose", "1")
    )
    assert json.loads(request_options(merged)) == {"sampling": {"temp": 0.5}, "generation": {"stop": ["x"]}}


def test_what_a_client_sends_is_understood() -> None:
    merged = client(("sampling.logit_bias", "3+1"), ("speculative.n_max", "2"), ("generation.n_predict", "9"))
    config = apply_request(server(), request_options(merged))
    assert config.sampling.logit_bias == merged.config.sampling.logit_bias
    assert config.speculative.n_max == 2
    assert config.generation.n_predict == 9
