"""Command line to settings. Flags are exact: no abbreviations, no values glued to single-letter flags.

A flag's value is the next argument, whatever it looks like (`-p "- a list"`, `-n -1`), or what follows `=` behind a
long flag. Underscores in long flags count as dashes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outrider.config.merge import Origin, Setting
from outrider.config.options import BY_FLAG, FLAG_SETS
from outrider.config.refused import REFUSED_FLAGS
from outrider.config.sources import nearest
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parsed:
    """`settings` of the configuration, `own` flags of the command (None where without a value), `names` the rest."""

    settings: list[Setting] = field(default_factory=list)
    own: dict[str, str | None] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


def parse_argv(argv: Sequence[str], own: Mapping[str, bool], sections: Container[str]) -> Parsed:
    """`own`: flags of the command itself and whether each takes a value; `sections`: top-level tables whose flags it
    accepts. Raises ConfigError in one line."""
    parsed = Parsed()
    rest = iter(argv)
    for argument in rest:
        if not _is_flag(argument):
            parsed.names.append(argument)
            continue
        flag, value = _split(argument)
        if flag in own:
            parsed.own[flag] = _own_value(flag, value, rest, own[flag])
        elif flag in FLAG_SETS:
            _no_value(flag, value)
            parsed.settings.extend(_setting(key, text, flag) for key, text in FLAG_SETS[flag])
        elif flag in BY_FLAG:
            parsed.settings.append(_flag_setting(flag, value, rest, sections))
        else:
            raise ConfigError(_why_unknown(flag, own))
    return parsed


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and argument != "-"


def _split(argument: str) -> tuple[str, str | None]:
    if not argument.startswith("--"):
        return argument, None
    flag, equals, value = argument.partition("=")
    return "--" + flag[2:].replace("_", "-"), value if equals else None


def _value(flag: str, value: str | None, rest: Iterator[str]) -> str:
    text = next(rest, None) if value is None else value
    if text is None:
        raise ConfigError(f"{flag} needs a value")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the value of {flag} is not UTF-8 text") from None
    return text


def _own_value(flag: str, value: str | None, rest: Iterator[str], takes_value: bool) -> str | None:
    if takes_value:
        return _value(flag, value, rest)
    _no_value(flag, value)
    return None


def _no_value(flag: str, value: str | None) -> None:
    if value is not None:
        raise ConfigError(f"{flag} takes no value, it was given {value!r}")


def _flag_setting(flag: str, value: str | None, rest: Iterator[str], sections: Container[str]) -> Setting:
    option, switch = BY_FLAG[flag]
    if option.key.partition(".")[0] not in sections:
        raise ConfigError(f"{flag} ({option.key}) has no effect on this command; `outrider run --help` lists it")
    if switch is None:
        return _setting(option.key, _value(flag, value, rest), flag)
    _no_value(flag, value)
    return _setting(option.key, "true" if switch else "false", flag)


def _setting(key: str, text: str, flag: str) -> Setting:
    return Setting(key, text, Origin("command line", flag), Path())


def _why_unknown(flag: str, own: Mapping[str, bool]) -> str:
    if flag in REFUSED_FLAGS:
        return f"{flag} is refused: {REFUSED_FLAGS[flag]}"
    return f"unknown flag {flag}" + (nearest(flag, {*BY_FLAG, *FLAG_SETS, *own}) or "; --help lists the flags")
