"""Writes the tables of `protocol.md` from the definitions, whose comments they repeat.

    python docs/protocol_tables.py          write the tables anew (a test fails while they differ)

A table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import get_args

import msgspec
import zmq
from msgspec import inspect as mi

PAGE = Path(__file__).with_name("protocol.md")
sys.path.insert(0, str(PAGE.parents[1]))

from outrider import types  # noqa: E402
from outrider.wire import codec, link_state, messages  # noqa: E402
from outrider.wire.transport import options  # noqa: E402

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_RULE = re.compile(r"# --- (.*?) -+$", re.MULTILINE)
_POWERS = {2**n: f"2^{n}" for n in (16, 20, 22, 31, 32)}


def rendered(page: str) -> str:
    """The page with all its tables written anew."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}", page)


# --- what the definitions say ------------------------------------------------------------------------------------


@cache
def comments(module: ModuleType) -> dict[tuple[str, str], str]:
    """(class, field) -> the comment behind the field and on the lines below it, or above it after `#:`."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[node.name, field.target.id] = " ".join(_comment(lines, field))
    return found


def _comment(lines: list[str], field: ast.AnnAssign) -> Iterator[str]:
    above = lines[field.lineno - 2].strip()
    if above.startswith("#:"):
        yield above.removeprefix("#:").strip()
    assert field.end_lineno is not None
    assert field.end_col_offset is not None
    behind = lines[field.end_lineno - 1].encode()[field.end_col_offset :].decode()
    if "#" in behind:
        yield behind.partition("#")[2].strip()
        for line in lines[field.end_lineno :]:
            if not line.strip().startswith("# "):
                break
            yield line.strip().removeprefix("# ")


def meaning(cls: type[msgspec.Struct], field: str) -> str:
    """The comment of a field, wherever in the bases of `cls` it is defined."""
    for base in cls.__mro__:
        text = comments(sys.modules[base.__module__]).get((base.__name__, field)) if base is not object else None
        if text:
            return text
    raise LookupError(f"{cls.__name__}.{field} has no comment")


def kind(info: mi.Type) -> str:
    """A type and its bounds in a few words."""
    match info:
        case mi.IntType():
            return _int(info)
        case mi.FloatType(ge=ge, gt=gt, le=le):
            low = f"{gt:g} <" if gt is not None else f"{ge:g} ≤" if ge is not None else ""
            return f"float, {low} x ≤ {le:g}" if le is not None else "float"
        case mi.StrType(max_length=most, pattern=pattern):
            letters = ", letters, digits, `_ . -`" if pattern else ""
            return f"text, at most {_number(most or 0)}{letters}"
        case mi.BytesType(max_length=most):
            return f"bytes, at most {_number(most or 0)}"
        case mi.ListType(item_type=item, min_length=least, max_length=most):
            return f"array of {f'{least} to ' if least else 'at most '}{_number(most or 0)}: {kind(item)}"
        case mi.LiteralType(values=values):
            return "one of " + ", ".join(f"`{value}`" for value in sorted(map(str, values)))
        case mi.UnionType(types=kinds):
            return " or ".join(kind(one) for one in kinds)
        case mi.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case mi.BoolType():
            return "bool"
        case mi.NoneType():
            return "nil"
    raise NotImplementedError(info)


def _int(info: mi.IntType) -> str:
    bounds = (info.ge, info.lt)
    named = {(0, 2**16): "u16", (0, 2**32): "u32", (0, None): "u64", (0, 2**31): "token id or count, below 2^31"}
    if bounds in named and info.le is None:
        return named[bounds]
    most = info.le if info.le is not None else (info.lt or 0) - 1
    return f"int, {info.ge} to {_number(most + 1) + ' - 1' if most + 1 in _POWERS else _number(most)}"


def _number(n: int) -> str:
    return _POWERS.get(n, f"{n:,}")


# --- the tables --------------------------------------------------------------------------------------------------


def own_fields(cls: type[msgspec.Struct]) -> list[str]:
    """The fields that its bases do not have."""
    inherited = {name for base in cls.__bases__ for name in getattr(base, "__struct_fields__", ())}
    return [name for name in cls.__struct_fields__ if name not in inherited]


def struct(cls: type[msgspec.Struct]) -> str:
    """Heading, words and table of one struct."""
    tag = cls.__struct_config__.tag
    lines = [f"### {cls.__name__}", "", inspect.cleandoc(cls.__doc__ or ""), ""]
    if tag is not None:
        lines += [f"`[{tag}, {', '.join(cls.__struct_fields__)}]`", ""]
    info = mi.type_info(cls)
    assert isinstance(info, mi.StructType)
    kinds = {field.name: kind(field.type) for field in info.fields}
    if own_fields(cls):
        lines += ["| field | type | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {kinds[name]} | {meaning(cls, name)} |" for name in own_fields(cls)]
        lines.append("")
    return "\n".join(lines)


def message_table() -> str:
    """All messages under the headings of `messages.py`, each base before the first message that has it."""
    parts: list[str] = []
    seen: set[type] = {msgspec.Struct, messages.Message}
    source = inspect.getsource(messages)
    rules = [(match.start(), match[1]) for match in _RULE.finditer(source)]
    for cls in get_args(messages.AnyMessage):
        while rules and rules[0][0] < source.index(f"class {cls.__name__}("):
            parts.append(f"## {rules.pop(0)[1].capitalize()}\n")
        for base in reversed(cls.__mro__[:-1]):
            if issubclass(base, messages.Message) and base not in seen:
                seen.add(base)
                parts.append(struct(base))
    return "\n".join(parts)


def value_table() -> str:
    structs = [
        cls
        for _, cls in inspect.getmembers(types, inspect.isclass)
        if issubclass(cls, types.Value) and cls is not types.Value
    ]
    return "\n".join(struct(cls) for cls in structs)


def code_table() -> str:
    source = inspect.getsource(messages)
    rows = re.findall(r'^    "(\w+)",  # (.*)$', source[source.index("FailureCode") :], re.MULTILINE)
    assert [code for code, _ in rows] == list(get_args(messages.FailureCode))
    return "\n".join(["| code | meaning |", "|---|---|", *(f"| `{code}` | {text} |" for code, text in rows), ""])


def limit_table() -> str:
    rows = {
        "version of this protocol": f"{messages.PROTOCOL_VERSION}",
        "bytes of a message": f"{codec.MAX_MESSAGE_BYTES:,}",
        "tokens of a message, and of a context": f"{types.MAX_TOKENS:,}",
        "tokens of a draft": f"{messages.MAX_DRAFT:,}",
        "arrays in a message": f"{codec.MAX_ARRAYS:,}",
        "frames of a message (behind the identity)": "1",
        "messages queued per peer": f"{options.HWM:,}",
        "heartbeats that may be missing before a worker greets again": f"{link_state.MAX_SILENT_BEATS}",
    }
    return "\n".join(["| what | limit |", "|---|---|", *(f"| {what} | {limit} |" for what, limit in rows.items()), ""])


def option_table() -> str:
    router, dealer = (options.options_of(kind) for kind in (zmq.ROUTER, zmq.DEALER))
    both = [option for option in router if option in dealer]
    groups = {
        "both": both,
        "coordinator": [option for option in router if option not in both],
        "worker, client": [option for option in dealer if option not in both],
    }
    rows = [f"| {who} | `{o.name}` | {o.value} | {o.why} |" for who, group in groups.items() for o in group]
    words = inspect.cleandoc(options.__doc__ or "").partition("\n\n")[2]
    return "\n".join([words, "", "| socket | option | value | why |", "|---|---|---|---|", *rows, ""])


TABLES = {
    "limits": limit_table,
    "messages": message_table,
    "values": value_table,
    "codes": code_table,
    "options": option_table,
}

if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
