"""Settings from a TOML file and from the environment. Unknown names are errors that name the nearest known one."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from outrider.config.merge import Origin, Setting
from outrider.config.options import BY_ENV, BY_KEY, ENV_PREFIX
from outrider.config.refused import REFUSED_KEYS
from outrider.errors import ConfigError

#: Variables with our prefix that are no keys: the file itself, and where tests and benchmarks find models.
OTHER_VARIABLES = (ENV_PREFIX + "CONFIG", ENV_PREFIX + "MODELS")

TABLES = frozenset(key[:end] for key in BY_KEY for end in range(len(key)) if key[end] == ".")


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean …?`, or nothing where no known name is near."""
    near = get_close_matches(name, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def from_file(path: Path) -> list[Setting]:
    """The settings of one TOML file. Raises ConfigError naming the file."""
    try:
        text = path.read_bytes().decode()
        tree = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration file {path}: byte {error.start} is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"configuration file {path}: {' '.join(str(error).split())}") from None
    return from_tree(tree, Origin("file", str(path)), path.parent)


def from_tree(tree: Mapping[str, Any], origin: Origin, folder: Path) -> list[Setting]:
    """The settings of nested tables with values of their own types."""
    return [Setting(key, value, origin, folder, typed=True) for key, value in _leaves(tree, "", origin)]


def _leaves(tree: Mapping[str, Any], prefix: str, origin: Origin) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = prefix + name
        if key in BY_KEY:
            yield key, value
        elif key in TABLES and isinstance(value, Mapping):
            yield from _leaves(value, key + ".", origin)
        else:
            raise ConfigError(f"{origin}: {_why_unknown(key)}")


def _why_unknown(key: str) -> str:
    if key in REFUSED_KEYS:
        return f"{key} is refused: {REFUSED_KEYS[key]}"
    if key in TABLES:
        return f"{key} must be a table"
    return f"unknown key {key}" + (_elsewhere(key) or nearest(key, {*BY_KEY, *TABLES}))


def _elsewhere(key: str) -> str:
    """Keys of the same last name in other tables."""
    name = "." + key.rpartition(".")[2]
    others = [known for known in BY_KEY if known.endswith(name)]
    return f": did you mean {' or '.join(others)}?" if others else ""


def from_environment(environ: Mapping[str, str]) -> list[Setting]:
    """The settings of all `OUTRIDER_…` variables; one that is no option is an error, since it would be ignored."""
    names = sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in OTHER_VARIABLES)
    for name in names:
        if name not in BY_ENV:
            raise ConfigError(f"environment variable {name} {_why_unknown_variable(name)}")
    return [Setting(BY_ENV[name].key, environ[name], Origin("environment", name), Path()) for name in names]


def _why_unknown_variable(name: str) -> str:
    retired = {ENV_PREFIX + key.replace(".", "_").upper(): reason for key, reason in REFUSED_KEYS.items()}
    if name in retired:
        return f"is refused: {retired[name]}"
    return "is no option" + (nearest(name, {*BY_ENV, *OTHER_VARIABLES}) or "; unset it")
