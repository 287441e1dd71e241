"""Texts that tokenizers get wrong."""

from __future__ import annotations

import random
import unicodedata

TEXTS = [
    "",
    " ",
    "\n",
    "a",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "def fib(n: int) -> int:\n    if n < 2:\n        return n\n\treturn fib(n - 1) + fib(n - 2)  # twice\n",
    'for (int i = 0; i < 10; ++i) { printf("%d\\n", i); }\r\n\r\n',
    "SELECT * FROM `t` WHERE a != 'b' AND c >= 0x1F;\n-- end",
    '{"key": [1, 2.5e-3, null], "s": "\\u00e9"}',
    "It's we're they'll I'd you've don't I'm IT'S WE'RE THEY'LL 'tis o'clock ''s",
    "the user’s “curly” ‘quotes’ … and—dashes",
    "0 12 345 6789 1234567890 3.14159 1e-10 0xFF 1,234,567.89",
    "digits  1 in   23\t 456 runs\n 7\n\n 8 x9",
    "½ ² ³ Ⅷ ٣٤٥ १२३ 四五六",
    "$100 €50 £3 ¥9 50% #1 @user C++ C# a_b-c",
    "日本語のテキスト、中文文本。한국어 텍스트!",
    "漢字かなカナ漢字　全角ＡＢＣ１２３",
    "العربية: مرحبا بالعالم ١٢٣",
    "עברית שלום हिन्दी नमस्ते ไทย สวัสดี",
    "naïve façade Ünïcödé Ελληνικά Русский Łódź İstanbul ſ K",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 flag 🇩🇪🇫🇷 thumbs 👍🏽 plain 😀",
    "e\u0301\u0327 combining Z\u0351\u036b\u0343 zalgo",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𐐀 \U0010ffff \ue000",
    "\ufeffBOM \ufffd \u200b\u200d zero \u2060 width",
    "\x00\x01\x02\x1b[0m\x7f\x80\x9f",
    "   leading and trailing   ",
    "a  b   c    d     e      f",
    "tabs\tand\t\ttabs \t mixed\t ",
    "\n\n\n\nx\n \n  \n\t\n",
    "line\r\nline\rline\n\r\nend\r",
    "\u00a0nbsp\u3000ideographic\u2003em\u2028line\u2029par\u0085nel\u1680",
    " " * 40 + "x",
    "x" + " " * 40,
    "\n" * 12 + "\t" * 5,
    "a" * 120,
    "ab" * 40 + "=-" * 30 + "!" * 20,
    "_snake_case camelCase PascalCase SCREAMING_CASE kebab-case HTTPServer2Go",
    "https://example.com/path?query=1&x=%20#frag me@example.org C:\\dir\\file.txt",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|><|im_start|>",
    "before<|endoftext|>after <|endoftext|> <|im_end|>\n",
    "<|im_start|",
    "<|IM_START|> <| im_start |> < |im_end| >",
    "<s>[INST] <<SYS>> x <</SYS>> [/INST] </s> <unk> <0x0A> <pad>",
    "<|begin_of_text|><|eot_id|><|start_header_id|>x<|end_header_id|>",
    "\\n \\t \\\\ %s {} ${x} <br/> &amp;",
    "# Title\n\n- item\n- item\n\n```python\nprint('hi')\n```\n",
    "ⅠⅡⅢ ①② ㍿ ﷽ ﬁ ﬂ ㎏",
    "▁ ▁▁word▁",
]

_PIECES = [
    *("the", "don't", "I'LL", "'s", "'S", "'t", " 'd", "'RE", "’s", "'", "x", "é", "ß", "ſ", "İ", "Ω"),
    *("中文字符", "カタカナ", "한국어", "العربية", "עברית", "हिन्दी", "〇", "ゞ", "ァ", "𝔘", "𐐀"),
    *("👩‍👩‍👧‍👦", "🇩🇪", "🏳️‍🌈", "👍🏽", "e\u0301", "\u200d", "\ufffd", "\ufeff", "\ue000", "\U0010ffff", "\ud7ff"),
    *(
        "\u00a0",
        "\u3000",
        "\u2003",
        "\u0085",
        "\u2028",
        "\r\n",
        "\n",
        "\n\n",
        " ",
        "  ",
        "   ",
        "\t",
        "\t\t",
        "\v",
        "\x00",
    ),
    *("0", "12", "345", "6789", "٣٤", "½", "²", "Ⅷ", "1234567890" * 2, "\x7f", "_", "--", "!!!", "...", "(){}[]"),
    *("/*", "*/", "<|", "|>", "<0x0A>", "$", "€", "^", "`", "~", "=", "+=", "«»", "“”", "…", "。", "，", "▁", "\\n"),
    *("ABCdef", "camelCase", "UPPER", "ΑΒΓαβγ", "ДА", "да", "@user", "#tag", "def f(x):\n    return x"),
    *("a" * 30, " " * 17, "\n" * 5, "https://x.y/z?q=1&r=%20"),
]

_RANGES = [(0x20, 0x7F), (0xA0, 0x2000), (0x2000, 0xD800), (0xE000, 0x11000), (0x1F000, 0x1FB00), (0x20000, 0x2A000)]


def random_text(rng: random.Random, more: list[str]) -> str:
    """A dozen pieces and odd characters put together; `more`: pieces to mix in, e.g. special tokens."""

    def piece() -> str:
        if rng.random() < 0.9:
            return rng.choice(_PIECES + more)
        while not _is_old(character := chr(rng.randrange(*rng.choice(_RANGES)))):
            pass
        return character

    return "".join(piece() for _ in range(rng.randrange(1, 14)))


def _is_old(character: str) -> bool:
    """Assigned for so long that every table of characters knows it."""
    return unicodedata.ucd_3_2_0.category(character) != "Cn"
