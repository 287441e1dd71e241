"""Text to token ids and back from the tables of a GGUF file; the ids are llama.cpp's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

from outrider.engine.bpe import bpe_encoder, letters_to_bytes
from outrider.engine.chat_template import ChatRenderer
from outrider.engine.gguf_file import GgufFile
from outrider.engine.gguf_header import fail
from outrider.engine.special_tokens import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from outrider.engine.spm import BLANK, spm_encoder
from outrider.engine.vocab_facts import vocab_facts
from outrider.engine.vocabulary import Vocabulary, load_vocabulary, suppressed_tokens
from outrider.errors import RequestError

_C_SPACE = " \t\n\v\f\r"
_BYTE_TEXT = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class GgufTokenizer(ChatRenderer):
    """Keeps `outrider.engine.base.Tokenizer`."""

    def __init__(self, file: GgufFile) -> None:
        """Raises ModelFileError if the tables are incomplete, damaged or of an unknown kind."""
        self._vocabulary = vocabulary = load_vocabulary(file)
        self._special = special = vocabulary.special
        self._raw = [_utf8(text) for text in vocabulary.texts]
        self.vocab = vocab_facts(
            type=vocabulary.type,
            add_bos=vocabulary.add_bos,
            bos=special.bos,
            add_eos=vocabulary.add_eos,
            eos=special.eos,
            texts=self._raw,
        )
        template = file.get("tokenizer.chat_template", "string")
        self.chat_template: str | None = template if isinstance(template, str) else None
        self.suppressed = suppressed_tokens(file, len(self._raw))
        #: Ids that are looked for in a text before it is cut into words.
        self.special_tokens: Sequence[int] = special.listed
        self._check_byte_tokens(file)

    @cached_property
    def _encode_words(self) -> Callable[[str], list[int]]:
        """Text without special tokens -> ids. Made when the first text comes: a draft worker gets none."""
        return _words_encoder(self._vocabulary)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """As the contract says. Raises RequestError: no vocabulary, a lone surrogate, or a byte without a token."""
        _check_text(text)
        head, tail = self._frame() if add_special else ([], [])
        tokens: list[int] = []
        after_special = True
        for part in self._parts(text, parse_special):
            if isinstance(part, int):
                tokens.append(part)
            else:
                prefix = " " if after_special and self._vocabulary.add_space_prefix else ""
                tokens += self._encode_words(prefix + part)
            after_special = isinstance(part, int)
        return head + tokens + tail

    def piece(self, token: int) -> bytes:
        """As the contract says; also empty for tokens of types that llama.cpp does not write."""
        type_, text = self._type(token), self._text(token)
        if type_ == USER_DEFINED:
            return _utf8(text)
        if type_ == BYTE:
            return bytes.fromhex(text[3:5])
        if type_ != NORMAL:
            return b""
        return letters_to_bytes(text) if self._vocabulary.type == "bpe" else _utf8(text.replace(BLANK, " "))

    def is_eog(self, token: int) -> bool:
        return token in self._special.ends

    def texts(self, first: int, count: int) -> list[bytes]:
        return self._raw[first : first + count]

    def _type(self, token: int) -> int:
        assert 0 <= token < self.vocab.n_vocab, f"token {token} is not in the vocabulary"
        return self._special.types[token] if self._special.types else 0

    def _text(self, token: int) -> str:
        return self._vocabulary.texts[token]

    def shown(self, token: int) -> str:
        if token < 0:
            return ""
        is_special = self._type(token) in (CONTROL, UNKNOWN)
        return self._text(token) if is_special else self.piece(token).decode("utf-8", "replace")

    def _frame(self) -> tuple[list[int], list[int]]:
        """What goes in front of a text and behind it."""
        special, vocabulary = self._special, self._vocabulary
        for wanted, token, name in ((vocabulary.add_bos, special.bos, "BOS"), (vocabulary.add_eos, special.eos, "EOS")):
            if wanted and token < 0:
                raise RequestError(
                    f"this model asks for {name} at every text and names no such token; convert it again"
                )
        return [special.bos] * vocabulary.add_bos, [special.eos] * vocabulary.add_eos

    def _parts(self, text: str, parse_special: bool) -> list[str | int]:
        """The text cut at special tokens, the longest of them first wherever it stands, as llama.cpp does it.

        Control tokens count only if `parse_special`; user-defined ones always do.
        """
        parts: list[str | int] = [text] if text else []
        for token in self.special_tokens:
            special = self._text(token)
            if special not in text or not (parse_special or self._type(token) == USER_DEFINED):
                continue
            strip = _C_SPACE if token in self._special.eats_blanks else ""
            parts = [piece for part in parts for piece in _cut(part, special, token, strip)]
        return parts

    def _check_byte_tokens(self, file: GgufFile) -> None:
        for token, type_ in enumerate(self._special.types[: self.vocab.n_vocab]):
            if type_ == BYTE and not _BYTE_TEXT.fullmatch(self._text(token)):
                fail(
                    file.path,
                    f"byte token {token} is {self._text(token)!a}, not <0xHH>",
                    "convert the model again",
                )


def _words_encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    if vocabulary.type == "bpe":
        return bpe_encoder(vocabulary)
    if vocabulary.type == "spm":
        return spm_encoder(vocabulary.ids, vocabulary.scores)

    def refuse(text: str) -> list[int]:
        raise RequestError("this model has no vocabulary; give the prompt as token ids")

    return refuse


def _cut(part: str | int, special: str, token: int, strip: str) -> list[str | int]:
    """A part cut at every occurrence of a special token; behind it, characters of `strip` are dropped."""
    if isinstance(part, int):
        return [part]
    first, *rest = part.split(special)
    pieces: list[str | int] = [first]
    for piece in rest:
        pieces += [token, piece.lstrip(strip) if strip else piece]
    return [piece for piece in pieces if piece != ""]


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"the text has half a character (a lone surrogate) at {error.start}; remove it") from error


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
