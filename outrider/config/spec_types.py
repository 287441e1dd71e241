"""Reading the names of the types of speculation, as llama.cpp does. `outrider/speculators/types.py` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from outrider.errors import ConfigError
from outrider.speculators.types import TYPE_NAMES


def type_from_name(name: str) -> str | None:
    """The type of exactly this name (case and blanks count), else None."""
    return name if name in TYPE_NAMES else None


def types_from_names(names: Sequence[str]) -> list[str]:
    """The types of one list of names, in its order.

    "none" anywhere makes the whole list ["none"], and the names behind it are not looked at; an unknown name before it
    is a ConfigError.
    """
    types: list[str] = []
    for name in names:
        known = type_from_name(name)
        if known is None:
            raise ConfigError(f"unknown type of speculation {name!r}{_hint(name)}")
        if known == "none":
            return ["none"]
        types.append(known)
    return types


def _hint(name: str) -> str:
    near = get_close_matches(name, TYPE_NAMES, n=1)
    return f": did you mean {near[0]}?" if near else ""
