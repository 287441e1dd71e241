"""Renders chat messages by the Jinja template that a model file brings.

The template is somebody else's program: it runs in Jinja's immutable sandbox, and its length and its output's are
bounded. It finds what templates written for Hugging Face's library and for llama.cpp expect to find.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import RequestError

MAX_SOURCE = 1 << 20  # characters
MAX_OUTPUT = 1 << 23  # characters

_NO_VARIABLES: Mapping[str, object] = MappingProxyType({})

#: What a template can raise by working on values that it did not expect.
_TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


def render_chat(
    source: str | None,
    messages: Sequence[tuple[str, str]],
    *,
    bos: str,
    eos: str,
    add_bos: bool,
    add_eos: bool,
    add_generation_prompt: bool = True,
    variables: Mapping[str, object] = _NO_VARIABLES,
) -> str:
    """The text of the (role, content) messages, ending with the head of the assistant's answer if
    `add_generation_prompt`. `variables`: further ones, which cannot replace those that every template has.

    bos, eos: texts of these tokens, for templates that write them. Where the tokenizer adds them too (`add_bos`,
    `add_eos`), the template's own at the ends are left out, so that a prompt never has them twice. Raises RequestError
    if there is no template (`source` is None), or it is too long, faulty, or refuses these messages.
    """
    if source is None:
        raise RequestError("this model has no chat template: send plain text instead of chat messages")
    if len(source) > MAX_SOURCE:
        raise RequestError(f"the model's chat template has {len(source)} characters, the limit is {MAX_SOURCE}")
    names = {
        **variables,
        "messages": [{"role": role, "content": content} for role, content in messages],
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
    }
    try:
        text = _joined(_environment().from_string(source).generate(names))
    except _TEMPLATE_FAULTS as error:
        reason = " ".join(str(error).split())[:300]
        raise RequestError(f"the model's chat template refused the messages: {reason}; check their roles") from error
    text = text.removeprefix(bos) if add_bos else text
    return text.removesuffix(eos) if add_eos else text


def _joined(pieces: Iterable[str]) -> str:
    texts: list[str] = []
    room = MAX_OUTPUT
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise RequestError(f"the model's chat template wrote more than {MAX_OUTPUT} characters")
        texts.append(piece)
    return "".join(texts)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
