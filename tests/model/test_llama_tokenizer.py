"""The llama engine's tokenizer, held against the one that reads the file's tables itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

import llama_cpp.llama_cpp as lib

from outrider.engine.gguf_file import open_gguf
from outrider.engine.llama_cpp import NativeVocab
from outrider.engine.llama_tokenizer import LlamaTokenizer
from outrider.engine.tokenizer import GgufTokenizer
from outrider.errors import RequestError
from tests.model.llama_kit import smollm2
from tests.tiny_gguf import BOS, EOS, FIRST_BYTE, UNKNOWN, write_random

Pair = tuple[LlamaTokenizer, GgufTokenizer]


def pair(path: Path) -> Iterator[Pair]:
    """Both tokenizers of a file, of which llama.cpp loads the vocabulary only."""
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    template = lib.llama_model_chat_template(model, None)
    own = GgufTokenizer(open_gguf(path))
    yield LlamaTokenizer(NativeVocab(lib.llama_model_get_vocab(model)), template.decode() if template else None), own
    lib.llama_model_free(model)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from pair(write_random(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="module")
def real() -> Iterator[Pair]:
    yield from pair(smollm2())


@pytest.fixture(params=["tiny", pytest.param("real", marks=pytest.mark.model)])
def both(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.getfixturevalue(request.param)
    return found


def test_facts_do_not_depend_on_the_engine(both: Pair) -> None:
    llama, own = both
    assert llama.vocab == own.vocab
    assert llama.vocab.block_hashes or llama.vocab.n_vocab <= 5


def test_every_piece_text_and_end_is_the_same(both: Pair) -> None:
    llama, own = both
    tokens = range(own.vocab.n_vocab)
    assert [token for token in tokens if llama.piece(token) != own.piece(token)] == []
    assert [token for token in tokens if llama.is_eog(token) != own.is_eog(token)] == []
    assert llama.texts(0, len(tokens)) == own.texts(0, len(tokens))
    assert llama.texts(len(tokens) - 2, 1024) == own.texts(len(tokens) - 2, 1024)
    assert len(llama.texts(len(tokens) - 2, 1024)) == 2


TEXTS = [
    "",
    " ",
    "def f(x):\n\treturn x ** 2  # naïve 🌱\r\n",
    "<|im_start|>user\n</s><s>",
    "a\0b",
    "日本語 and العربية",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("add_special", [False, True])
@pytest.mark.parametrize("parse_special", [False, True])
def test_ids_are_the_same(both: Pair, text: str, add_special: bool, parse_special: bool) -> None:
    llama, own = both
    options = {"add_special": add_special, "parse_special": parse_special}
    assert llama.encode(text, **options) == own.encode(text, **options)


def joined(tokenizer: LlamaTokenizer, text: str) -> bytes:
    """Encoded and decoded. The tiny vocabulary has no blank, so its letter ▁ stays, as three bytes."""
    pieces = map(tokenizer.piece, tokenizer.encode(text, add_special=False, parse_special=False))
    return b"".join(pieces).replace("▁".encode(), b" ")


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(both: Pair, text: str) -> None:
    blank = b" " if text and both[0].vocab.type == "spm" else b""
    assert joined(both[0], text) == blank + text.encode()


def test_control_tokens_add_no_text(tiny: Pair) -> None:
    llama, _ = tiny
    assert [llama.piece(token) for token in (UNKNOWN, BOS, EOS, FIRST_BYTE + 0xF0)] == [b"", b"", b"", b"\xf0"]
    assert [llama.is_eog(token) for token in (BOS, EOS)] == [False, True]
    assert llama.encode("</s>", add_special=True, parse_special=True)[0] == BOS


def test_half_a_character_is_refused(both: Pair) -> None:
    with pytest.raises(RequestError, match="half a character"):
        both[0].encode("ab\ud83c", add_special=False, parse_special=False)


def test_long_texts_are_encoded_whole(both: Pair) -> None:
    assert joined(both[0], "word " * 5000).split() == [b"word"] * 5000


@pytest.mark.model
def test_a_chat_is_rendered_the_same(real: Pair) -> None:
    llama, own = real
    messages = [("system", "Be brief."), ("user", "Hi <|im_end|>")]
    assert llama.render_chat(messages) == own.render_chat(messages)
    assert "Be brief." in llama.render_chat(messages)


def test_no_template_no_chat(tiny: Pair) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        tiny[0].render_chat([("user", "Hi")])


class Gaps:
    """A vocabulary as llama.cpp would report it, with something missing."""

    type, n_tokens, bos, eos, add_bos, add_eos = "bpe", 4, -1, -1, False, False
    suppressed: tuple[int, ...] = ()

    def __init__(self, **changes: object) -> None:
        self.__dict__.update(changes)

    def text(self, token: int) -> bytes:
        return b"t%d" % token


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "none"}, "no vocabulary"),
        ({"add_bos": True}, "asks for BOS"),
        ({"add_eos": True}, "asks for EOS"),
        ({"type": "spm"}, "lacks the byte token <0x00>"),
    ],
)
def test_text_on_which_llama_cpp_would_abort_is_refused(changes: dict[str, object], message: str) -> None:
    tokenizer = LlamaTokenizer(Gaps(**changes), None)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=message):
        tokenizer.encode("text", add_special=True, parse_special=False)
