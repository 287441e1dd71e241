"""`--help`, from the table of options."""

from __future__ import annotations

from collections.abc import Container, Mapping

from outrider.config.options import Option
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


def command_help(usage: str, summary: str, own: Mapping[str, tuple[str, str]], tables: Container[str]) -> str:
    """What `outrider COMMAND --help` prints: its own flags, then the options of its tables, with defaults."""
    lines = [f"usage: {usage}", "", summary, ""]
    lines += [_row(f"{flag} {metavar}".rstrip(), text) for flag, (metavar, text) in own.items() if text]
    for section, options in sections():
        flagged = [option for option in options if option.flags]
        if section.partition(".")[0] in tables and flagged:
            lines += ["", f"{TITLES[section]}:", *(_option_row(option) for option in flagged)]
    return "\n".join([*lines, ""])


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
