"""Small vocabularies as files, with any table changed or left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from outrider.engine.gguf_file import open_gguf
from outrider.engine.jinja_sandbox import render_template
from outrider.engine.template_process import TemplateProcess
from outrider.engine.tokenizer import GgufTokenizer
from tests.gguf_bytes import ARCH, byte_letters, gguf, key

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_KINDS = {
    "model": "string",
    "pre": "string",
    "tokens": "array[string]",
    "merges": "array[string]",
    "scores": "array[float32]",
    "token_type": "array[int32]",
    "add_bos_token": "bool",
    "add_eos_token": "bool",
    "add_space_prefix": "bool",
}
#: What llama.cpp wants to know of a llama model before it reads the vocabulary.
_HYPERPARAMETERS = {
    "context_length": 64,
    "embedding_length": 32,
    "block_count": 1,
    "feed_forward_length": 32,
    "attention.head_count": 2,
    "attention.head_count_kv": 2,
    "rope.dimension_count": 16,
}

Tables = Mapping[str, object]


def bpe_tables(
    words: Sequence[str] = (), merges: Sequence[str] = (), special: Mapping[str, int] | None = None
) -> Tables:
    """The special tokens (text -> type), the 256 letters, the words."""
    special = special or {}
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*special, *byte_letters(), *words],
        "token_type": [*special.values(), *[NORMAL] * (256 + len(words))],
        "merges": list(merges),
    }


def spm_tables(words: Mapping[str, float], special: Mapping[str, int] | None = None) -> Tables:
    """<unk>, <s>, </s>, the bytes, the special tokens (text -> type), the words (text -> score)."""
    special = special or {}
    known = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    return {
        "model": "llama",
        "tokens": [*known, *special, *words],
        "token_type": [*types, *special.values(), *[NORMAL] * len(words)],
        "scores": [*[0.0] * (len(known) + len(special)), *words.values()],
    }


def vocab_bytes(tables: Tables, *more: bytes) -> bytes:
    """A vocabulary-only llama file; tables that are None are left out. `more`: further keys."""
    keys = [key(ARCH, "string", "llama"), key("llama.attention.layer_norm_rms_epsilon", "float32", 1e-5)]
    keys += [key(f"llama.{name}", "uint32", value) for name, value in _HYPERPARAMETERS.items()]
    for name, value in tables.items():
        if value is not None:
            keys.append(key(f"tokenizer.ggml.{name}", _KINDS.get(name, "uint32"), value))
    return gguf([*keys, *more])


def tokenizer(folder: Path, tables: Tables, *more: bytes) -> GgufTokenizer:
    path = folder / "vocab.gguf"
    path.write_bytes(vocab_bytes(tables, *more))
    return GgufTokenizer(open_gguf(path))


class InThisProcess(TemplateProcess):
    """Runs harmless templates without a process."""

    render = staticmethod(render_template)  # type: ignore[assignment]
