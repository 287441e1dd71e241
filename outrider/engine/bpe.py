"""BPE of byte letters, as in GPT-2's vocabulary: the `tokenizers` library with the tables of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from outrider.engine.vocabulary import Vocabulary


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte: itself where it is printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return {chr(byte if byte in printable else next(moved)): byte for byte in range(256)}


BYTE_OF_LETTER = _byte_letters()


def bpe_encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """Text without special tokens -> ids.

    llama.cpp merges texts, whether they are tokens or not, and writes what is no token in the end as single ASCII
    letters, dropping the rest. The library wants a token for every step, so such texts get ids behind the vocabulary,
    which are replaced in the result.
    """
    known, n_known = vocabulary.ids, len(vocabulary.texts)
    merges = [pair for pair in vocabulary.merges if _is_unicode("".join(pair))]
    steps = (*BYTE_OF_LETTER, *(text for left, right in merges for text in (left, right, left + right)))
    missing = list(dict.fromkeys(text for text in steps if text not in known))
    spare = {i: [known[c] for c in text if c < "\x80" and c in known] for i, text in enumerate(missing, n_known)}
    ids = {text: i for text, i in known.items() if _is_unicode(text)} | dict(zip(missing, spare, strict=True))
    library = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=vocabulary.pre.ignore_merges))
    library.pre_tokenizer = word_splitter(vocabulary.pre.patterns)

    def encode(text: str) -> list[int]:
        tokens: list[int] = library.encode(text, add_special_tokens=False).ids
        if spare and any(token in spare for token in tokens):
            return [i for token in tokens for i in spare.get(token, [token])]
        return tokens

    return encode


def word_splitter(patterns: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    """Cuts a text into words by the patterns, one after the other, and writes their bytes as letters."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def letters_to_bytes(text: str) -> bytes:
    """The bytes that the letters of a token stand for; other characters are spelled out as llama.cpp does."""
    found = bytearray()
    for letter in text:
        if letter in BYTE_OF_LETTER:
            found.append(BYTE_OF_LETTER[letter])
        else:
            code = letter.encode("utf-8", "replace") if _is_unicode(letter) else b"\xef\xbf\xbd"
            found += b"[UNK_BYTE_0x" + code.hex().encode() + text.encode("utf-8", "surrogateescape") + b"]"
    return bytes(found)


def _is_unicode(text: str) -> bool:
    """No surrogate escapes in it: bytes that are no UTF-8 can match no text, and the library cannot hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
