"""Grammars: which tokens may come next. JSON schemas and GBNF, by the library `llguidance` (extra `grammar`).

A `GrammarState` is a value: the grammar together with the text so far. `after` makes the state of a longer text and
leaves the old one usable, so a rejected draft token, a text that was cut or a round that is repeated needs no clean-up.
Behind the states of one text stands one matcher, which moves to the state that is asked about: forwards by consuming
tokens, backwards by the library's rollback. States form a tree; the matcher is a cursor in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.decoding.gbnf import gbnf_to_lark
from outrider.errors import EngineError, RequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from outrider.decoding.sampling import Mask
    from outrider.types import GrammarKind

#: All tokenisations of an allowed text are allowed, not only the usual one.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
#: At most as much white space as llama.cpp's grammars of JSON allow; without a bound a model can go on for ever.
_WHITESPACE = r"( |\n{1,2}[ \t]{0,20})?"


class TokenTable:
    """A vocabulary as the library wants it. Making it takes about a second for 100,000 tokens: once per model.

    pieces: the bytes that each id adds to a text; empty for control tokens, which no grammar allows. eog: ids that end a
    text, allowed where the grammar is satisfied. Raises RequestError if the library is not installed.
    """

    def __init__(self, pieces: Sequence[bytes], eog: Collection[int]) -> None:
        library = _library()
        self.n_vocab = len(pieces)
        self.eog = np.array(sorted(eog), np.int64)
        wrapper = library.TokenizerWrapper(_Pieces(pieces, frozenset(eog)))
        self.tokenizer = library.LLTokenizer(wrapper, eos_token=self.eog.tolist())


class _Pieces:
    """What `TokenizerWrapper` looks at. Tokens whose bytes begin with 0xff are never part of a text."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes], eog: frozenset[int]) -> None:
        self.special_token_ids = [i for i, piece in enumerate(pieces) if not piece or i in eog]
        self.tokens = list(pieces)
        for i in self.special_token_ids:
            self.tokens[i] = b"\xff<%d>" % i
        self.eos_token_id = min(eog)

    def __call__(self, text: bytes) -> list[int]:
        return []  # asked only for the usual tokenisation of forced text, which is switched off


def compile_grammar(table: TokenTable, kind: GrammarKind, text: str) -> GrammarState:
    """The state of an empty text under the grammar `text`.

    Raises RequestError where the grammar is wrong, uses what the library does not support, or allows no text.
    """
    library = _library()
    lark = _schema_to_lark(text) if kind == "json_schema" else gbnf_to_lark(text)
    limits = library.LLParserLimits(verbose_errors=False)
    matcher = library.LLMatcher(table.tokenizer, _OPTIONS + lark, log_level=0, limits=limits)
    if matcher.is_error():
        raise RequestError(f"grammar: {_first_line(matcher)}")
    state = _Cursor(table, matcher).at
    try:
        usable = not state.ended and state.mask().any()
    except EngineError as error:
        raise RequestError(f"{error}: it allows no text, or is too complex") from error
    if not usable:
        raise RequestError("grammar: it allows no text, or only the empty one")
    return state


class GrammarState:
    """A grammar after some text. Made by `compile_grammar`, `after` and `follow`; a `verify.Constraint`."""

    __slots__ = ("_cursor", "depth", "parent", "token")

    def __init__(self, cursor: _Cursor, parent: GrammarState | None, token: int) -> None:
        self._cursor = cursor
        self.parent = parent
        self.token = token  # the last one of the text; -1 at the root
        self.depth: int = parent.depth + 1 if parent else 0  # tokens of the text

    @property
    def ended(self) -> bool:
        """Is the text complete, with no possible continuation?"""
        return self._cursor.ended(self)

    def mask(self) -> Mask:
        """bool [n_vocab]: the tokens allowed next; end-of-generation tokens where the text may end here."""
        return self._cursor.mask(self)

    def after(self, token: int) -> GrammarState:
        """The state once `token` is added. Raises EngineError if the grammar does not allow it, or gives up."""
        state = GrammarState(self._cursor, self, token)
        self._cursor.move(state)
        return state

    def follow(self, tokens: Sequence[int]) -> GrammarState:
        """The state after `tokens`, the whole text; only what differs from this state's text is read again."""
        path = self._path()
        n_same = next((i for i, (a, b) in enumerate(zip(path, tokens, strict=False)) if a.token != b), None)
        n_same = min(len(path), len(tokens)) if n_same is None else n_same
        state = path[n_same - 1] if n_same else self._cursor.root
        for token in tokens[n_same:]:
            state = state.after(token)
        return state

    def valid_len(self, draft: Sequence[int]) -> int:
        """How many tokens of `draft` the grammar allows in a row; the rest need not be verified."""
        return self._cursor.valid_len(self, draft)

    def _path(self) -> list[GrammarState]:
        """The states from the first token's to this one."""
        states = []
        state = self
        while state.parent is not None:
            states.append(state)
            state = state.parent
        return states[::-1]


class _Cursor:
    """The matcher, and the state at which it stands."""

    def __init__(self, table: TokenTable, matcher: Any) -> None:
        self._table = table
        self._fresh = matcher.deep_copy()
        self._matcher = matcher
        self._mask: Mask | None = None  # of the state `at`
        self.root = self.at = GrammarState(self, None, -1)

    def move(self, state: GrammarState) -> None:
        """Stand at `state`. Raises EngineError, standing at the root, if a token on the way is refused."""
        if state is self.at:
            return
        n_back, forward = _way(self.at, state)
        self._mask = None
        if n_back and self._matcher.rollback(n_back):
            # The library keeps the last mask, and may take it for that of another text once that is as far. A mask of what
            # both have in common cannot be wrong for either.
            self._matcher.compute_bitmask()
        elif n_back:
            self._restart()
            forward = [step.token for step in state._path()]
        self._matcher.consume_tokens(forward)
        self._check()
        self.at = state

    def mask(self, state: GrammarState) -> Mask:
        self.move(state)
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            self._mask = np.unpackbits(bits, count=self._table.n_vocab, bitorder="little").view(np.bool_)
            self._mask.flags.writeable = False
        return self._mask

    def ended(self, state: GrammarState) -> bool:
        self.move(state)
        if self._matcher.is_stopped():
            return True
        if not self._matcher.is_accepting():
            return False
        mask = self.mask(state)
        return int(np.count_nonzero(mask)) == int(np.count_nonzero(mask[self._table.eog]))

    def valid_len(self, state: GrammarState, draft: Sequence[int]) -> int:
        self.move(state)
        known = next((i for i, token in enumerate(draft) if token >= self._table.n_vocab), len(draft))
        n_valid = int(self._matcher.validate_tokens(list(draft[:known])))
        self._check()
        return n_valid

    def _check(self) -> None:
        """A matcher that met an error never leaves it: start afresh, and say so."""
        if self._matcher.is_error():
            reason = _first_line(self._matcher)
            self._restart()
            raise EngineError(f"grammar: {reason}")

    def _restart(self) -> None:
        self._mask = None
        self._matcher = self._fresh.deep_copy()
        self.at = self.root


def _way(start: GrammarState, goal: GrammarState) -> tuple[int, list[int]]:
    """From one state to another of the same tree: how many tokens to take back, and which to add then."""
    n_back, forward = 0, []
    a, b = start, goal
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a, n_back = a.parent, n_back + 1
        else:
            assert b.parent is not None
            forward.append(b.token)
            b = b.parent
    return n_back, forward[::-1]


def _schema_to_lark(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"JSON schema: not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise RequestError(f"JSON schema: an object is needed, not {type(schema).__name__}")
    own = schema.get("x-guidance", {})
    if not isinstance(own, dict):
        raise RequestError(f"JSON schema: x-guidance: an object is needed, not {type(own).__name__}")
    options = {"whitespace_pattern": _WHITESPACE} | own
    return f"start: %json {json.dumps(schema | {'x-guidance': options})}"


def _first_line(matcher: Any) -> str:
    """The reason for which a matcher gave up, without its dump."""
    return str(matcher.get_error()).strip().split("\n", 1)[0]


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise RequestError("grammar: the package llguidance is missing (install the extra `grammar`)") from error
    return llguidance
