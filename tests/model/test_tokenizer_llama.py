"""Our token ids, pieces and facts against llama.cpp's, live.

`python -m tests.model.test_tokenizer_llama` writes tests/data/smollm2_ids.json anew.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from outrider.engine.gguf_file import open_gguf
from outrider.engine.pretokenizers import PRE_TOKENIZERS
from outrider.engine.tokenizer import GgufTokenizer
from tests.gguf_bytes import key
from tests.texts import TEXTS, random_text
from tests.vocabs import CONTROL, NORMAL, UNUSED, USER_DEFINED, Tables, bpe_tables, spm_tables, vocab_bytes

pytestmark = pytest.mark.model
llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/data/smollm2_ids.json"
_TYPES = ("none", "spm", "bpe")


class Native:
    """The vocabulary of a file as llama.cpp loads it."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_tokens = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode()
        tokens = (ctypes.c_int32 * (len(raw) + 16))()
        n = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), tokens, len(tokens), add_special, parse_special)
        assert n >= 0
        return tokens[:n]

    def piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(4096)
        n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
        assert n >= 0
        return buffer.raw[:n]

    def facts(self) -> tuple[object, ...]:
        lib, vocab = llama_cpp, self.vocab
        bos = lib.llama_vocab_get_add_bos(vocab), lib.llama_vocab_bos(vocab)
        eos = lib.llama_vocab_get_add_eos(vocab), lib.llama_vocab_eos(vocab)
        return (_TYPES[lib.llama_vocab_type(vocab)], self.n_tokens, *bos, *eos)

    def ends(self) -> list[int]:
        return [token for token in range(self.n_tokens) if llama_cpp.llama_vocab_is_eog(self.vocab, token)]

    def text(self, token: int) -> bytes:
        return bytes(llama_cpp.llama_vocab_get_text(self.vocab, token))

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    yield
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(), ctypes.c_void_p(0))


def assert_equal(path: Path, n_random: int, seed: int = 0, every_token: bool = True) -> None:
    """Ids of all texts with all flags; facts; and of every token its piece, text, and whether it ends a generation."""
    ours = GgufTokenizer(open_gguf(path))  # first: it refuses what llama.cpp aborts at
    native, facts = Native(path), ours.vocab
    try:
        assert (facts.type, facts.n_vocab, facts.add_bos, facts.bos, facts.add_eos, facts.eos) == native.facts()
        assert [token for token in range(native.n_tokens) if ours.is_eog(token)] == native.ends()
        if every_token:
            tokens = range(native.n_tokens)
            assert [ours.piece(token) for token in tokens] == [native.piece(token) for token in tokens]
            assert ours.texts(0, native.n_tokens) == [native.text(token) for token in tokens]
        rng = random.Random(seed)
        special = [ours.texts(token, 1)[0].decode() for token in ours.special_tokens][:20]
        for text in TEXTS + [random_text(rng, special) for _ in range(n_random)]:
            for add, parse in product((False, True), repeat=2):
                expected = native.encode(text, add, parse)
                assert ours.encode(text, add_special=add, parse_special=parse) == expected, (text, add, parse)
    finally:
        native.close()


def test_smollm2() -> None:
    assert_equal(ROOT / "demo/smollm2-mini-draft.gguf", 300)


def test_qwen() -> None:
    folder = Path(os.environ.get("OUTRIDER_MODELS", "~/.cache/outrider/models")).expanduser()
    path = folder / "qwen2.5-coder-0.5b-q4_0.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert_equal(path, 100)


def learned_merges(texts: list[str], n_merges: int) -> list[str]:
    """Merges that cross every boundary a pre-tokenizer may set, so that a missing cut shows in the ids."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + n_merges, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator(texts, trainer)
    return [" ".join(pair) for pair in json.loads(library.to_str())["model"]["merges"]]


def joined(merges: list[str]) -> list[str]:
    """What they give, each once."""
    return list(dict.fromkeys(merge.replace(" ", "") for merge in merges))


@pytest.fixture(scope="module")
def boundary_tables() -> Tables:
    rng = random.Random(7)
    merges = learned_merges(TEXTS * 3 + [random_text(rng, []) for _ in range(400)], 3000)
    merges = [merge for merge in merges if merge.replace(" ", "") != "<|eot_id|>"]
    special = {"<|turn|>": CONTROL, "<|turn": CONTROL, "<tool>": USER_DEFINED, "<|eot_id|>": NORMAL}
    return bpe_tables(joined(merges), merges, special)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer(pre: str, boundary_tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(vocab_bytes({**boundary_tables, "pre": pre or None}))
    assert_equal(path, 25, seed=len(pre), every_token=False)


@pytest.mark.parametrize("seed", range(12))
def test_gappy_bpe_vocabularies(seed: int, tmp_path: Path) -> None:
    """Letters that are missing, merges of and to texts that are no tokens, repeated and malformed merges."""
    rng = random.Random(seed)
    tables = dict(bpe_tables([], learned_merges(TEXTS, 500), {"<|x|>": CONTROL, "<y>": USER_DEFINED}))
    merges: list[str] = tables["merges"]  # type: ignore[assignment]
    words = [word for word in joined(merges) if rng.random() < 0.7]
    tokens = [text for text in tables["tokens"] if len(text) > 1 or rng.random() < 0.9]  # type: ignore[attr-defined]
    tables["tokens"] = [*tokens, *words, ""]
    tables["token_type"] = (
        [CONTROL, USER_DEFINED] + [rng.choice([NORMAL] * 9 + [UNUSED]) for _ in tokens[2:] + words] + [1]
    )
    tables["merges"] = [*merges, *rng.sample(merges, 20), "nopair", "", " x", "a b c"]
    tables["pre"] = rng.choice(["gpt-2", "qwen2", "llama-bpe", "default"])
    path = tmp_path / "vocab.gguf"
    path.write_bytes(vocab_bytes(tables))
    assert_equal(path, 60, seed)


@pytest.mark.parametrize("seed", range(12))
def test_spm_vocabularies(seed: int, tmp_path: Path) -> None:
    """Equal scores, characters that are no token, tokens no merge can build, odd token types."""
    rng = random.Random(seed)
    special = {"<|x|>": CONTROL, "<y>": USER_DEFINED, "<|x|": USER_DEFINED, "<|endoftext|>": CONTROL}
    corpus = "".join(TEXTS).replace(" ", "▁").replace("\0", "")
    words = dict.fromkeys(c for c in corpus if rng.random() < 0.8)
    for _ in range(1500):
        start = rng.randrange(len(corpus))
        words[corpus[start : start + rng.randrange(2, 6)]] = None
    known = {*spm_tables({}, special)["tokens"], ""}  # type: ignore[misc]
    tables = dict(spm_tables({word: float(-rng.randrange(40)) for word in words if word not in known}, special))
    tables["add_bos_token"] = rng.choice([None, True, False])
    tables["add_eos_token"] = rng.choice([None, True, False])
    tables["add_space_prefix"] = rng.choice([None, True, False])
    name = key("general.name", "string", rng.choice(["Some Model", "Phi-3 Mini", "my-phi3"]))
    path = tmp_path / "vocab.gguf"
    path.write_bytes(vocab_bytes(tables, name))
    assert_equal(path, 100, seed)


def smollm2_ids(path: Path) -> dict[str, object]:
    """texts: [text, ids without, ids with special tokens parsed]; ends: ids that end a generation."""
    native = Native(path)
    try:
        rng = random.Random(1)
        texts = TEXTS + [random_text(rng, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]) for _ in range(60)]
        rows = [[text, native.encode(text, True, False), native.encode(text, True, True)] for text in texts]
        return {"ends": native.ends(), "texts": rows}
    finally:
        native.close()


def test_the_recorded_ids_are_llama_cpps() -> None:
    assert json.loads(RECORDED.read_text()) == smollm2_ids(ROOT / "demo/smollm2-mini-draft.gguf")


if __name__ == "__main__":
    facts = smollm2_ids(ROOT / "demo/smollm2-mini-draft.gguf")
    rows = ",\n".join(json.dumps(row) for row in facts["texts"])  # type: ignore[attr-defined]
    RECORDED.write_text(f'{{"ends": {json.dumps(facts["ends"])}, "texts": [\n{rows}\n]}}\n')
