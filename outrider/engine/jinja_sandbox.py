"""Runs one Jinja template, which is somebody else's program, in Jinja's immutable sandbox.

The sandbox keeps a template away from Python's insides and from other templates; its output is bounded here, its time and
memory by the process that it runs in (`template_child.py`). It finds what templates written for Hugging Face's library and
for llama.cpp expect to find.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import RequestError

MAX_OUTPUT = 1 << 22  # characters

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


def render_template(source: str, values: Mapping[str, object]) -> str:
    """What the template writes. Raises RequestError if it is faulty, refuses the values, or writes too much."""
    try:
        return _joined(_compiled(source).generate(values))
    except _TEMPLATE_FAULTS as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise RequestError(f"the model's chat template refused the messages: {reason}; check their roles") from error


@lru_cache(maxsize=4)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


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
