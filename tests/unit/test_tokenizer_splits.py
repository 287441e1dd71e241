"""Where each pre-tokenizer cuts: recorded when all token ids were equal to llama.cpp's.

`python -m tests.unit.test_tokenizer_splits` records anew, after `tests/model/test_tokenizer_llama.py` has passed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.engine.bpe import word_splitter
from outrider.engine.pretokenizers import PRE_TOKENIZERS
from tests.texts import TEXTS

RECORDED = Path(__file__).parents[1] / "data/word_splits.json"


def cuts(pre: str) -> list[list[int]]:
    """For every text the lengths of its words, in characters."""
    splitter = word_splitter(PRE_TOKENIZERS[pre].patterns)
    return [[end - start for _, (start, end) in splitter.pre_tokenize_str(text)] for text in TEXTS]


def families() -> list[str]:
    """One name for each set of patterns."""
    return list({PRE_TOKENIZERS[name].patterns: name for name in sorted(PRE_TOKENIZERS)}.values())


@pytest.mark.parametrize("pre", families())
def test_cuts(pre: str) -> None:
    found = dict(zip(TEXTS, cuts(pre), strict=True))
    assert found == dict(zip(TEXTS, json.loads(RECORDED.read_text())[pre], strict=True))
    assert all(sum(lengths) == len(text) for text, lengths in found.items())


def test_every_family_cuts_differently() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert sorted(recorded) == sorted(families())
    assert len({json.dumps(lengths) for lengths in recorded.values()}) == len(recorded)


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(pre)}: {json.dumps(cuts(pre), separators=(',', ':'))}" for pre in families())
    RECORDED.write_text(f"{{\n{lines}\n}}\n")
