"""What one request may ask of a coordinator that runs: its own sampling, generation and speculation, within the limits.

A client sends only what its user asked for, as JSON of the three tables; the rest is the coordinator's own
configuration. A request may lower the length of drafts and choose among the types that are on; it cannot raise or add.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from outrider.config.load import new_seed
from outrider.config.merge import Merged, Origin, get, merge
from outrider.config.options import OPTIONS
from outrider.config.schema import Config
from outrider.config.sources import from_tree
from outrider.errors import ConfigError, RequestError

TABLES = ("sampling", "generation", "speculative")
#: Keys that a request sends in fields of its own, or that concern only the printing or the files of a host.
_FILES = ("file", "grammar_file", "json_schema_file", "prediction_file")
_NOT_SENT = frozenset(f"generation.{name}" for name in ("prompt", "prompt_tokens", "json", "explain", *_FILES))
#: Lengths that the running coordinator caps: key -> 0 counts as "do not draft".
_CAPPED = (
    "n_max",
    *("ngram_simple.size_m", "ngram_map_k.size_m", "ngram_map_k4v.size_m", "ngram_mod.n_max", "ngram_suffix.n_max"),
)
_HOST_ONLY = (
    "speculative.ngram_cache.",
    "speculative.ngram_mod.pool",
    "speculative.schedule",
    "speculative.n_branches",
    "speculative.synth_",
)
_GRAMMARS = ("generation.grammar", "generation.json_schema")


def request_options(merged: Merged) -> str:
    """JSON of the keys that the user set, for the `options` of a Generate message."""
    tree: dict[str, Any] = {}
    for option in OPTIONS:
        if option.key.partition(".")[0] in TABLES and merged.origins[option.key].explicit and _sent(option.key):
            _put(tree, option.key, msgspec.to_builtins(get(merged.config, option.key)))
    return json.dumps(tree)


def _sent(key: str) -> bool:
    return key not in _NOT_SENT and not key.startswith(_HOST_ONLY)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *tables, name = key.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
    tree[name] = value


def apply_request(base: Config, options: str, random_seed: Callable[[], int] = new_seed) -> Config:
    """`base` with what a request asks for, capped. Raises RequestError naming the key."""
    try:
        tree = json.loads(options or "{}")
        if not isinstance(tree, Mapping) or not set(tree) <= set(TABLES):
            raise ConfigError(f"options must be an object with the tables {', '.join(TABLES)}")
        asked = merge(from_tree(tree, Origin("request"), Path()), random_seed)
    except (ValueError, RecursionError, ConfigError) as error:
        raise RequestError(f"request: {error}") from None
    return _within(base, asked)


def _within(base: Config, asked: Merged) -> Config:
    keys = [key for key, origin in asked.origins.items() if origin.explicit]
    refused = next((key for key in keys if not _sent(key)), None)
    if refused:
        raise RequestError(f"request: {refused} can only be set where the coordinator runs")
    changes = {key: get(asked.config, key) for key in keys}
    for name in _CAPPED:
        key = f"speculative.{name}"
        if key in changes:
            changes[key] = min(changes[key], get(base, key))
    if any(changes.get(key) for key in _GRAMMARS):
        if all(changes.get(key) for key in _GRAMMARS):
            raise RequestError(f"request: one grammar at a time: {' and '.join(_GRAMMARS)} are both given")
        changes = dict.fromkeys(_GRAMMARS, "") | changes
    _check_types(base, changes.get("speculative.types", []))
    return _changed(base, changes)


def _check_types(base: Config, types: list[str]) -> None:
    missing = [name for name in types if name not in base.speculative.types]
    if missing:
        on = ", ".join(base.speculative.types) or "none"
        raise RequestError(f"request: speculation type {missing[0]} is not on here; the types are {on}")


def _changed(base: Config, changes: Mapping[str, Any]) -> Config:
    tree = msgspec.to_builtins(base)
    for key, value in changes.items():
        _put(tree, key, msgspec.to_builtins(value))
    return msgspec.convert(tree, Config)
