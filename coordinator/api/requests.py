"""Bodies of requests: parsed, bounded and turned into one kind of value. Known fields that we cannot serve are errors.

Names are OpenAI's and llama-server's. `null` is a field that was not given.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, field

from coordinator.api.errors import ApiError, bad_field
from outrider.types import MAX_PROBS, MAX_TOKENS, Probability
from outrider.wire.limited_log import LimitedLog

_limited = LimitedLog(log=logging.getLogger("outrider.http"))

MAX_MESSAGES = 4096
MAX_CHOICES = 16
MAX_STOPS = 64
MAX_BIASES = 4096

Count = Annotated[int, Meta(ge=-1, le=MAX_TOKENS)]
Penalty = Annotated[float, Meta(ge=-100.0, le=100.0)]
Probs = Annotated[int, Meta(ge=0, le=MAX_PROBS)]
DraftLength = Annotated[int, Meta(ge=0, le=1024)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stops = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)]

#: Fields that would change the answer and that we do not have: name → what to do. Empty values are let pass.
UNSUPPORTED: dict[str, str] = {
    **dict.fromkeys(("tools", "functions", "function_call"), "tool calls are not supported; leave it out"),
    "audio": "only text is supported",
    "suffix": "filling in is not supported",
    "lora": "adapters are not supported",
    "t_max_predict_ms": "there is no limit of time; use max_tokens",
    "n_indent": "not supported",
    **dict.fromkeys(
        ("dry_multiplier", "xtc_probability", "mirostat", "dynatemp_range", "top_n_sigma", "adaptive_target"),
        "not supported; the samplers are temperature, top_k, top_p, min_p, typical_p and the penalties",
    ),
}
#: Values of theirs that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"top_n_sigma": (-1,), "adaptive_target": (-1,), "function_call": ("none",)}


#: OpenAI's fields that name the sender, or something that is so here anyway.
_NO_EFFECT = frozenset(
    ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier", "tool_choice", "modalities")
) | {"parallel_tool_calls"}


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Prediction(msgspec.Struct):
    type: Literal["content"] = "content"
    content: Any = ""


class Generate(msgspec.Struct, kw_only=True):
    """What all endpoints that generate have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n_predict: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    n_cmpl: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stops | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=-1.0, le=100.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    typical_p: Probability | None = None
    repeat_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Any = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    n_probs: Probs | None = None
    logprobs: bool | Probs | None = None
    top_logprobs: Probs | None = None
    post_sampling_probs: bool | None = None
    grammar: Annotated[str, Meta(max_length=1 << 20)] | None = None
    json_schema: Any = None
    response_format: dict[str, Any] | None = None
    prediction: Prediction | None = None
    cache_prompt: bool | None = None
    id_slot: Annotated[int, Meta(ge=-1, le=255)] | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    response_fields: Annotated[list[str], Meta(max_length=100)] | None = None
    verbose: bool | None = None
    draft_marks: bool | None = None  # ours: say of each token of a chat stream whether a draft had it
    speculative: dict[str, Any] | None = None
    spec_n_max: DraftLength | None = field(default=None, name="speculative.n_max")
    spec_n_min: DraftLength | None = field(default=None, name="speculative.n_min")
    spec_p_min: float | None = field(default=None, name="speculative.p_min")
    spec_types: str | list[str] | None = field(default=None, name="speculative.types")
    spec_type: str | None = field(default=None, name="speculative.type")

    @property
    def n_choices(self) -> int:
        return self.n or self.n_cmpl or 1

    @property
    def limit(self) -> int | None:
        """The most tokens to generate; None where the server's own limit holds."""
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        return next((value for value in given if value is not None), None)

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class Completion(Generate, kw_only=True):
    """`/completion` and `/v1/completions`."""

    prompt: Any
    echo: bool | None = None
    best_of: int | None = None


class Message(msgspec.Struct, kw_only=True):
    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: Any = None


class Template(msgspec.Struct, kw_only=True):
    """What a chat template takes."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Chat(Generate, kw_only=True):
    """`/v1/chat/completions`: the fields of `Template` and of `Generate`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    content: Annotated[str, Meta(max_length=1 << 22)] = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: Annotated[list[Annotated[int, Meta(ge=0, lt=2**31)]], Meta(max_length=MAX_TOKENS)]


BodyT = TypeVar("BodyT")


def parse(data: bytes, kind: type[BodyT]) -> BodyT:
    """The body as a `kind`. Raises ApiError 400, naming the field where one is wrong."""
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(tree, dict):
        raise ApiError(400, f"the body must be a JSON object, not {type(tree).__name__}")
    _refuse_unsupported(tree)
    try:
        body = msgspec.convert({name: value for name, value in tree.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise _named(error) from None
    _log_ignored(tree, kind)
    return body


def _log_ignored(tree: Mapping[str, Any], kind: type[Any]) -> None:
    """Fields that nobody knows are let pass, but not in silence."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)} | UNSUPPORTED.keys() | _NO_EFFECT
    ignored = [f"{name:.60}" for name in sorted(set(tree) - known)[:10]]
    if ignored:
        _limited.warn("ignored", f"ignored fields that are not known here: {ignored}")


def _refuse_unsupported(tree: Mapping[str, Any]) -> None:
    for name, why in UNSUPPORTED.items():
        value = tree.get(name)
        if value and value not in _NEUTRAL.get(name, ()):
            raise bad_field(name, why)


def _named(error: msgspec.ValidationError) -> ApiError:
    """`Expected …, got … - at `$.temperature`` as a sentence about a field."""
    problem, _, path = str(error).partition(" - at `$")
    name = path.rstrip("`").lstrip(".")
    if not name and "required field" in problem:
        name = problem.rpartition("`")[0].rpartition("`")[2]
    return bad_field(name or "body", problem)


def grammar_of(body: Generate) -> tuple[str, str] | None:
    """("gbnf" or "json_schema", its text), or None. Raises ApiError for formats that do not exist, or two at once."""
    found = [entry for entry in (_format_of(body.response_format), _schema(body.json_schema, "json_schema")) if entry]
    if body.grammar:
        found.append(("gbnf", body.grammar))
    if len(found) > 1:
        raise bad_field("grammar", "give one of grammar, json_schema and response_format")
    return found[0] if found else None


def _format_of(response_format: Mapping[str, Any] | None) -> tuple[str, str] | None:
    if not response_format:
        return None
    match response_format.get("type"):
        case "text":
            return None
        case "json_object":
            return _schema(response_format.get("schema") or {"type": "object"}, "response_format.schema")
        case "json_schema":
            inner = response_format.get("json_schema")
            if not isinstance(inner, Mapping):
                raise bad_field("response_format.json_schema", "an object is needed")
            return _schema(inner.get("schema", {}), "response_format.json_schema.schema")
    raise bad_field("response_format.type", "must be text, json_object or json_schema")


def _schema(schema: Any, name: str) -> tuple[str, str] | None:
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise bad_field(name, "must be a JSON schema: an object")
    text = json.dumps(schema)
    if len(text) > 1 << 20:
        raise bad_field(name, "is longer than a million characters")
    return "json_schema", text
