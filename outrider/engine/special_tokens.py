"""Which tokens are more than text: BOS, EOS, the ends of a generation, control and user-defined tokens.

Files seldom say all of it, so llama.cpp recognises tokens by their texts too; the same texts are recognised here.
Source: the second half of `llama_vocab::impl::load` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.engine.gguf_file import GgufFile

#: Token types of the format.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

#: Tokens that end a generation wherever a vocabulary has them.
_END_TEXTS = """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[
"""

#: Fill-in-the-middle tokens: keys (the first wins), texts looked for where the key is absent, does it end a generation?
_FILL_IN = [
    (
        ("prefix", "fim_pre"),
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
        False,
    ),
    (
        ("suffix", "fim_suf"),
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
        False,
    ),
    (
        ("middle", "fim_mid"),
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
        False,
    ),
    (("fim_pad",), "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]", True),
    (("fim_rep",), "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>", True),
    (("fim_sep",), "<|file_sep|>", True),
]

#: Control tokens of the Harmony format that stay visible in the text.
_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True, slots=True)
class Special:
    """bos, eos: -1 where there is none. ends: ids that end a generation. types: token type by id, repaired. listed: ids
    that are looked for in a text before anything else, in that order. eats_blanks: ids after which blanks vanish."""

    bos: int
    eos: int
    ends: frozenset[int]
    types: Sequence[int]
    listed: Sequence[int]
    eats_blanks: frozenset[int]

    @staticmethod
    def none() -> Special:
        return Special(-1, -1, frozenset(), (), (), frozenset())


def resolve_specials(
    file: GgufFile, texts: Sequence[str], ids: Mapping[str, int], types: Sequence[int], bos: int, eos: int
) -> Special:
    """Special tokens of a vocabulary; bos, eos: the defaults of its kind."""
    repaired = list(types)
    eos = _special_id(file, "eos", len(texts), eos)
    ends = _fill_in_tokens(file, ids, repaired) | _end_tokens(file, ids, repaired, eos)
    _exceptions(ids, ends, repaired)
    listed = [i for i, type_ in enumerate(repaired[: len(texts)]) if type_ in (CONTROL, USER_DEFINED, UNKNOWN)]
    listed.sort(key=lambda i: -len(texts[i].encode("utf-8", "surrogateescape")))
    return Special(
        bos=_special_id(file, "bos", len(texts), bos),
        eos=eos,
        ends=frozenset(ends),
        types=repaired,
        listed=listed,
        eats_blanks=_eats_blanks(file, ids, listed),
    )


def _special_id(file: GgufFile, name: str, n_tokens: int, default: int) -> int:
    """An id outside the vocabulary counts as absent, the default's too."""
    value = file.get(f"tokenizer.ggml.{name}_token_id", "uint32")
    for candidate in (value, default):
        if isinstance(candidate, int) and 0 <= candidate < n_tokens:
            return candidate
    return -1


def _fill_in_tokens(file: GgufFile, ids: Mapping[str, int], types: list[int]) -> set[int]:
    """The fill-in-the-middle tokens that end a generation. One found by its text becomes a control token; of several
    such texts llama.cpp takes any, we the lowest id."""
    ends = set()
    for names, texts, is_end in _FILL_IN:
        token = next((i for name in names if (i := _special_id(file, name, len(ids), -1)) >= 0), -1)
        if token < 0:
            token = min((ids[text] for text in texts.split() if text in ids), default=-1)
            if token >= 0:
                types[token] = CONTROL
        if is_end and token >= 0:
            ends.add(token)
    return ends


def _end_tokens(file: GgufFile, ids: Mapping[str, int], types: list[int], eos: int) -> set[int]:
    ends = {ids[text] for text in _END_TEXTS.split() if text in ids}
    for token in ends:
        types[token] = CONTROL
    for text in _HARMONY:
        if text in ids:
            types[ids[text]] = USER_DEFINED
    named = {eos} | {_special_id(file, name, len(ids), -1) for name in ("eot", "eom")}
    return ends | (named - {-1})


def _exceptions(ids: Mapping[str, int], ends: set[int], types: list[int]) -> None:
    """Models in which a text of the list above means something else."""

    def ending(*texts: str) -> bool:
        return any(ids.get(text, -1) in ends for text in texts)

    if ending("<|end|>") and ending("<|call|>", "<|calls|>") and ending("<|return|>", "<|flush|>"):
        ends.discard(ids["<|end|>"])
        types[ids["<|end|>"]] = USER_DEFINED
    if ending("</s>") and ending("<|tool_response>", "<|plamo:eos|>"):
        ends.discard(ids["</s>"])
        types[ids["</s>"]] = NORMAL


def _eats_blanks(file: GgufFile, ids: Mapping[str, int], listed: Sequence[int]) -> frozenset[int]:
    """Phi-3 alone, known by its name: the file format has no place for this."""
    name = str(file.metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    kept = {ids.get(text, -1) for text in ("<unk>", "<s>", "<|endoftext|>")}
    return frozenset({*listed, ids.get("</s>", -1)} - kept - {-1})
