"""Metadata on which llama.cpp aborts the process instead of refusing the file, refused here.

Found in the assertions of its loader (the limits are those of its fixed arrays) and by changing the numbers of tiny
models one at a time.
"""

from __future__ import annotations

import math
import re

from outrider.engine.gguf_header import Header, fail
from outrider.engine.options import FLOAT_CACHE_TYPES, EngineOptions
from outrider.errors import ConfigError

MAX_LAYERS = 512
MAX_EXPERTS = 1024
MAX_WINDOW = 1 << 30
CACHE_BLOCK = 32  # numbers per block of every quantised type of cache

_BLOCK = re.compile(r"blk\.(\d+)\.")
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


#: Layers without heads and without a feed-forward part have no tensors.
_WITH_EMPTY_LAYERS = ("deci",)


def check_metadata(header: Header) -> None:
    """Raise ModelFileError for the first value that would abort."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        fail(header.path, "general.architecture is missing or no text", "convert the model again")
    _check_layers(header, architecture)
    _check_experts(header, architecture)
    _check_epsilons(header, architecture)
    window = f"{architecture}.attention.sliding_window"
    _check(header, window, _number(header, window, 0), 0, MAX_WINDOW)
    scaling = header.metadata.get(f"{architecture}.rope.scaling.type", "linear")
    if scaling not in _ROPE_SCALINGS:
        known = ", ".join(_ROPE_SCALINGS)
        fail(header.path, f"{architecture}.rope.scaling.type is {scaling!r}, not one of {known}", "convert it again")


def check_cache_types(header: Header, options: EngineOptions) -> None:
    """Raise ConfigError if keys or values of this model cannot be stored in the blocks of a quantised type."""
    architecture = header.metadata.get("general.architecture")
    n_heads = _number(header, f"{architecture}.attention.head_count", 0)
    shared = _number(header, f"{architecture}.embedding_length", 0) // n_heads if n_heads else 0
    for name, cache_type, key in (
        ("cache_type_k", options.cache_type_k, "key_length"),
        ("cache_type_v", options.cache_type_v, "value_length"),
    ):
        width = _number(header, f"{architecture}.attention.{key}", shared)
        if cache_type not in FLOAT_CACHE_TYPES and width % CACHE_BLOCK:
            raise ConfigError(
                f"{name} = {cache_type!r} stores blocks of {CACHE_BLOCK} numbers, the heads of {header.path} have "
                f"{width}; use one of {', '.join(FLOAT_CACHE_TYPES)}"
            )


def short_rope_limit(header: Header, n_ctx_train: int) -> int:
    """Up to so many cells of a sequence llama.cpp takes the factors of position for short contexts; 0: there is one kind."""
    if "rope_factors_long.weight" not in header.tensors:
        return 0
    key = f"{header.metadata['general.architecture']}.rope.scaling.original_context_length"
    value = header.metadata.get(key)
    return value if isinstance(value, int) and value > 0 else n_ctx_train


def _number(header: Header, key: str, default: int) -> int:
    """The largest value of a key that is a whole number, or one per layer."""
    value = header.metadata.get(key, default)
    values = value if isinstance(value, list) else [value]
    numbers = [item for item in values if isinstance(item, int)]
    if not numbers or len(numbers) != len(values):
        fail(header.path, f"{key} is {value!r}, not a whole number", "convert the model again")
    return max(numbers)


def _check(header: Header, key: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        fail(header.path, f"{key} is {value}, not in {low}..{high}")


def _check_layers(header: Header, architecture: str) -> None:
    key = f"{architecture}.block_count"
    if key not in header.metadata:
        return  # llama.cpp says so itself
    n_layers = _number(header, key, 0)
    _check(header, key, n_layers, 1, MAX_LAYERS)
    numbers = {int(found[1]) for name in header.tensors if (found := _BLOCK.match(name))}
    if numbers and max(numbers) >= n_layers:
        fail(header.path, f"{key} is {n_layers}, but there are tensors of block {max(numbers)}")
    may_be_empty = architecture in _WITH_EMPTY_LAYERS or "split.count" in header.metadata
    if numbers and not may_be_empty and len(numbers) < n_layers:
        missing = next(number for number in range(n_layers) if number not in numbers)
        fail(header.path, f"{key} is {n_layers}, but there is no tensor of block {missing}")
    key = f"{architecture}.nextn_predict_layers"
    _check(header, key, _number(header, key, 0), 0, n_layers)


def _check_experts(header: Header, architecture: str) -> None:
    key = f"{architecture}.expert_count"
    n_experts = _number(header, key, 0)
    _check(header, key, n_experts, 0, MAX_EXPERTS)
    used = f"{architecture}.expert_used_count"
    _check(header, used, _number(header, used, 0), min(n_experts, 1), n_experts)
    groups = f"{architecture}.expert_group_count"
    n_groups = _number(header, groups, 0)
    _check(header, groups, n_groups, 0, max(n_experts - 1, 0))
    if n_groups > 1:
        if n_experts % n_groups:
            fail(header.path, f"{key} is {n_experts}, no multiple of {groups}, which is {n_groups}")
        used = f"{architecture}.expert_group_used_count"
        _check(header, used, _number(header, used, 0), 1, n_groups - 1)


def _check_epsilons(header: Header, architecture: str) -> None:
    for name in ("layer_norm_epsilon", "layer_norm_rms_epsilon"):
        key = f"{architecture}.attention.{name}"
        value = header.metadata.get(key, 0.0)
        if not isinstance(value, float) or not math.isfinite(value) or value < 0:
            fail(header.path, f"{key} is {value!r}, not a small positive number")
