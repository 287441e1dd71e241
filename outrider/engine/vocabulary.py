"""The tokenizer tables of a GGUF file, with the defaults and repairs that llama.cpp's loader applies.

Two files that leave the same key out must come out equal, and one that leaves it out must equal one that writes the
default: draft and target are compared by what is resolved here. Sources: `llama_vocab::impl::load` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outrider.engine.gguf_file import GgufFile
from outrider.engine.gguf_header import fail
from outrider.engine.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from outrider.engine.special_tokens import Special, resolve_specials

_REFETCH = "convert the model again"
_KEY = "tokenizer.ggml."


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """texts: by id, bytes that are no UTF-8 as surrogate escapes. ids: by text. scores: of the merges ("spm").
    merges: pairs, best first ("bpe"). bos, eos: -1 where there is none."""

    type: Literal["spm", "bpe", "none"]
    texts: Sequence[str]
    ids: Mapping[str, int]
    scores: Sequence[float]
    merges: Sequence[tuple[str, str]]
    pre: PreTokenizer
    add_space_prefix: bool
    add_bos: bool
    add_eos: bool
    special: Special


def suppressed_tokens(file: GgufFile, n_vocab: int) -> list[int]:
    """Ids that must never be sampled. Raises ModelFileError for one that the vocabulary lacks."""
    tokens = file.metadata.get(_KEY + "suppress_tokens", [])
    if not isinstance(tokens, list) or not all(isinstance(token, int) and 0 <= token < n_vocab for token in tokens):
        fail(file.path, f"{_KEY}suppress_tokens is no list of ids below {n_vocab}", _REFETCH)
    return tokens


def load_vocabulary(file: GgufFile) -> Vocabulary:
    """The vocabulary of a model. Raises ModelFileError: a table is missing or contradicts another, or the kind of
    tokenizer is not one that this package has."""
    model = file.get(_KEY + "model", "string")
    if model in ("no_vocab", "none"):
        return _no_vocabulary(file)
    if model not in ("llama", "gpt2"):
        what = f"has the tokenizer {model!r}" if model else "has no tokenizer.ggml.model"
        fail(file.path, f"{what}; 'llama' and 'gpt2' can be read", "use the llama engine")
    type_: Literal["spm", "bpe"] = "spm" if model == "llama" else "bpe"
    pre = _pre_tokenizer(file) if type_ == "bpe" else PreTokenizer((), add_bos=True)
    texts = _texts(file)
    ids = _ids(file, texts)
    bos, eos = (1, 2) if type_ == "spm" else (11 if pre.default_bos else -1, 11)
    return Vocabulary(
        type=type_,
        texts=texts,
        ids=ids,
        scores=_numbers(file, "scores", ("array[float32]", "array[int32]"), len(texts), 0.0),
        merges=_merges(file) if type_ == "bpe" else [],
        pre=pre,
        add_space_prefix=_flag(file, "add_space_prefix", True) and type_ == "spm",
        add_bos=_flag(file, "add_bos_token", pre.add_bos),
        add_eos=_flag(file, "add_eos_token", False),
        special=resolve_specials(file, texts, ids, _token_types(file, len(texts)), bos, eos),
    )


def _no_vocabulary(file: GgufFile) -> Vocabulary:
    """A model that works on bare token ids."""
    count = file.get(f"{file.architecture}.vocab_size", "uint32") or 0
    assert isinstance(count, int)
    return Vocabulary(
        type="none",
        texts=[""] * min(count, 1 << 21),
        ids={},
        scores=[],
        merges=[],
        pre=PreTokenizer(()),
        add_space_prefix=False,
        add_bos=False,
        add_eos=False,
        special=Special.none(),
    )


def _pre_tokenizer(file: GgufFile) -> PreTokenizer:
    name = file.get(_KEY + "pre", "string") or ""
    assert isinstance(name, str)
    if name not in PRE_TOKENIZERS:
        fail(file.path, f"tokenizer.ggml.pre is {name!r}, which this tokenizer does not know", "use the llama engine")
    return PRE_TOKENIZERS[name]


def _table(file: GgufFile, name: str, kinds: Sequence[str]) -> list[Any] | None:
    found = file.header.kinds.get(_KEY + name)
    if found is not None and found not in kinds:
        fail(file.path, f"{_KEY}{name} is of type {found}, not {' or '.join(kinds)}", _REFETCH)
    table = file.metadata.get(_KEY + name)
    assert table is None or isinstance(table, list)
    return table


def _texts(file: GgufFile) -> list[str]:
    """Token texts; llama.cpp takes them as C strings, which end at a NUL, and gives empty ones a name."""
    texts = _table(file, "tokens", ["array[string]"])
    if not texts:
        fail(file.path, "has no tokenizer.ggml.tokens", _REFETCH)
    return [text.partition("\0")[0] or f"[EMPTY_{i}]" for i, text in enumerate(texts)]


def _ids(file: GgufFile, texts: Sequence[str]) -> dict[str, int]:
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) < len(texts):
        first = next(i for i, text in enumerate(texts) if ids[text] != i)
        fail(file.path, f"tokens {first} and {ids[texts[first]]} have the same text {texts[first]!a}", _REFETCH)
    return ids


def _numbers(file: GgufFile, name: str, kinds: Sequence[str], n_tokens: int, default: float) -> list[Any]:
    table = _table(file, name, kinds)
    if table is None:
        return [default] * n_tokens
    if len(table) < n_tokens:
        fail(file.path, f"{_KEY}{name} has {len(table)} entries for {n_tokens} tokens", _REFETCH)
    return table


def _token_types(file: GgufFile, n_tokens: int) -> list[int]:
    return _numbers(file, "token_type", ["array[int32]"], n_tokens, 1)


def _merges(file: GgufFile) -> list[tuple[str, str]]:
    """Pairs without repeats. Each is written with a blank between its parts, which may begin with a blank."""
    table = _table(file, "merges", ["array[string]"])
    if table is None:
        fail(file.path, "has no tokenizer.ggml.merges, which a BPE tokenizer needs", _REFETCH)
    pairs: dict[tuple[str, str], None] = {}
    for line in table:
        line = line.partition("\0")[0]
        cut = line.find(" ", 1)
        if cut > 0:
            pairs[line[:cut], line[cut + 1 :]] = None
    return list(pairs)


def _flag(file: GgufFile, name: str, default: bool) -> bool:
    value = file.get(_KEY + name, "bool")
    return default if value is None else bool(value)
