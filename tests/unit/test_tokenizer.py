"""The tokenizer on small vocabularies, by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.spm import MAX_CHARS, merge, spm_encoder
from outrider.engine.tokenizer import GgufTokenizer
from outrider.errors import ModelFileError, RequestError
from tests.gguf_bytes import key
from tests.vocabs import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED, Tables, bpe_tables, spm_tables, tokenizer

TURN = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<tool>": USER_DEFINED}
BPE = bpe_tables(["ab", "abc", "Ġab"], ["a b", "ab c", "Ġ ab"], TURN)
SPM = spm_tables({"▁": -9.0, "a": -8.0, "b": -7.0, "ab": -2.0, "▁ab": -1.0, "c": -6.0, "bc": -1.5}, TURN)


def plain(one: GgufTokenizer, text: str) -> list[str]:
    """The token texts of a text, nothing added."""
    return [one.texts(i, 1)[0].decode() for i in one.encode(text, add_special=False, parse_special=False)]


def parsed(one: GgufTokenizer, text: str) -> list[str]:
    return [one.texts(i, 1)[0].decode() for i in one.encode(text, add_special=False, parse_special=True)]


# --- merges ---------------------------------------------------------------------------------------------------------


def test_bpe_merges_inside_words(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, BPE)
    assert plain(one, "ab abc ab xab") == ["ab", "Ġ", "abc", "Ġab", "Ġ", "x", "ab"]
    assert plain(one, "é\n") == ["Ã", "©", "Ċ"]
    assert plain(one, "") == []


def test_bpe_steps_that_are_no_tokens(tmp_path: Path) -> None:
    """A merge to what is no token happens, and its ASCII letters are written; other letters are dropped."""
    tables = dict(bpe_tables(["xyz"], ["x y", "xy z", "x y", "Ã ©", "p q"]))
    tables["tokens"] = [text for text in BPE_LETTERS if text not in "qĊ"] + ["xyz", "ab"]
    tables["token_type"] = [NORMAL] * len(tables["tokens"])  # type: ignore[arg-type]
    one = tokenizer(tmp_path, tables)
    assert plain(one, "xy xyz") == ["x", "y", "Ġ", "xyz"]
    assert plain(one, "é") == []
    assert plain(one, "a\nb ab") == ["a", "b", "Ġ", "a", "b"]
    assert plain(one, "apqa") == ["a", "p", "a"]


BPE_LETTERS: list[str] = BPE["tokens"][3:259]  # type: ignore[index]


def test_spm_merges_by_score(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, SPM)
    assert plain(one, "ab") == ["▁ab"]
    assert plain(one, "abc") == ["▁", "a", "bc"]
    assert plain(one, "x ab") == ["▁", "<0x78>", "▁ab"]
    assert plain(one, "€") == ["▁", "<0xE2>", "<0x82>", "<0xAC>"]


def test_equal_scores_merge_from_the_left() -> None:
    ids = {"a": 0, "aa": 1}
    assert merge("aaaaa", ids, [-1.0, -1.0]) == ["aa", "aa", "a"]
    assert merge("bab", {"ba": 0, "ab": 1}, [-2.0, -2.0]) == ["ba", "b"]
    assert merge("bab", {"ba": 0, "ab": 1}, [-2.0, -1.0]) == ["b", "ab"]
    assert merge("", ids, []) == []


@given(st.text("ab▁", max_size=12), st.dictionaries(st.text("ab▁", min_size=2, max_size=4), st.integers(-3, 0)))
def test_spm_merging_is_the_plain_rule(text: str, scores: dict[str, int]) -> None:
    """Again and again the best-scored joinable neighbours, the leftmost of equals."""
    parts = list(text)
    while pairs := [(-scores[p + q], i) for i, (p, q) in enumerate(pairwise(parts)) if p + q in scores]:
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    ids = {word: i for i, word in enumerate(scores)}
    assert merge(text, ids, [float(score) for score in scores.values()]) == parts


# --- special tokens -------------------------------------------------------------------------------------------------


def test_a_text_that_would_take_for_ever_is_refused() -> None:
    with pytest.raises(RequestError, match="too long for this tokenizer"):
        spm_encoder({"a": 0}, [0.0])("a" * (MAX_CHARS + 1))


def test_control_tokens_count_only_if_asked_for(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, BPE)
    assert parsed(one, "a<|im_start|>b<tool>") == ["a", "<|im_start|>", "b", "<tool>"]
    assert plain(one, "a<|im_end|>")[:3] == ["a", "<", "|"]
    assert plain(one, "<tool>a") == ["<tool>", "a"]


def test_the_longest_special_token_wins_wherever_it_stands(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, bpe_tables([], [], {"<ab": CONTROL, "bcde": CONTROL, "<a": CONTROL}))
    assert parsed(one, "<abcde") == ["<a", "bcde"]
    assert parsed(one, "<ab<a") == ["<ab", "<a"]


def test_a_blank_is_put_in_front_of_text_after_special_tokens(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, SPM)
    assert parsed(one, "ab<tool>ab<|im_end|> ab") == ["▁ab", "<tool>", "▁ab", "<|im_end|>", "▁", "▁ab"]
    bare = tokenizer(tmp_path, {**SPM, "add_space_prefix": False})
    assert parsed(bare, "ab<tool>ab") == ["ab", "<tool>", "ab"]


def test_blanks_behind_the_special_tokens_of_phi3_vanish(tmp_path: Path) -> None:
    tables = spm_tables({"▁": -1.0, "a": -2.0}, {**TURN, "<|endoftext|>": CONTROL})
    one = tokenizer(tmp_path, tables, key("general.name", "string", "Phi-3 mini"))
    assert parsed(one, "<|im_end|> \n a") == ["<|im_end|>", "▁", "a"]
    assert parsed(one, "</s> \ta<|im_end|>  ") == ["</s>", "▁", "a", "<|im_end|>"]
    assert parsed(one, "<|endoftext|> a") == ["<|endoftext|>", "▁", "▁", "a"]


def test_bos_and_eos_are_added_as_the_flags_say(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, {**SPM, "add_eos_token": True})
    assert one.encode("", add_special=True, parse_special=False) == [1, 2]
    assert one.encode("", add_special=False, parse_special=False) == []
    assert tokenizer(tmp_path, BPE).encode("", add_special=True, parse_special=False) == []


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (SPM, (True, 1, False, 2)),
        ({**SPM, "bos_token_id": 7, "eos_token_id": 8}, (True, 7, False, 8)),
        ({**SPM, "bos_token_id": 99999, "add_bos_token": False, "add_eos_token": True}, (False, 1, True, 2)),
        (BPE, (False, 11, False, 11)),
        ({**BPE, "pre": "llama-bpe"}, (True, 11, False, 11)),
        ({**BPE, "pre": "tekken", "add_bos_token": False}, (False, 11, False, 11)),
        ({**BPE, "pre": "glm4"}, (False, -1, False, 11)),
        ({**BPE, "pre": "glm4", "bos_token_id": 3}, (False, 3, False, 11)),
        ({"model": "none", "vocab_size": 5}, (False, -1, False, -1)),
    ],
)
def test_defaults_of_bos_and_eos(tables: Tables, expected: tuple[object, ...], tmp_path: Path) -> None:
    facts = tokenizer(tmp_path, tables).vocab
    assert (facts.add_bos, facts.bos, facts.add_eos, facts.eos) == expected


def test_a_small_vocabulary_has_no_default_tokens(tmp_path: Path) -> None:
    facts = tokenizer(tmp_path, {**BPE, "tokens": ["a", "b"], "token_type": None, "merges": ["x y"]}).vocab
    assert (facts.n_vocab, facts.bos, facts.eos) == (2, -1, -1)


def ends(folder: Path, special: dict[str, int], **tables: object) -> set[str]:
    one = tokenizer(folder, {**bpe_tables([], [], special), "eos_token_id": 0, **tables})
    return {one.texts(i, 1)[0].decode() for i in range(one.vocab.n_vocab) if one.is_eog(i)}


def test_ends_of_a_generation(tmp_path: Path) -> None:
    known = {"<eos!>": CONTROL, "<|im_end|>": NORMAL, "<|eot_id|>": CONTROL, "<x>": CONTROL, "<|file_sep|>": NORMAL}
    assert ends(tmp_path, known) == {"<eos!>", "<|im_end|>", "<|eot_id|>", "<|file_sep|>"}
    assert ends(tmp_path, known, eot_token_id=3, fim_sep_token_id=30) == {
        *("<eos!>", "<|im_end|>", "<|eot_id|>", "<x>", BPE_LETTERS[25])
    }


def test_texts_that_mean_something_else_in_some_models(tmp_path: Path) -> None:
    harmony = dict.fromkeys(["<eos!>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>"], CONTROL)
    assert ends(tmp_path, harmony) == {"<eos!>", "<|return|>", "<|call|>"}
    one = tokenizer(tmp_path, bpe_tables([], [], harmony))
    assert (one.piece(1), one.piece(2), one.piece(4)) == (b"<|end|>", b"", b"<|channel|>")
    gemma = dict.fromkeys(["<eos!>", "</s>", "<|tool_response>"], CONTROL)
    assert ends(tmp_path, gemma) == {"<eos!>", "<|tool_response>"}
    assert ends(tmp_path, {"<eos!>": CONTROL, "</s>": CONTROL}) == {"<eos!>", "</s>"}


def test_a_control_token_by_its_text_is_one_whatever_its_type_says(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, bpe_tables([], [], {"<|im_end|>": NORMAL, "<|fim_prefix|>": NORMAL, "<PRE>": NORMAL}))
    assert [one.piece(i) for i in range(3)] == [b"", b"", b"<PRE>"]
    assert parsed(one, "<|im_end|>") == ["<|im_end|>"]


# --- pieces ---------------------------------------------------------------------------------------------------------


def test_pieces_of_bpe(tmp_path: Path) -> None:
    special = {"<c>": CONTROL, "<ü ser>": USER_DEFINED, "unused": UNUSED, "<0x9F>": BYTE, "▁€": NORMAL}
    one = tokenizer(tmp_path, bpe_tables(["ĠÃ©"], ["a b"], special))
    euro = b"[UNK_BYTE_0xe2%s\xe2\x96\x81\xe2\x82\xac]"
    assert [one.piece(i) for i in range(4)] == [b"", "<ü ser>".encode(), b"", b"\x9f"]
    assert one.piece(4) == euro % b"9681" + euro % b"82ac"
    assert one.piece(one.vocab.n_vocab - 1) == " é".encode()
    assert b"".join(one.piece(i) for i in range(5, 261)) == bytes(range(256))


def test_pieces_of_spm(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, spm_tables({"▁a▁": 0.0}, {"▁<u>": USER_DEFINED}))
    n = one.vocab.n_vocab
    assert [one.piece(i) for i in (0, 1, 2)] == [b"", b"", b""]
    assert (one.piece(n - 2), one.piece(n - 1)) == ("▁<u>".encode(), b" a ")
    assert b"".join(one.piece(i) for i in range(3, 259)) == bytes(range(256))


@settings(max_examples=100)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_pieces_join_to_the_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for pre in ("gpt-2", "qwen2", "tekken", "deepseek-v3", "default"):
        one = _cached(tmp_path_factory, pre)
        assert b"".join(map(one.piece, one.encode(text, add_special=False, parse_special=False))) == text.encode()
    spm = _cached(tmp_path_factory, "spm")
    joined = b"".join(map(spm.piece, spm.encode(text, add_special=False, parse_special=False)))
    assert joined == (f" {text}" if text else "").replace("▁", " ").encode()


_CACHE: dict[str, GgufTokenizer] = {}


def _cached(factory: pytest.TempPathFactory, pre: str) -> GgufTokenizer:
    if pre not in _CACHE:
        tables = (
            spm_tables({"▁": -3.0, "▁a": -1.0, "a": -2.0})
            if pre == "spm"
            else {**bpe_tables(["ab"], ["a b"]), "pre": pre}
        )
        _CACHE[pre] = tokenizer(factory.mktemp("vocab"), tables)
    return _CACHE[pre]


def test_raw_texts(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, {**BPE, "tokens": ["a", "", "x\0y", "\udcff"], "token_type": None})
    assert one.texts(0, 9) == [b"a", b"[EMPTY_1]", b"x", b"\xff"]
    assert one.texts(2, 1) == [b"x"]
    assert one.piece(3) == b"[UNK_BYTE_0xefbfbd\xff]"
    assert plain(one, "a") == ["a"]


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "name", "words"),
    [
        (BPE, "model", "no tokenizer.ggml.model"),
        (BPE, "tokens", "no tokenizer.ggml.tokens"),
        (BPE, "merges", "no tokenizer.ggml.merges"),
        (SPM, "model", "no tokenizer.ggml.model"),
        (SPM, "tokens", "no tokenizer.ggml.tokens"),
    ],
)
def test_tables_that_cannot_be_missing(base: Tables, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=words):
        tokenizer(tmp_path, {**base, name: None})


def test_tables_that_can_be_missing(tmp_path: Path) -> None:
    """No types: every token is normal text. No scores: all are equal. No pre: "default"."""
    one = tokenizer(tmp_path, {**SPM, "token_type": None, "scores": None})
    assert one.piece(1) == b"<s>"
    assert one.piece(3) == b"<0x00>"
    assert plain(one, "abc") == ["▁ab", "c"]
    merged = {**bpe_tables(["12"], ["1 2"]), "pre": None}
    assert plain(tokenizer(tmp_path, merged), "12 = 121") == ["12", "Ġ", "=", "Ġ", "12", "1"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "bert"}, "has the tokenizer 'bert'"),
        ({"pre": "made-up"}, "tokenizer.ggml.pre is 'made-up'"),
        ({"tokens": ["a", "b", "a"]}, "tokens 0 and 2 have the same text 'a'"),
        ({"tokens": ["a", "x\0", "x"]}, "tokens 1 and 2 have the same text 'x'"),
        ({"tokens": []}, "no tokenizer.ggml.tokens"),
        ({"token_type": [1, 1]}, "token_type has 2 entries for 262 tokens"),
        ({"token_type": [BYTE] * 262}, "byte token 0 is '<|im_start|>', not <0xHH>"),
    ],
)
def test_damaged_tables(change: Tables, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=words):
        tokenizer(tmp_path, {**BPE, **change})


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("tokens", "array[int32]", [1]),
        ("token_type", "array[uint32]", [1] * 262),
        ("scores", "array[string]", ["x"]),
        ("merges", "string", "a b"),
        ("pre", "uint32", 1),
        ("bos_token_id", "int32", 1),
        ("add_bos_token", "uint32", 1),
    ],
)
def test_tables_of_the_wrong_type(name: str, kind: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"tokenizer.ggml.{name} is of type"):
        tokenizer(tmp_path, {**BPE, name: None}, key(f"tokenizer.ggml.{name}", kind, value))


def test_texts_that_cannot_be_tokenized(tmp_path: Path) -> None:
    def refusal(tables: Tables, text: str) -> str:
        with pytest.raises(RequestError) as caught:
            tokenizer(tmp_path, tables).encode(text, add_special=True, parse_special=True)
        return str(caught.value)

    assert "lone surrogate) at 1" in refusal(BPE, "a\ud800")
    assert "no vocabulary" in refusal({"model": "no_vocab"}, "a")
    no_bytes = {**SPM, "tokens": ["<unk>", "<s>", "</s>", "a"], "token_type": None, "scores": None}
    assert "no token for the byte 0xe2" in refusal(no_bytes, "a")  # the blank in front: ▁
    assert "names no such token" in refusal({**BPE, "pre": "glm4", "add_bos_token": True}, "a")


def test_a_model_without_vocabulary(tmp_path: Path) -> None:
    one = tokenizer(tmp_path, {"model": "none"}, key("llama.vocab_size", "uint32", 3))
    assert (one.vocab.type, one.vocab.n_vocab, one.piece(2), one.is_eog(2)) == ("none", 3, b"", False)
