"""`--help`, from the table of options."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from outrider.config.options import FLAG_SETS, Option
from outrider.config.render import TITLES, default_text, sections

_INDENT = 30


def overview(summaries: Mapping[str, str]) -> str:
    """What `outrider --help` prints."""
    width = max(map(len, summaries))
    rows = [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]
    return "\n".join(
        [
            "usage: outrider COMMAND [options]",
            "",
            "Lossless speculative decoding across processes.",
            "",
            *rows,
            "",
            "`outrider COMMAND --help` lists the options of a command.",
            "",
        ]
    )


def command_help(
    usage: str,
    summary: str,
    own: Mapping[str, tuple[str, str]],
    tables: Container[str],
    not_shown: Callable[[str], bool] = lambda key: False,
) -> str:
    """What `outrider COMMAND --help` prints: its own flags, then the options of its tables, with defaults; those whose
    keys are `not_shown` left out."""
    lines = [f"usage: {usage}", "", summary, ""]
    lines += [_row(f"{flag} {metavar}".rstrip(), text) for flag, (metavar, text) in own.items() if text]
    if "speculative" in tables:
        lines += [_row(flag, f"stands for {_settings(sets)}") for flag, sets in FLAG_SETS.items()]
    for section, options in sections():
        flagged = [option for option in options if option.flags and not not_shown(option.key)]
        if section.partition(".")[0] in tables and flagged:
            lines += ["", f"{TITLES[section]}:", *(_option_row(option) for option in flagged)]
    return "\n".join([*lines, ""])


def _settings(settings: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{key.removeprefix('speculative.')} = {value}" for key, value in settings)


def _option_row(option: Option) -> str:
    default = default_text(option)
    shown = f" [{default}]" if default and not (option.switch and option.default is False) else ""
    return _row(f"{_flags(option)} {option.metavar}".rstrip(), option.help + shown)


def _flags(option: Option) -> str:
    """The short flag and the first long one; a switch that is on shows that it has a negative."""
    short = next((flag for flag in option.flags if not flag.startswith("--")), None)
    long = next((flag for flag in option.flags if flag.startswith("--")), None)
    if option.switch and option.default is True and long:
        long = f"--[no-]{long[2:]}"
    return ", ".join(flag for flag in (short, long) if flag)


def _row(left: str, right: str) -> str:
    gap = "\n" + " " * (_INDENT + 2) if len(left) > _INDENT - 2 else " " * (_INDENT - len(left))
    return f"  {left}{gap}{right}"
