"""Tiny dense models as GGUF files.

    write_random(path, Tiny("qwen2"), seed=3)    random weights, real attention: a wrong cache shows in the logits
    write_lookup(path, table)                    the next token is looked up in a table: exact, and ignores the cache

The vocabulary is that of a llama model: <unk>, <s>, </s>, the 256 bytes from id 3 on, then words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]

UNKNOWN, BOS, EOS, FIRST_BYTE = 0, 1, 2, 3
N_VOCAB = 325


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Sizes are odd on purpose: no multiple of what a kernel takes at a time, and n_head · head is not n_embd."""

    architecture: str = "llama"
    n_vocab: int = N_VOCAB
    n_embd: int = 50
    n_layer: int = 2
    n_ff: int = 71
    n_head: int = 4
    n_kv: int = 2
    head: int = 18
    n_ctx: int = 512
    eps: float = 1e-5
    tied: bool = False
    bias: float = 0.0  # size of the biases; 0 = none, except where the architecture needs them
    rope_base: float = 10000.0
    rope_factor: float | None = None  # linear scaling
    rope_factors: bool = False  # the tensor rope_freqs.weight
    more: Mapping[str, object] = field(default_factory=dict)  # further keys under the architecture's prefix

    @property
    def biases(self) -> list[str]:
        names = ["attn_q", "attn_k", "attn_v"]
        if self.architecture == "llama":
            names += ["attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        return names if self.bias or self.architecture == "qwen2" else []


def random_tensors(tiny: Tiny, seed: int = 1) -> Tensors:
    """float32, in numpy order (rows first)."""
    rng = np.random.default_rng(seed)

    def matrix(n_out: int, n_in: int) -> NDArray[np.float32]:
        return (2 * rng.standard_normal((n_out, n_in)) / np.sqrt(n_in)).astype(np.float32)

    def norm(width: int) -> NDArray[np.float32]:
        return (1 + 0.2 * rng.standard_normal(width)).astype(np.float32)

    tensors = {"token_embd.weight": matrix(tiny.n_vocab, tiny.n_embd), "output_norm.weight": norm(tiny.n_embd)}
    if not tiny.tied:
        tensors["output.weight"] = matrix(tiny.n_vocab, tiny.n_embd)
    if tiny.rope_factors:
        tensors["rope_freqs.weight"] = np.linspace(1, 8, tiny.head // 2, dtype=np.float32)
    for i in range(tiny.n_layer):
        shapes = _matrix_shapes(tiny)
        block = {f"{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        block |= {
            f"{name}.bias": (tiny.bias * rng.standard_normal(shapes[name][0])).astype(np.float32)
            for name in tiny.biases
        }
        block |= {"attn_norm.weight": norm(tiny.n_embd), "ffn_norm.weight": norm(tiny.n_embd)}
        if tiny.architecture == "qwen3":
            block |= {"attn_q_norm.weight": 2 * norm(tiny.head), "attn_k_norm.weight": norm(tiny.head)}
        tensors |= {f"blk.{i}.{name}": values for name, values in block.items()}
    return tensors


def _matrix_shapes(tiny: Tiny) -> dict[str, tuple[int, int]]:
    n_embd, n_ff, width = tiny.n_embd, tiny.n_ff, tiny.n_head * tiny.head
    return {
        "attn_q": (width, n_embd),
        "attn_k": (tiny.n_kv * tiny.head, n_embd),
        "attn_v": (tiny.n_kv * tiny.head, n_embd),
        "attn_output": (n_embd, width),
        "ffn_gate": (n_ff, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }


def write_random(path: Path, tiny: Tiny | None = None, *, seed: int = 1) -> Path:
    tiny = tiny or Tiny()
    return write_tensors(path, tiny, random_tensors(tiny, seed))


def lookup_tensors(tiny: Tiny, table: NDArray[np.float32]) -> Tensors:
    """After token t the logits are table[t], up to rounding and `eps`.

    The embedding is one-hot and no layer adds anything, so the last norm makes it sqrt(n_embd) at t.
    """
    assert tiny.n_embd >= tiny.n_vocab == len(table)
    tensors = random_tensors(tiny)
    for name, values in tensors.items():
        if name.endswith("norm.weight"):
            tensors[name] = np.ones_like(values)
        elif "attn_output" in name or "ffn_down" in name:
            tensors[name] = np.zeros_like(values)
    tensors["token_embd.weight"] = np.eye(tiny.n_vocab, tiny.n_embd, dtype=np.float32)
    output = np.zeros((tiny.n_vocab, tiny.n_embd), np.float32)
    output[:, : tiny.n_vocab] = table.T / np.sqrt(tiny.n_embd)
    return tensors | {"output.weight": output}


def write_lookup(path: Path, table: NDArray[np.float32]) -> Path:
    """table: float32 [n_vocab, n_vocab], row t the logits after token t."""
    tiny = Tiny(n_vocab=len(table), n_embd=len(table), n_layer=1, n_ff=8, n_head=2, n_kv=1, head=8, eps=1e-12)
    return write_tensors(path, tiny, lookup_tensors(tiny, np.asarray(table, np.float32)))


def write_tensors(path: Path, tiny: Tiny, tensors: Tensors, *, types: Mapping[str, str] | None = None) -> Path:
    """A model of exactly these tensors, float32 except where `types` names another ggml type for a tensor."""
    writer = GGUFWriter(path, tiny.architecture)
    writer.add_name(f"tiny {tiny.architecture}")
    _add_params(writer, tiny)
    _add_vocabulary(writer, tiny.n_vocab)
    for name, values in tensors.items():
        kind = GGMLQuantizationType[(types or {}).get(name, "F32")]
        raw = values if kind == GGMLQuantizationType.F32 else quantize(values, kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_params(writer: GGUFWriter, tiny: Tiny) -> None:
    writer.add_context_length(tiny.n_ctx)
    writer.add_embedding_length(tiny.n_embd)
    writer.add_block_count(tiny.n_layer)
    writer.add_feed_forward_length(tiny.n_ff)
    writer.add_head_count(tiny.n_head)
    writer.add_head_count_kv(tiny.n_kv)
    writer.add_key_length(tiny.head)
    writer.add_value_length(tiny.head)
    writer.add_rope_dimension_count(tiny.head)
    writer.add_layer_norm_rms_eps(tiny.eps)
    writer.add_rope_freq_base(tiny.rope_base)
    if tiny.rope_factor is not None:
        writer.add_string(f"{tiny.architecture}.rope.scaling.type", "linear")
        writer.add_float32(f"{tiny.architecture}.rope.scaling.factor", tiny.rope_factor)
    for name, value in tiny.more.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(f"{tiny.architecture}.{name}", value)


def _add_vocabulary(writer: GGUFWriter, n_vocab: int) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    tokens += [f"[w{i}]" for i in range(len(tokens), n_vocab)]
    types += [TokenType.NORMAL] * (n_vocab - len(types))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens[:n_vocab])
    writer.add_token_scores([-float(i) for i in range(n_vocab)])
    writer.add_token_types(types[:n_vocab])
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
