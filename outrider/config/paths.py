"""File names in a configuration: relative ones count from the file that names them (flags: from the current folder)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from outrider.engine.options import FILELESS
from outrider.errors import ConfigError

_PACKAGE = "package:"
#: Values of path keys that are no paths: nothing, stdin, and what engines without files are told in place of one.
_NOT_PATHS = ("", "-")


def absolute(path: str, folder: Path) -> str:
    """`path` from `folder` on; `~` is the home folder, `package:NAME/FILE` a file of an installed package."""
    if path in _NOT_PATHS or path.startswith(FILELESS):
        return path
    if path.startswith(_PACKAGE):
        return _in_package(path.removeprefix(_PACKAGE))
    return str(_joined(folder.resolve(), Path(path).expanduser()))


def _joined(folder: Path, path: Path) -> Path:
    """`folder`, which has no symbolic links, with leading `..` of `path` taken off it: short names in messages."""
    while path.parts[:1] == ("..",):
        folder, path = folder.parent, Path(*path.parts[1:])
    return folder / path


def _in_package(path: str) -> str:
    """The package is looked up, not imported."""
    name, _, file = path.partition("/")
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations or not file:
        raise ConfigError(f"{_PACKAGE}{path}: no installed package {name!r} with files; install it or give a path")
    return str(Path(spec.submodule_search_locations[0]) / file)
