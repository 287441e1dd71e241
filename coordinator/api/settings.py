"""From a body to what is run: the coordinator's configuration with what the request asks for, within its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from coordinator.api.errors import bad_field, from_error
from coordinator.api.requests import MAX_BIASES, Generate, grammar_of
from coordinator.assemble import make_request
from coordinator.request import Request
from coordinator.shift import is_shiftable
from outrider.config import Config, new_seed
from outrider.errors import OutriderError
from outrider.types import MAX_PROBS, LogitBias

#: What looks a prediction up where no type that is on does.
PREDICTION_TYPE = "ngram-suffix"

_SAMPLING = [
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "min_tokens",
    "post_sampling_probs",
]


def configured(base: Config, body: Generate, biases: Sequence[LogitBias], *, fixed_seed: bool) -> Config:
    """`base` with the settings of `body`. Without a seed of its own a request gets a new one, unless `fixed_seed`.

    Raises ApiError."""
    config = msgspec.structs.replace(
        base,
        sampling=msgspec.structs.replace(base.sampling, **_sampling(base, body, biases, fixed_seed)),
        generation=msgspec.structs.replace(base.generation, **_generation(base, body)),
        speculative=msgspec.structs.replace(base.speculative, **_speculative(base, body)),
    )
    if config.generation.constraint is not None:  # random acceptance obeys no grammar: such a request is a real one
        plain = msgspec.structs.replace(config.speculative, synth_len=None, synth_rates=[])
        return msgspec.structs.replace(config, speculative=plain)
    return config


def _sampling(base: Config, body: Generate, biases: Sequence[LogitBias], fixed_seed: bool) -> dict[str, Any]:
    changes = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if body.temperature is not None:
        changes["temp"] = body.temperature
    if body.top_k is not None:
        changes["top_k"] = max(body.top_k, 0)
    if body.seed is not None or not fixed_seed:
        changes["seed"] = body.seed if body.seed is not None and body.seed >= 0 else new_seed()
    changes["n_probs"] = _n_probs(base, body)
    changes["logit_bias"] = [*base.sampling.logit_bias, *biases]
    if len(changes["logit_bias"]) > MAX_BIASES:
        raise bad_field("logit_bias", f"with the server's own, more than {MAX_BIASES} tokens")
    return changes


def _n_probs(base: Config, body: Generate) -> int:
    """Of `logprobs: true, top_logprobs: 5`, `logprobs: 5` and `n_probs: 5`."""
    if body.top_logprobs and body.logprobs in (None, False):
        raise bad_field("top_logprobs", "needs logprobs: true")
    asked = body.top_logprobs or 0
    if body.logprobs is True:
        return max(asked, 1)
    if body.logprobs:
        return int(body.logprobs)
    return min(body.n_probs if body.n_probs is not None else base.sampling.n_probs, MAX_PROBS)


def _generation(base: Config, body: Generate) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if body.limit not in (None, -1):
        changes["n_predict"] = body.limit
    if body.stop is not None:
        changes["stop"] = body.stops
    grammar = grammar_of(body)
    if grammar is not None:
        changes |= {
            "grammar": "",
            "json_schema": "",
            ("grammar" if grammar[0] == "gbnf" else "json_schema"): grammar[1],
        }
    return changes


def _speculative(base: Config, body: Generate) -> dict[str, Any]:
    """A request may draft less than the server does, with fewer types, and never more."""
    given = {**(body.speculative or {})}
    for name in ("n_max", "n_min", "p_min", "types", "type"):
        if (value := getattr(body, f"spec_{name}")) is not None:
            given[name] = value
    changes: dict[str, Any] = {}
    for name, value in given.items():
        field = f"speculative.{name}"
        match name, value:
            case "n_max" | "n_min", int() if 0 <= value <= 1024:
                changes[name] = min(value, base.speculative.n_max)
            case "p_min", int() | float() if 0 <= value <= 1:
                changes[name] = float(value)
            case "type" | "types", str() | list():
                changes["types"] = _types(base, value, field)
            case _:
                raise bad_field(field, "n_max and n_min are lengths, p_min is a probability, types names types in use")
    if body.prediction is not None and "types" not in changes:
        changes["types"] = with_lookup(base.speculative.types)
    return changes


def with_lookup(types: Sequence[str]) -> list[str]:
    """The same with a type that searches text, so that a prediction is of use."""
    return list(types) if any(name.startswith("ngram-") for name in types) else [*types, PREDICTION_TYPE]


def _types(base: Config, value: str | list[Any], field: str) -> list[str]:
    names = value.split(",") if isinstance(value, str) else value
    names = [] if names in (["none"], [""]) else names
    for name in names:
        if name not in base.speculative.types:
            raise bad_field(field, f"{name} is not on here; on are: {', '.join(base.speculative.types) or 'none'}")
    return names


def requests(config: Config, body: Generate, prompts: Sequence[list[int]], prediction: Sequence[int]) -> list[Request]:
    """One for every prompt and choice. Raises ApiError."""
    try:
        made = [make_request(config, tokens, prediction) for tokens in prompts]
    except OutriderError as error:
        raise from_error(error) from None
    shifts = config.server.context_shift
    return [
        replace(
            request,
            choice=choice,
            cache_prompt=body.cache_prompt is not False,
            text_goes_on=shifts and is_shiftable(request),
            report_progress=bool(body.return_progress and body.stream),
        )
        for request in made
        for choice in range(body.n_choices)
    ]


def shown(config: Config, request: Request, *, stream: bool) -> dict[str, Any]:
    """llama-server's `generation_settings`: what is in effect."""
    sampling = config.sampling
    settings = {name: getattr(sampling, name) for name in _SAMPLING}
    biases = [{"token": bias.token, "bias": bias.bias if bias.bias > -1e9 else None} for bias in sampling.logit_bias]
    return {
        **settings,
        "seed": sampling.seed,
        "temperature": sampling.temp,
        "top_k": sampling.top_k,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.0,
        "stop": list(config.generation.stop),
        "max_tokens": request.n_predict,
        "n_predict": request.n_predict,
        "stream": stream,
        "logit_bias": biases,
        "n_probs": sampling.n_probs,
        "grammar": config.generation.grammar,
        "speculative.types": ",".join(config.speculative.types) or "none",
        "speculative.n_max": config.speculative.n_max,
        "speculative.n_min": config.speculative.n_min,
        "speculative.p_min": config.speculative.p_min,
    }
