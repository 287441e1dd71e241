"""A tiny pair of models with random weights, in place of those that the tests would download.

The vocabulary has whole words, so that the prompts of the tests fit their contexts, and the models say nothing but words:
the output rows of all other tokens are zero. None of the words that a test forbids, or looks for as the text of a real
model, is among them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

from tests.tiny_gguf import Tensors, Tiny, _add_params, random_tensors

WORDS = """
Hello World Once upon time boy dog cat house tree sun moon water friend happy small long story day night good mother father
play played went saw said where when red green yellow song sing walk walked park ball toy love loved found look looked smile
smiled run ran jump jumps quick brown fox over lazy meaning life believe capital France Write joke about AI from prompt
which will not truncated This 1 2 3 4 5 6 7 8 9 0 Book Hey best What system user assistant music lyrics
""".split()  # noqa: SIM905
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|im_start|>", "<|im_end|>")
_BLANK = "▁"


def vocabulary() -> tuple[list[str], list[TokenType], range]:
    """Texts, types, and the ids of the words. A word is merged letter by letter, so its beginnings are tokens too."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    words = [_BLANK + word for word in WORDS]
    parts = [chr(code) for code in range(33, 127)] + [_BLANK, "\n"]
    parts += [word[:n] for word in words for n in range(2, len(word))]
    beginnings = [part for part in dict.fromkeys(parts) if part not in words]
    texts += _SPECIAL
    types += [TokenType.CONTROL] * len(_SPECIAL)
    texts += beginnings
    first = len(texts)
    texts += words
    types += [TokenType.NORMAL] * (len(beginnings) + len(words))
    return texts, types, range(first, len(texts))


def write_pair(folder: Path, draft_path: Path) -> Path:
    """The target's path. The draft has one layer less and is otherwise the target with some noise: it often agrees."""
    texts, types, words = vocabulary()
    tiny = Tiny(n_vocab=len(texts), n_embd=48, n_ff=64, n_head=4, n_kv=2, head=12, n_layer=2, n_ctx=4096)
    tensors = _words_only(random_tensors(tiny, seed=7), words)
    target = folder / "tiny-target.gguf"
    _write(target, tiny, tensors, texts, types)
    rng = np.random.default_rng(8)
    noisy = {
        name: values + (0.05 * values.std() * rng.standard_normal(values.shape)).astype(np.float32)
        for name, values in tensors.items()
    }
    _write(draft_path, tiny, _words_only(noisy, words), texts, types)
    return target


def _words_only(tensors: Tensors, words: range) -> Tensors:
    output = np.zeros_like(tensors["output.weight"])
    output[words.start : words.stop] = tensors["output.weight"][words.start : words.stop]
    return tensors | {"output.weight": output}


def _write(path: Path, tiny: Tiny, tensors: Tensors, texts: list[str], types: list[TokenType]) -> None:
    writer = GGUFWriter(path, tiny.architecture)
    writer.add_name("tiny peer")
    _add_params(writer, tiny)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores([-float(i) for i in range(len(texts))])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
