"""Flipped bytes anywhere in a model file: it is read, or refused by name. Nothing else happens."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.gguf_file import open_gguf
from outrider.engine.tokenizer import GgufTokenizer
from outrider.errors import ModelFileError, RequestError
from outrider.speculators.detect import detect_types
from tests.gguf_bytes import ARCH, gguf, key, tensor
from tests.vocabs import BYTE, CONTROL, NORMAL, InThisProcess


def small_model(model: str) -> bytes:
    """Every kind of value, a vocabulary of either type, two tensors."""
    tokens = ["<s>", "<0x0A>", "ab", "a", "b", "Ġ", "▁"]
    keys = [
        key(ARCH, "string", "llama"),
        key("general.alignment", "uint32", 32),
        key("llama.block_count", "uint32", 2),
        key("x.float", "float64", 0.5),
        key("x.flags", "array[bool]", [True, False]),
        key("tokenizer.ggml.model", "string", model),
        key("tokenizer.ggml.tokens", "array[string]", tokens),
        key("tokenizer.ggml.token_type", "array[int32]", [CONTROL, BYTE, *[NORMAL] * 5]),
        key("tokenizer.ggml.scores", "array[float32]", [-float(i) for i in range(7)]),
        key("tokenizer.ggml.merges", "array[string]", ["a b", "Ġ a"]),
        key("tokenizer.ggml.bos_token_id", "uint32", 0),
        key("tokenizer.ggml.add_bos_token", "bool", True),
        key("tokenizer.chat_template", "string", "{{ messages[0].content }}"),
    ]
    return gguf(keys, [tensor("a", [32, 2], 2), tensor("b", [4], 1, 64)], bytes(range(72)))


MODELS = {model: small_model(model) for model in ("gpt2", "llama")}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "model.gguf"


def use(path: Path) -> None:
    """All that is done with a file before the first token."""
    file = open_gguf(path)
    for name in file.tensors:
        file.tensor(name)
    tokenizer = GgufTokenizer(file)
    for token in range(tokenizer.vocab.n_vocab):
        tokenizer.piece(token)
    detect_types(file.header)
    tokenizer.encode("a ab<s>\n", add_special=True, parse_special=True)
    tokenizer.templates = InThisProcess()
    tokenizer.render_chat([("user", "x")])


@pytest.mark.parametrize("model", MODELS)
@given(data=st.data())
def test_flipped_bytes(model: str, data: st.DataObject, path: Path) -> None:
    raw = bytearray(MODELS[model])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from([0, 1, 2, 8, 9, 32, 127, 128, 255]) | st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(len(raw) - 80, len(raw)))] if data.draw(st.booleans()) else raw)
    with contextlib.suppress(ModelFileError, RequestError):
        use(path)


@pytest.mark.parametrize("model", MODELS)
def test_the_unharmed_file_is_usable(model: str, path: Path) -> None:
    path.write_bytes(MODELS[model])
    use(path)
