"""A configuration as text: the merged TOML of `--print-config` and the table in `docs/configuration.md`."""

from __future__ import annotations

from itertools import groupby

from outrider.config.merge import Merged, get
from outrider.config.options import FLAG_SETS, IMPLIED, OPTIONS, Option
from outrider.config.refused import REFUSED_FLAGS
from outrider.config.values import to_toml

TITLES = {
    "target": "target worker",
    "draft": "draft worker",
    "speculative": "speculation",
    "speculative.ngram_simple": "speculation: ngram-simple",
    "speculative.ngram_map_k": "speculation: ngram-map-k",
    "speculative.ngram_map_k4v": "speculation: ngram-map-k4v",
    "speculative.ngram_mod": "speculation: ngram-mod",
    "speculative.ngram_suffix": "speculation: ngram-suffix",
    "speculative.ngram_cache": "speculation: ngram-cache",
    "sampling": "sampling",
    "generation": "prompt and output",
    "coordinator": "coordinator and connections",
    "server": "HTTP front (`outrider serve`)",
    "client": "client of a running coordinator",
    "log": "log",
}


def sections(options: tuple[Option, ...] = OPTIONS) -> list[tuple[str, list[Option]]]:
    """The options by table, in the order of the table of options."""
    return [(section, list(group)) for section, group in groupby(options, key=lambda option: option.section)]


def merged_toml(merged: Merged) -> str:
    """TOML of every key, with its origin as a comment; reading it back gives the same configuration."""
    blocks = []
    for section, options in sections():
        rows = [_toml_row(option, merged) for option in options]
        width = min(48, max(len(left) for left, _ in rows))
        blocks.append("\n".join([f"[{section}]", *(f"{left:<{width}}  # {origin}" for left, origin in rows)]))
    return "\n\n".join(blocks) + "\n"


def _toml_row(option: Option, merged: Merged) -> tuple[str, str]:
    name, value = option.key.rpartition(".")[2], get(merged.config, option.key)
    left = f"# {name}: not given" if value is None else f"{name} = {to_toml(value)}"
    return left, _one_line(str(merged.origins[option.key]))


def _one_line(text: str) -> str:
    """`text` without the control characters that a TOML comment may not hold."""
    return "".join(c if c.isprintable() else " " for c in text)


def default_text(option: Option) -> str:
    """The default in words, for help and docs; nothing where nothing is set."""
    if option.key == "speculative.types":
        return "draft-simple with -md (auto: and ngram-suffix), else none"
    for (key, value), (implied, default) in IMPLIED.items():
        if option.key == implied:
            return f"{option.default}, or {default} with {key} = {value}"
    if option.follows:
        return f"that of {option.follows}"
    if option.default in (None, "", []):
        return ""
    if option.key.endswith("n_gpu_layers"):
        return "auto"
    return option.default if isinstance(option.default, str) else to_toml(option.default)


def reference() -> str:
    """`docs/configuration.md`."""
    parts = [_HEAD]
    for section, options in sections():
        parts.append(f"\n## `[{section}]` {TITLES[section]}\n\n{_TABLE_HEAD}")
        parts.extend(_doc_row(option) for option in options)
    parts.append(_SETS_HEAD)
    parts.extend(f"| `{flag}` | {_set_text(settings)} |" for flag, settings in FLAG_SETS.items())
    parts.append(_REFUSED_HEAD)
    parts.extend(f"| {_code(flags)} | {reason} |" for flags, reason in _refused())
    return "\n".join(parts) + "\n"


def _doc_row(option: Option) -> str:
    name = option.key.rpartition(".")[2]
    default = default_text(option)
    default = f"`{default}`" if default and not option.follows and option.key != "speculative.types" else default
    cells = (f"`{name}`", _code(_all_flags(option)), f"`{option.env}`", _cell(option.allowed), default, option.help)
    return f"| {' | '.join(cells)} |"


def _all_flags(option: Option) -> list[str]:
    negative = [f"--no-{flag[2:]}" for flag in option.flags if option.switch and flag.startswith("--")]
    return [*option.flags, *negative]


def _code(names: list[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _set_text(settings: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"`{key}` = {text}" for key, text in settings)


def _refused() -> list[tuple[list[str], str]]:
    """Refused flags by reason, in their order."""
    by_reason: dict[str, list[str]] = {}
    for flag, reason in REFUSED_FLAGS.items():
        by_reason.setdefault(reason, []).append(flag)
    return [(flags, reason) for reason, flags in by_reason.items()]


_TABLE_HEAD = "| key | flags | environment | allowed | default | meaning |\n|---|---|---|---|---|---|"

_HEAD = """# Configuration

Every option has one key. It can be set by a flag, by an environment variable, or in a TOML file; the command line is
stronger than the environment, the environment than the file, the file than the default. `--print-config` shows the
merged result and where each value comes from, as TOML that can be read again.

- `--config FILE` names the file (or the variable `OUTRIDER_CONFIG`). Relative paths in a file count from its folder.
- Unknown keys, flags and `OUTRIDER_…` variables are errors; the message names the nearest known one.
- An empty list that is given is an empty list, not the default.
- A flag that is given more than once counts the last time, with a warning; `--spec-type`, `--stop` and `--logit-bias`
  add up.
- A switch `--X` has a negative `--no-X`; in the environment it is `true` or `false`.
- Lists are comma lists in flags and variables (`stop` is one text), arrays in a file.

This page is generated from the table of options: `python -m outrider.config > docs/configuration.md`."""

_SETS_HEAD = """
## Flags that set several keys

| flag | sets |
|---|---|"""

_REFUSED_HEAD = """
## Flags that are known and refused

| flags | why |
|---|---|"""
