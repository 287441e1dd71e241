"""The grammar of a session: compiled once, its state derived from the committed text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from outrider.engine.base import Tokenizer
from outrider.errors import RequestError
from outrider.types import Grammar

if TYPE_CHECKING:
    from outrider.decoding.grammar import GrammarState, TokenTable


class Grammars:
    """Compiles the grammars of one model. Its table of tokens takes a second, and is made when the first one comes."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, eog: Collection[int]) -> None:
        self._tokenizer, self._n_vocab, self._eog = tokenizer, n_vocab, eog
        self._table: TokenTable | None = None

    def compile(self, grammar: Grammar) -> Constrained:
        """Raises RequestError for a grammar that is wrong or cannot be converted."""
        from outrider.decoding.grammar import TokenTable, compile_grammar

        if not self._eog:
            raise RequestError("grammar: this model has no token that ends a text")
        if self._table is None:
            self._table = TokenTable([self._tokenizer.piece(token) for token in range(self._n_vocab)], self._eog)
        return Constrained(compile_grammar(self._table, grammar.kind, grammar.text))


class Constrained:
    """One session's grammar.

    What it remembers is only where it was last: the state is always that of the text it is asked about, whatever was
    accepted, rejected, cut or asked for again in between.
    """

    def __init__(self, start: GrammarState) -> None:
        self._last = start

    def after(self, generated: Sequence[int]) -> GrammarState:
        """The state after the generated tokens. Raises EngineError for a text that the grammar does not allow, and
        RequestError for one that it ends with."""
        self._last = self._last.follow(generated)
        if self._last.ended:
            raise RequestError("grammar: the text is complete, nothing can follow it")
        return self._last
