"""The tokenizer of a model that llama.cpp has loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.engine.chat_template import ChatRenderer
from outrider.engine.vocab_facts import vocab_facts
from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.engine.llama_cpp import NativeVocab


class LlamaTokenizer(ChatRenderer):
    """Keeps `outrider.engine.base.Tokenizer`. Usable while the model is loaded."""

    def __init__(self, vocab: NativeVocab, chat_template: str | None) -> None:
        self._native = vocab
        self.chat_template = chat_template
        self.suppressed = vocab.suppressed
        self._pieces: dict[int, bytes] = {}
        has_texts = vocab.type != "none"
        self._texts = [vocab.text(token) if has_texts else b"" for token in range(vocab.n_tokens)]
        self._refusal = _why_no_text(vocab, self._texts)
        self.vocab = vocab_facts(
            type=vocab.type,
            add_bos=vocab.add_bos,
            bos=vocab.bos,
            add_eos=vocab.add_eos,
            eos=vocab.eos,
            texts=self._texts,
        )

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """As the contract says. Raises RequestError: no vocabulary or one with gaps, a lone surrogate."""
        if self._refusal:
            raise RequestError(self._refusal)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the text has half a character (surrogate) at {error.start}; remove it") from error
        return self._native.tokenize(data, add_special, parse_special)

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token, special=False)
        return piece

    def _piece(self, token: int, special: bool) -> bytes:
        self._check(token)
        return b"" if self.vocab.type == "none" else self._native.piece(token, special)

    def is_eog(self, token: int) -> bool:
        self._check(token)
        return self._native.is_eog(token)

    def texts(self, first: int, count: int) -> list[bytes]:
        return self._texts[first : first + count]

    def shown(self, token: int) -> str:
        return self._piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def _check(self, token: int) -> None:
        assert 0 <= token < self.vocab.n_vocab, f"token {token} is not in the vocabulary"


def _why_no_text(vocab: NativeVocab, texts: Sequence[bytes]) -> str:
    """Why text cannot be tokenized by this vocabulary, where llama.cpp would abort; empty if it can."""
    if vocab.type == "none":
        return "this model has no vocabulary; give the prompt as token ids"
    for wanted, token, name in ((vocab.add_bos, vocab.bos, "BOS"), (vocab.add_eos, vocab.eos, "EOS")):
        if wanted and token < 0:
            return f"this model asks for {name} at every text and names no such token; convert it again"
    missing = {b"<0x%02X>" % byte for byte in range(256)} - set(texts) if vocab.type == "spm" else None
    if missing:
        return f"this model's vocabulary lacks the byte token {min(missing).decode()}; convert it again"
    return ""
