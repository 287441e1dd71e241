"""GBNF (llama.cpp's grammar notation) to the Lark dialect of `llguidance`, character by character.

`llguidance` brings a converter, but that makes tokens of literals and of rules, each of which matches as long as it can,
so that `[a-z]+ "ing"` never accepts "walking". The converter's parser is used here, and every terminal is cut down to
one character, for which there is no longest match: the language is llama.cpp's. That costs time: a mask takes many
times as long as that of a JSON schema.

What the parser cannot read is refused, and so is what would be read differently: set operators inside a class.
"""

from __future__ import annotations

import re
from typing import Any

from outrider.errors import RequestError

_CODE_POINT = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_CHARACTER = re.compile(r"\\x..|\\.|.", re.DOTALL)
_SET_OPERATOR = re.compile("&&|--|~~")  # of the regular expressions that classes become
_ANY = r"[\s\S]"
_EMPTY = '""'


def gbnf_to_lark(text: str) -> str:
    """The grammar `text` (start rule `root`) in Lark. Raises RequestError if it cannot be converted."""
    from llguidance import gbnf_to_lark as library

    try:
        rules = _parser(library).parse(_CODE_POINT.sub(_plain, text))
        names = {name: f"rule{i}" for i, name in enumerate(rules)}  # in capitals they would be tokens
        lines = [f"{names[name]}: {_lark(rule.alternatives, names, library)}" for name, rule in rules.items()]
    except RequestError:
        raise
    except Exception as error:  # the parser raises what it likes
        raise RequestError(f"grammar: not convertible: {error}") from error
    if "root" not in names:
        raise RequestError("grammar: there is no rule `root`")
    return "\n".join([f"start: {names['root']}", *lines])


def _parser(library: Any) -> Any:
    """The library's collects comments character by character, at a cost that grows with their square; this one does not."""

    class Parser(library.GrammarParser):  # type: ignore[misc]
        curr_comment = property(lambda self: "", lambda self, comment: None)

    return Parser()


def _plain(match: re.Match[str]) -> str:
    """Escapes of code points from 128 on become the character; the converter mangles them."""
    digits = next((group for group in match.groups() if group), "0")
    code = int(digits, 16)
    if code >= 0x110000 or 0xD800 <= code < 0xE000:
        raise RequestError(f"grammar: {match[0]} is no character")
    if code >= 128:
        return chr(code)
    return match[0] if digits == "0" else f"\\x{code:02x}"


def _lark(node: Any, names: dict[str, str], library: Any) -> str:
    """A syntax tree in Lark, with a bracket around all that could be read in two ways."""
    match node:
        case library.LiteralNode():
            return f"({' '.join(map(_literal, _CHARACTER.findall(node.value))) or _EMPTY})"
        case library.RegexNode():
            return f"/{_class(node.rx)}/"
        case library.RuleRefNode():
            if node.name not in names:
                raise RequestError(f"grammar: rule `{node.name}` is not defined")
            return names[node.name]
        case library.RepetitionNode():
            most = "" if node.max_times is None else node.max_times
            return f"({_lark(node.node, names, library)}){{{node.min_times},{most}}}"
        case library.SequenceNode():
            return " ".join(_lark(child, names, library) for child in node.nodes) or _EMPTY
        case library.AlternativeNode():
            return f"({' | '.join(_lark(child, names, library) for child in node.alternatives)})"
    raise RequestError(f"grammar: {type(node).__name__} cannot be converted")


def _literal(character: str) -> str:
    """One character, in the notation of GBNF, as a literal of Lark."""
    plain = {"\n": r"\n", "\r": r"\r", r"\[": "[", r"\]": "]"}.get(character, character)
    return f'"{plain}"'


def _class(expression: str) -> str:
    """A character class, or the dot, as a regular expression."""
    if expression == ".":
        return _ANY
    if operator := _SET_OPERATOR.search(expression):
        raise RequestError(f"grammar: {operator[0]!r} in the class {expression} cannot be converted")
    return expression.replace("\n", r"\n").replace("\r", r"\r")
