"""`docs/protocol.md` says every message and every field, and its tables are those of the definitions."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from outrider.wire import messages as m
from outrider.wire.transport.options import options_of
from tests.wire_samples import MESSAGE_TYPES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "protocol.md").read_text()


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protocol_tables", DOCS / "protocol_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_up_to_date() -> None:
    assert generator().rendered(PAGE) == PAGE, "run python docs/protocol_tables.py"


@pytest.mark.parametrize("cls", MESSAGE_TYPES, ids=lambda cls: cls.__name__)
def test_every_message_and_field_is_there(cls: type[m.Message]) -> None:
    assert f"### {cls.__name__}\n" in PAGE
    assert f"`[{cls.__struct_config__.tag}, {', '.join(cls.__struct_fields__)}]`" in PAGE
    for name in cls.__struct_fields__:
        assert f"| `{name}` |" in PAGE
        assert generator().meaning(cls, name)


@pytest.mark.parametrize("cls", MESSAGE_TYPES, ids=lambda cls: cls.__name__)
def test_every_message_says_who_sends_it(cls: type[m.Message]) -> None:
    assert cls.__doc__ is not None
    first = cls.__doc__.split(".")[0]
    assert "→" in first or "both ways" in first


def test_every_table_is_filled() -> None:
    for name, table in generator().TABLES.items():
        assert f"<!-- table: {name} -->\n\n{table()}" in PAGE


def test_every_option_is_there() -> None:
    for kind in (5, 6):  # DEALER, ROUTER
        assert all(f"`{option.name}` | {option.value} |" in PAGE for option in options_of(kind))


def test_the_example_is_true() -> None:
    from outrider.wire.codec import encode

    hexed = encode(m.Accept(1, 2**32, 3, 4, 5, 6, True)).hex()
    line = next(line for line in PAGE.splitlines() if line.startswith("98  11"))
    assert line.replace(" ", "") == hexed
