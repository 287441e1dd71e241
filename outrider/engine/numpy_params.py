"""What a dense llama-like model is, from the metadata of its GGUF file.

Every key that would change the result is used or refused by name. Meanings and defaults are those of llama.cpp's loader
(`llama-model.cpp`, load_hparams).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider.engine.gguf_file import GgufFile
from outrider.engine.gguf_header import fail
from outrider.engine.rope import RopeParams
from outrider.errors import ConfigError

_USE_LLAMA = "use the llama engine"


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the supported families differ. Biases are named by their projection, e.g. "attn_q"."""

    neox_rope: bool
    qk_norms: bool = False
    needed_biases: tuple[str, ...] = ()
    optional_biases: tuple[str, ...] = ()
    output_bias: bool = False
    rope_factors: bool = False


_QKV = ("attn_q", "attn_k", "attn_v")

#: llama's files have the rows of q and k permuted, so that rotary pairs are neighbours; Qwen's have not.
ARCHITECTURES = {
    "llama": Architecture(
        neox_rope=False,
        optional_biases=(*_QKV, "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        rope_factors=True,
    ),
    "qwen2": Architecture(neox_rope=True, needed_biases=_QKV, output_bias=True),
    "qwen3": Architecture(neox_rope=True, qk_norms=True, optional_biases=_QKV),
}

#: Keys for features that we do not have, with the values at which they do nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_scale": (0,),
    "attention.value_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "final_logit_softcapping": (0,),
    "full_attention_interval": (0, 1),
    "hidden_activation": ("silu", "swiglu"),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "num_loops": (0, 1),
    "residual_scale": (0, 1),
    "rope.dimension_sections": (),
    "rope.scaling.alpha": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (0, 1),
    "swin_norm": (False,),
    "use_parallel_residual": (False,),
}


@dataclass(frozen=True, slots=True)
class ModelParams:
    """n_head query heads and n_kv key heads of `head` values each; n_ff is the feed-forward width."""

    architecture: Architecture
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv: int
    head: int
    eps: float
    n_ctx_train: int
    sliding_window: int  # 0 = none
    rope: RopeParams


def read_params(file: GgufFile) -> ModelParams:
    """Raises ModelFileError naming the key that is missing, out of range or not supported."""
    architecture = ARCHITECTURES.get(file.architecture)
    if architecture is None:
        fail(
            file.path,
            f"general.architecture {file.architecture!r} is not one of {', '.join(ARCHITECTURES)}",
            _USE_LLAMA,
        )
    keys = _Keys(file)
    keys.refuse_unsupported()
    n_embd, n_head = keys.count("embedding_length"), keys.count("attention.head_count")
    n_kv = keys.count("attention.head_count_kv", n_head)
    if n_head % n_kv:
        keys.fail("attention.head_count", f"{n_head} is no multiple of attention.head_count_kv, {n_kv}")
    head = keys.count("attention.key_length", n_embd // n_head)
    if keys.count("attention.value_length", n_embd // n_head) != head:
        keys.fail("attention.value_length", f"differs from attention.key_length, {head}", _USE_LLAMA)
    return ModelParams(
        architecture=architecture,
        n_layer=keys.count("block_count"),
        n_embd=n_embd,
        n_ff=keys.count("feed_forward_length"),
        n_head=n_head,
        n_kv=n_kv,
        head=head,
        eps=keys.number("attention.layer_norm_rms_epsilon"),
        n_ctx_train=keys.count("context_length"),
        sliding_window=keys.count("attention.sliding_window", 0),
        rope=_rope(keys, architecture, head),
    )


def context_length(params: ModelParams, n_ctx: int, file: GgufFile) -> int:
    """`n_ctx`, or the model's own length for 0.

    Raises ConfigError if that is more than the model was trained for, ModelFileError if its sliding window is shorter.
    """
    n_ctx = n_ctx or params.n_ctx_train
    if n_ctx > params.n_ctx_train:
        raise ConfigError(
            f"n_ctx = {n_ctx} is more than the {params.n_ctx_train} positions that {file.path} was trained for; "
            f"use at most {params.n_ctx_train}"
        )
    if 0 < params.sliding_window < n_ctx:
        key = f"{file.architecture}.attention.sliding_window"
        fail(
            file.path,
            f"{key} = {params.sliding_window} is shorter than n_ctx = {n_ctx}, and sliding windows are not supported",
            f"use n_ctx = {params.sliding_window} at most, or the llama engine",
        )
    return n_ctx


def _rope(keys: _Keys, architecture: Architecture, head: int) -> RopeParams:
    n_rot = keys.count("rope.dimension_count", head)
    if n_rot % 2 or n_rot > head:
        keys.fail("rope.dimension_count", f"{n_rot} is odd or more than the head size, {head}")
    kind = keys.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        keys.fail("rope.scaling.type", f"{kind!r} is not supported", _USE_LLAMA)
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0))
    return RopeParams(
        n_rot=n_rot,
        base=keys.number("rope.freq_base", 10000.0),
        scale=1.0 / factor if kind == "linear" and factor else 1.0,
        neox=architecture.neox_rope,
    )


class _Keys:
    """The metadata under the architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def get(self, name: str, default: object = None) -> object:
        return self._file.metadata.get(f"{self._file.architecture}.{name}", default)

    def fail(self, name: str, what: str, advice: str = "convert the model again") -> None:
        fail(self._file.path, f"{self._file.architecture}.{name} {what}", advice)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number, at least 1 unless it is the default."""
        value = self.get(name, default)
        if value == default and default is not None:
            return default
        if isinstance(value, list):
            self.fail(name, "is given for each layer, which is not supported", _USE_LLAMA)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.fail(name, "is missing" if value is None else f"is {value!r}, not a whole number from 1")
        assert isinstance(value, int)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number, positive unless it is the default."""
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(name, "is missing" if value is None else f"is {value!r}, not a number")
        assert isinstance(value, int | float)
        if value != default and not (math.isfinite(value) and value > 0):
            self.fail(name, f"is {value!r}, not a finite number above 0")
        return float(value)

    def refuse_unsupported(self) -> None:
        for name, neutral in _NEUTRAL.items():
            value = self.get(name)
            if value is not None and value not in neutral:
                self.fail(name, f"= {value!r} is not supported", _USE_LLAMA)
