"""Four sources, one precedence: command line > environment > file > default.

A source gives settings; `merge` keeps the strongest of each key, checks its type and range, and remembers where it came
from. What keys mean together is settled afterwards, in `settle.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import Repr
from typing import Any

import msgspec

from outrider.config.options import BY_KEY, IMPLIED, OPTIONS, Option
from outrider.config.paths import absolute
from outrider.config.schema import Config
from outrider.errors import ConfigError

LEVELS = ("default", "follows", "file", "environment", "command line", "request")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: one of `LEVELS`, and the flag, variable, file or key that gave it."""

    level: str
    name: str = ""

    @property
    def explicit(self) -> bool:
        """Did the user ask for this value?"""
        return LEVELS.index(self.level) >= LEVELS.index("file")

    def __str__(self) -> str:
        return f"{self.level} {self.name}".strip()


DEFAULT = Origin("default")

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of one source. A `str` is parsed by the option unless the source has types of its own (`typed`)."""

    key: str
    value: object
    origin: Origin
    folder: Path = Path()
    typed: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """A configuration whose keys are each right, where each came from, and what is worth a warning."""

    config: Config
    origins: Mapping[str, Origin]
    warnings: list[str] = field(default_factory=list)


def merge(settings: Iterable[Setting], random_seed: Callable[[], int]) -> Merged:
    """Settings in any order; of one key the strongest level counts. Raises ConfigError: key, value, origin, allowed."""
    by_key: dict[str, list[Setting]] = {}
    for setting in settings:
        by_key.setdefault(setting.key, []).append(setting)
    warnings: list[str] = []
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for key, candidates in by_key.items():
        level = max(candidates, key=lambda s: LEVELS.index(s.origin.level)).origin.level
        strongest = [s for s in candidates if s.origin.level == level]
        value = _combined(BY_KEY[key], strongest, warnings)
        values[key] = random_seed() if (key, value) == ("sampling.seed", -1) else _checked(strongest[-1], value)
        origins[key] = strongest[-1].origin
    _follow(values, origins)
    return Merged(build(values), {option.key: origins.get(option.key, DEFAULT) for option in OPTIONS}, warnings)


def _combined(option: Option, settings: Sequence[Setting], warnings: list[str]) -> Any:
    """The value of one key in one source, where a flag may have been given more than once."""
    values = [read(setting) for setting in settings]
    if option.key == "speculative.types":
        return _all_types(values, warnings)
    if option.adds:
        return [item for value in values for item in value]
    if len(values) > 1:
        warnings.append(f"{settings[-1].origin} was given {len(values)} times: the last one counts")
    return values[-1]


def _all_types(lists: Sequence[Any], warnings: list[str]) -> list[str]:
    """Lists add up; "none" is dropped, so a list of only it is empty. This is llama.cpp's rule, which a warning names
    where it may surprise: a `none` does not switch off what another list has switched on."""
    types = [item for one in lists for item in (one if isinstance(one, list) else [one]) if item != "none"]
    if types and ["none"] in lists:
        warnings.append(f"--spec-type none beside another --spec-type: speculation stays on with {', '.join(types)}")
    return list(dict.fromkeys(types))


def read(setting: Setting) -> Any:
    """The setting's value in the shape of its key, range unchecked. Raises ConfigError."""
    option, value = BY_KEY[setting.key], setting.value
    try:
        if isinstance(value, str) and (option.has_own_form or not setting.typed):
            value = option.parse(value)
        elif option.has_own_form and isinstance(value, list):
            value = _items(option, value)
        elif option.key.endswith(".flash_attn") and isinstance(value, bool):
            value = "on" if value else "off"
    except (ValueError, ConfigError) as error:
        raise _refusal(setting, str(error)) from None
    if option.path and isinstance(value, str):
        return absolute(value, setting.folder)
    return value


def _items(option: Option, values: list[Any]) -> list[Any]:
    """A list of a typed source whose items may stand in the option's own text form."""
    if option.key == "speculative.types":
        return list(option.parse(",".join(values))) if values and all(isinstance(v, str) for v in values) else values
    items: list[Any] = []
    for value in values:
        items.extend(option.parse(value) if isinstance(value, str) else [value])
    return items


def _checked(setting: Setting, value: Any) -> Any:
    option = BY_KEY[setting.key]
    if isinstance(value, int) and value.bit_length() > 64:
        raise _refusal(setting, "too large")
    try:
        return msgspec.convert(value, option.type)
    except msgspec.ValidationError:
        raise _refusal(setting) from None


def _refusal(setting: Setting, why: str = "") -> ConfigError:
    reason = f": {why}" if why else ""
    value, allowed = _SHORT.repr(setting.value), BY_KEY[setting.key].allowed
    return ConfigError(f"{setting.key} = {value} (from {setting.origin}){reason}; allowed: {allowed}")


def _follow(values: dict[str, Any], origins: dict[str, Origin]) -> None:
    for option in OPTIONS:
        if option.follows in values and option.key not in values:
            values[option.key] = values[option.follows]
            origins[option.key] = Origin("follows", option.follows)
    for (key, value), (implied, default) in IMPLIED.items():
        if values.get(key) == value and implied not in values:
            values[implied], origins[implied] = default, Origin("follows", key)


def build(values: Mapping[str, Any]) -> Config:
    """Config from dotted keys; keys that are left out have their defaults."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        node = tree
        for table in tables:
            node = node.setdefault(table, {})
        node[name] = msgspec.to_builtins(value)
    return msgspec.convert(tree, Config)


def get(config: msgspec.Struct, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value
