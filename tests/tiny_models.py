"""Tiny random models of every kind of memory that llama.cpp has, as GGUF files.

    write_mamba(path)     recurrent: a state, no rows
    write_lfm2(path)      hybrid: short convolutions (recurrent) and attention; has snapshots
    write_gemma3(path)    attention with a window of 16 in one layer of two

The weights are random from `seed`, float32; the vocabulary has the 256 bytes, three control tokens and padding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

N_VOCAB = 320
BOS, EOS, UNKNOWN = 256, 257, 258
WINDOW = 16
_N_CTX = 2048


class _Weights:
    """Adds random tensors; `shape` in numpy order."""

    def __init__(self, writer: GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._rng = np.random.default_rng(seed)

    def random(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> None:
        values = mean + scale * self._rng.standard_normal(shape) / np.sqrt(shape[-1])
        self._writer.add_tensor(name, values.astype(np.float32))

    def ones(self, name: str, *shape: int) -> None:
        self._writer.add_tensor(name, np.ones(shape, np.float32))

    def exact(self, name: str, values: np.ndarray) -> None:
        self._writer.add_tensor(name, values.astype(np.float32))


def _vocabulary(writer: GGUFWriter) -> None:
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + ["<s>", "</s>", "<unk>"]
    types = [TokenType.BYTE] * 256 + [TokenType.CONTROL, TokenType.CONTROL, TokenType.UNKNOWN]
    tokens += [f"[w{i}]" for i in range(len(tokens), N_VOCAB)]
    types += [TokenType.NORMAL] * (N_VOCAB - len(types))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(N_VOCAB)])
    writer.add_token_types(types)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(UNKNOWN)


def _write(path: Path, architecture: str, seed: int, fill: Callable[[GGUFWriter, _Weights], None]) -> Path:
    writer = GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(_N_CTX)
    _vocabulary(writer)
    fill(writer, _Weights(writer, seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_mamba(path: Path, *, seed: int = 1, n_layers: int = 2) -> Path:
    n_embd, d_state, d_conv, dt_rank = 32, 8, 4, 4
    d_inner = 2 * n_embd

    def fill(writer: GGUFWriter, add: _Weights) -> None:
        writer.add_embedding_length(n_embd)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_block_count(n_layers)
        writer.add_ssm_conv_kernel(d_conv)
        writer.add_ssm_inner_size(d_inner)
        writer.add_ssm_state_size(d_state)
        writer.add_ssm_time_step_rank(dt_rank)
        writer.add_layer_norm_rms_eps(1e-5)
        add.random("token_embd.weight", N_VOCAB, n_embd, scale=4.0)
        add.ones("output_norm.weight", n_embd)
        add.random("output.weight", N_VOCAB, n_embd, scale=4.0)
        for i in range(n_layers):
            add.ones(f"blk.{i}.attn_norm.weight", n_embd)
            add.random(f"blk.{i}.ssm_in.weight", 2 * d_inner, n_embd)
            add.random(f"blk.{i}.ssm_conv1d.weight", d_inner, d_conv)
            add.random(f"blk.{i}.ssm_conv1d.bias", d_inner)
            add.random(f"blk.{i}.ssm_x.weight", dt_rank + 2 * d_state, d_inner)
            add.random(f"blk.{i}.ssm_dt.weight", d_inner, dt_rank)
            add.random(f"blk.{i}.ssm_dt.bias", d_inner)
            decay = np.broadcast_to(-np.arange(1, d_state + 1), (d_inner, d_state))
            add.exact(f"blk.{i}.ssm_a", decay)
            add.ones(f"blk.{i}.ssm_d", d_inner)
            add.random(f"blk.{i}.ssm_out.weight", n_embd, d_inner)

    return _write(path, "mamba", seed, fill)


def write_lfm2(path: Path, *, seed: int = 1, n_layers: int = 2) -> Path:
    """Even layers are short convolutions, odd ones attention."""
    n_embd, n_head, n_ff, l_cache = 64, 2, 96, 3

    def fill(writer: GGUFWriter, add: _Weights) -> None:
        writer.add_embedding_length(n_embd)
        writer.add_feed_forward_length(n_ff)
        writer.add_block_count(n_layers)
        writer.add_head_count(n_head)
        writer.add_head_count_kv([n_head * (i % 2) for i in range(n_layers)])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_vocab_size(N_VOCAB)
        writer.add_shortconv_l_cache(l_cache)
        add.random("token_embd.weight", N_VOCAB, n_embd, scale=4.0)
        add.ones("token_embd_norm.weight", n_embd)
        for i in range(n_layers):
            add.ones(f"blk.{i}.attn_norm.weight", n_embd)
            if i % 2:
                _attention(add, i, n_embd, n_head, n_embd // n_head)
            else:
                add.random(f"blk.{i}.shortconv.conv.weight", n_embd, l_cache)
                add.random(f"blk.{i}.shortconv.in_proj.weight", 3 * n_embd, n_embd)
                add.random(f"blk.{i}.shortconv.out_proj.weight", n_embd, n_embd)
            _feed_forward(add, i, n_embd, n_ff)

    return _write(path, "lfm2", seed, fill)


def write_gemma3(path: Path, *, seed: int = 1, n_layers: int = 2, window: int = WINDOW) -> Path:
    """Every other layer attends to the last `window` rows only."""
    n_embd, n_head, head_dim, n_ff = 64, 2, 32, 96

    def fill(writer: GGUFWriter, add: _Weights) -> None:
        writer.add_embedding_length(n_embd)
        writer.add_feed_forward_length(n_ff)
        writer.add_block_count(n_layers)
        writer.add_head_count(n_head)
        writer.add_head_count_kv(n_head)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10000.0)
        writer.add_sliding_window(window)
        writer.add_sliding_window_pattern(2)
        add.random("token_embd.weight", N_VOCAB, n_embd, scale=4.0)
        add.ones("output_norm.weight", n_embd)
        for i in range(n_layers):
            add.ones(f"blk.{i}.attn_norm.weight", n_embd)
            _attention(add, i, n_embd, n_head, head_dim)
            add.ones(f"blk.{i}.post_attention_norm.weight", n_embd)
            _feed_forward(add, i, n_embd, n_ff)
            add.ones(f"blk.{i}.post_ffw_norm.weight", n_embd)

    return _write(path, "gemma3", seed, fill)


def _attention(add: _Weights, i: int, n_embd: int, n_head: int, head_dim: int) -> None:
    """Queries and keys are normalised, so `scale` of their norms sets how sharp the attention is."""
    for name in ("attn_q", "attn_k", "attn_v"):
        add.random(f"blk.{i}.{name}.weight", n_head * head_dim, n_embd)
    add.random(f"blk.{i}.attn_output.weight", n_embd, n_head * head_dim)
    add.exact(f"blk.{i}.attn_q_norm.weight", np.full(head_dim, 2.0))
    add.ones(f"blk.{i}.attn_k_norm.weight", head_dim)


def _feed_forward(add: _Weights, i: int, n_embd: int, n_ff: int) -> None:
    add.ones(f"blk.{i}.ffn_norm.weight", n_embd)
    add.random(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
    add.random(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
    add.random(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
