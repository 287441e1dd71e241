"""Text to values and back: what a flag or an environment variable says, as the type of its key."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec
from msgspec import inspect as mi

_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
#: A pattern that is a choice of words.
_WORDS = re.compile(r"\^\([a-z0-9|-]+\)\$")
_TRUE = frozenset({"true", "on", "yes", "1", "enabled"})
_FALSE = frozenset({"false", "off", "no", "0", "disabled"})


def parse_int(text: str) -> int:
    """A whole number in decimal digits; blanks around it and a sign may stand. ValueError otherwise."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("not a whole number")
    return int(text)


def parse_float(text: str) -> float:
    """All of `text` as C's strtod reads it: decimal, exponent, hexadecimal, inf, nan. ValueError otherwise."""
    text = text.strip()
    if not text or "_" in text:
        raise ValueError("not a number")
    hexadecimal = text.lstrip("+-")[:2].lower() == "0x"
    try:
        value = float.fromhex(text) if hexadecimal else float(text)
    except (ValueError, OverflowError):
        raise ValueError("not a number") from None
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError("too large a number")
    return value


def parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("neither true nor false")
    return word in _TRUE


def parse_items(text: str) -> list[str]:
    """The parts of a comma list; blanks around them do not count. Empty text is the empty list."""
    return [item.strip() for item in text.split(",")] if text.strip() else []


def parse_text(kind: mi.Type, text: str) -> Any:
    """`text` as a value of `kind`; ranges are left to the caller's validation. ValueError if it has another form."""
    match kind:
        case mi.UnionType(types=types):
            return parse_text(next(t for t in types if not isinstance(t, mi.NoneType)), text)
        case mi.BoolType():
            return parse_bool(text)
        case mi.IntType():
            return parse_int(text)
        case mi.FloatType():
            return parse_float(text)
        case mi.ListType(item_type=item):
            return [parse_text(item, part) for part in parse_items(text)]
        case _:
            return text


def describe(kind: mi.Type) -> str:
    """The allowed values of `kind`, in words."""
    match kind:
        case mi.UnionType(types=types):
            return describe(next(t for t in types if not isinstance(t, mi.NoneType)))
        case mi.BoolType():
            return "true or false"
        case mi.IntType() | mi.FloatType():
            return ("whole number" if isinstance(kind, mi.IntType) else "number") + _range(kind)
        case mi.LiteralType(values=values):
            return ", ".join(str(value) for value in values)
        case mi.ListType(item_type=item):
            return f"list of: {describe(item)}"
        case mi.StructType(cls=cls) if cls.__name__ == "LogitBias":
            return "[token, bias]"
        case mi.StrType(pattern=str(pattern)) if _WORDS.fullmatch(pattern):
            return pattern[2:-2].replace("|", ", ")
        case mi.StrType(pattern=pattern) if pattern:
            return f"text of the form {pattern}"
        case _:
            return "text"


def _range(kind: mi.IntType | mi.FloatType) -> str:
    upper = kind.le if kind.le is not None else kind.lt
    lower = kind.ge if kind.ge is not None else kind.gt
    big = 2**31 - 1
    last = None if upper is None or abs(upper) >= big else f"{'below ' if kind.le is None else ''}{_plain(upper)}"
    first = None if lower is None or abs(lower) >= big else f"{'above ' if kind.ge is None else ''}{_plain(lower)}"
    if first is not None and last is not None:
        return f", {first} to {last}"
    return f", at least {first}" if first is not None else f", at most {last}" if last is not None else ""


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def to_toml(value: object) -> str:
    """One TOML value: bool, int, float, text, or a list of these (structs are written as lists)."""
    match value:
        case bool():
            return "true" if value else "false"
        case float() if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case msgspec.Struct():
            return to_toml(list(msgspec.structs.astuple(value)))
        case list() | tuple():
            return f"[{', '.join(to_toml(item) for item in value)}]"
        case _:
            raise AssertionError(f"no TOML for {type(value).__name__}")
