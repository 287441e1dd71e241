r"""How a text is cut into words before BPE merges run inside them, by the name in `tokenizer.ggml.pre`.

Each pattern in turn splits every piece that the patterns before it left: a match is a piece, and so is what lies
between two matches. The patterns are in Oniguruma's syntax and give llama.cpp's splits, whose own engine is written by
hand in part. Known difference: Oniguruma knows the characters of Unicode 16, llama.cpp those of Unicode 15.0, so the
letters, digits and signs that came in between (some five thousand, nearly all of dead scripts) may split differently.

A name stands here only if its splits were compared with llama.cpp's; others are refused, because a wrong cut gives a
wrong prompt without any sign of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """patterns: applied in turn. ignore_merges: a word that is a token as it stands is not built by merges. add_bos:
    BOS is added unless the file says otherwise. default_bos: token 11 is BOS where the file names none."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    default_bos: bool = True


_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"

_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str, letter: str = r"\p{L}") -> str:
    """The pattern of the Llama 3 and Qwen families: contractions, letters behind at most one other sign, digits, signs
    with the line ends behind them, blanks."""
    letters = rf"[^\r\n\p{{L}}\p{{N}}]?[{letter}]+"
    return rf"{_CONTRACTION}|{letters}|{digits}| ?[^\s{letter}\p{{N}}]+[\r\n]*|{_TAIL}"


def _cased(digits: str, contraction: str) -> str:
    """The pattern of the o200k and Tekken families: a word is capitals, then small letters. As in llama.cpp, only
    ASCII letters have case."""
    upper, lower, head = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]", r"[^\r\n\p{L}\p{N}]?"
    words = f"{head}{upper}*{lower}+{contraction}|{head}{upper}+{lower}*{contraction}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"


_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3 = (
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}"
)

_FAMILIES: list[tuple[PreTokenizer, str]] = [
    (PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9]{3}")), "default"),
    (
        PreTokenizer((_GPT2,)),
        "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling",
    ),
    (
        PreTokenizer((r"\p{N}", _GPT2)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    ),
    (
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama-bpe llama-v3 llama3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe"),
    (PreTokenizer((_LLAMA3,), default_bos=False), "chatglm-bpe"),
    (PreTokenizer((_LLAMA3,), ignore_merges=True, default_bos=False), "glm4 glm5"),
    (
        PreTokenizer((_QWEN2,)),
        "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2 bailingmoe bailingmoe2 llada-moe",
    ),
    (PreTokenizer((_words(r"\p{N}", r"\p{L}\p{M}"),)), "qwen35"),
    (PreTokenizer((_cased(r"\p{N}", ""),), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((_cased(r"\p{N}{1,3}", f"(?:{_CONTRACTION})?"),)), "gpt-4o llama4 kanana2"),
    (
        # llama.cpp's engine never matches a blank beyond ASCII by a class that is written out
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[[一-龥ࠀ-一가-퟿]&&\S]+", r"\p{N}")),
        "deepseek-coder",
    ),
    (PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3)), "deepseek-v3 hunyuan-dense joyai-llm"),
    (PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9]{3}")), "falcon"),
    (PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True), "minicpm5"),
]

#: By name; an empty name (none in the file) means "default", as in llama.cpp.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: kind for kind, names in _FAMILIES for name in names.split()}
PRE_TOKENIZERS[""] = PRE_TOKENIZERS["default"]
