"""Token ids of SmolLM2's vocabulary as llama.cpp gave them (recorded by `tests.model.test_tokenizer_llama`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.engine.gguf_file import open_gguf
from outrider.engine.tokenizer import GgufTokenizer

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "tests/data/smollm2_ids.json").read_text())


@pytest.fixture(scope="module")
def smollm2() -> GgufTokenizer:
    return GgufTokenizer(open_gguf(ROOT / "demo/smollm2-mini-draft.gguf"))


@pytest.mark.parametrize("row", RECORDED["texts"], ids=range(len(RECORDED["texts"])))
def test_recorded_ids(row: tuple[str, list[int], list[int]], smollm2: GgufTokenizer) -> None:
    text, plain, parsed = row
    for add_special in (False, True):  # this model adds neither BOS nor EOS
        assert smollm2.encode(text, add_special=add_special, parse_special=False) == plain
        assert smollm2.encode(text, add_special=add_special, parse_special=True) == parsed
    assert b"".join(map(smollm2.piece, plain)) == text.encode()


def test_recorded_ends(smollm2: GgufTokenizer) -> None:
    assert [token for token in range(smollm2.vocab.n_vocab) if smollm2.is_eog(token)] == RECORDED["ends"]


def test_chat(smollm2: GgufTokenizer) -> None:
    text = smollm2.render_chat([("user", "Hi")])
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert smollm2.encode(text, add_special=True, parse_special=True)[0] == 1
