"""May this draft be used with this target? The pairs of files are made from the recorded descriptions.

Each side: type "spm", "bpe" or "none", n_vocab, add_bos, bos, add_eos, eos (null: the key is left out), text (by id),
score_shift, ttype (by id). What our loader resolves is held against what llama.cpp's reported, too.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from outrider.decoding.vocab import find_mismatch
from outrider.engine.gguf_file import open_gguf
from outrider.engine.tokenizer import GgufTokenizer
from tests.gguf_bytes import ARCH, byte_letters, gguf, key

_TYPE_IDS = {"none": 0, "spm": 1, "bpe": 2}
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def check(path: Path, data: dict[str, Any]) -> list[str]:
    """Differences between the recorded verdict and ours; empty = match."""
    verdict = data["verdict"]
    target, draft = load(data["tgt"]), load(data["dft"])
    failed = find_mismatch(target.vocab, draft.vocab, target.texts, draft.texts)
    if verdict.get("crashed"):
        return [] if failed else [f"{path.name}: llama.cpp aborts, ours passes"]
    recorded = {"reason": verdict["reason"], "token_id": verdict.get("token_id")}
    ours = {"reason": failed and failed.check, "token_id": failed and failed.token_id}
    differences = [] if ours == recorded else [f"{path.name}: ours {ours}, recorded {recorded}"]
    for side, tokenizer in (("tgt", target), ("dft", draft)):
        seen = verdict.get("seen", {}).get(side)
        if seen is not None and seen != seen_facts(tokenizer):
            differences.append(f"{path.name}: {side}: loaded as {seen_facts(tokenizer)}, recorded {seen}")
    return differences


def seen_facts(tokenizer: GgufTokenizer) -> dict[str, Any]:
    """The facts of a loaded vocabulary under the recorded names."""
    facts = tokenizer.vocab
    return {
        "add_bos": facts.add_bos,
        "add_eos": facts.add_eos,
        "bos": facts.bos,
        "eos": facts.eos,
        "n_tokens": facts.n_vocab,
        "vocab_type": _TYPE_IDS[facts.type],
    }


def load(side: dict[str, Any]) -> GgufTokenizer:
    with TemporaryDirectory() as folder:
        path = Path(folder, "vocab.gguf")
        path.write_bytes(file_bytes(side))
        return GgufTokenizer(open_gguf(path))


def file_bytes(side: dict[str, Any]) -> bytes:
    """A vocabulary-only file of the described vocabulary."""
    keys = [key(ARCH, "string", "llama"), key("llama.vocab_size", "uint32", side["n_vocab"])]
    if side["type"] == "none":
        return gguf([*keys, key("tokenizer.ggml.model", "string", "no_vocab")])
    keys.append(key("tokenizer.ggml.model", "string", "llama" if side["type"] == "spm" else "gpt2"))
    keys.append(key("tokenizer.ggml.tokens", "array[string]", texts(side)))
    keys.append(key("tokenizer.ggml.token_type", "array[int32]", types(side)))
    if side["type"] == "spm":
        scores = [(side.get("score_shift") or 0.0) - i for i in range(side["n_vocab"])]
        keys.append(key("tokenizer.ggml.scores", "array[float32]", scores))
    else:
        keys.append(key("tokenizer.ggml.pre", "string", "gpt-2"))
        keys.append(key("tokenizer.ggml.merges", "array[string]", ["a b"]))
    for name, kind in (
        ("bos_token_id", "uint32"),
        ("eos_token_id", "uint32"),
        ("add_bos_token", "bool"),
        ("add_eos_token", "bool"),
    ):
        value = side[name.removesuffix("_token_id").removesuffix("_token")]
        if value is not None:
            keys.append(key(f"tokenizer.ggml.{name}", kind, value))
    return gguf(keys)


def texts(side: dict[str, Any]) -> list[str]:
    """Three special tokens, 256 bytes, then words; for "bpe" the first word is the one merge."""
    spm = side["type"] == "spm"
    found = ["<unk>", "<s>", "</s>", *([f"<0x{byte:02X}>" for byte in range(256)] if spm else byte_letters())]
    found += [f"▁w{i}" if spm else "ab" if i == 259 else f"w{i}" for i in range(len(found), side["n_vocab"])]
    for token, text in (side.get("text") or {}).items():
        found[int(token)] = text
    return found[: side["n_vocab"]]


def types(side: dict[str, Any]) -> list[int]:
    found = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE if side["type"] == "spm" else _NORMAL] * 256
    found += [_NORMAL] * side["n_vocab"]
    for token in side.get("text") or {}:
        if int(token) > 2:
            found[int(token)] = _NORMAL
    for token, type_ in (side.get("ttype") or {}).items():
        found[int(token)] = type_
    return found[: side["n_vocab"]]
