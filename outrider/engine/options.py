"""What can be asked of an engine, and which engine can do it. Names are llama.cpp's."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from outrider.errors import ConfigError
from outrider.types import MAX_TOKENS

EngineKind = Literal["auto", "llama", "numpy", "scripted", "simulated"]

#: Engines that read no file: the "path" of a model is what the engine is told to do.
FILELESS = ("scripted", "simulated")

#: Types of cached keys and values, and their numbers in the GGUF format.
CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "iq4_nl": 20,
    "q5_0": 6,
    "q5_1": 7,
}
FLOAT_CACHE_TYPES = ("f32", "f16", "bf16")
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}

#: The most sequences that llama.cpp keeps apart.
MAX_SEQ = 256
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Defaults are llama.cpp's own, `n_batch` (2048 there), the thread counts (4 there) and flash attention on a CPU
    (`llama_engine.flash_attention`) excepted.

    Raises ConfigError, naming the option, its value and what is allowed.
    """

    n_ctx: int = 4096  # positions per sequence; 0 = as many as the model was trained for
    n_batch: int = 512  # rows per decode
    n_ubatch: int = 512  # rows that are computed at a time
    n_seq: int = 1  # sequences
    n_branches: int = 0  # further ones, which hold few rows that are not those of the sequence they were copied from
    n_threads: int | None = None  # for one row; None = every core that this process may use
    n_threads_batch: int | None = None  # for more rows; None = n_threads
    n_gpu_layers: int | None = None  # None = all of them, where there is a GPU
    devices: str | None = None  # names with commas between, or "none"; None = every GPU
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    use_mmap: bool = True
    mlock: bool = False
    n_rs_seq: int = 0  # recurrent states kept per sequence, to drop as many rows without a checkpoint
    checkpoint_only: bool = False  # behave like a memory that cannot drop a suffix

    def __post_init__(self) -> None:
        _check_range("n_ctx", self.n_ctx, 0, MAX_TOKENS)
        _check_range("n_batch", self.n_batch, 1, MAX_TOKENS)
        _check_range("n_ubatch", self.n_ubatch, 1, MAX_TOKENS)
        _check_range("n_seq", self.n_seq, 1, MAX_SEQ)
        _check_range("n_branches", self.n_branches, 0, MAX_SEQ)
        _check_range("n_threads", self.n_threads, 1, MAX_THREADS)
        _check_range("n_threads_batch", self.n_threads_batch, 1, MAX_THREADS)
        _check_range("n_gpu_layers", self.n_gpu_layers, 0, 2**31 - 1)
        _check_range("n_rs_seq", self.n_rs_seq, 0, 4096)
        _check_choice("cache_type_k", self.cache_type_k, CACHE_TYPES)
        _check_choice("cache_type_v", self.cache_type_v, CACHE_TYPES)
        _check_choice("flash_attn", self.flash_attn, FLASH_ATTN)
        if self.flash_attn == "off" and self.cache_type_v not in FLOAT_CACHE_TYPES:
            raise ConfigError(
                f"cache_type_v = {self.cache_type_v!r} needs flash attention, and flash_attn is off; "
                f"switch it on or use one of {', '.join(FLOAT_CACHE_TYPES)}"
            )


def _check_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{name} = {value} is not in {low}..{high}")


def _check_choice(name: str, value: str, choices: dict[str, int]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} = {value!r} is unknown; use one of {', '.join(choices)}")


def refuse_unsupported(options: EngineOptions, kind: str, supported: tuple[str, ...]) -> None:
    """Raise ConfigError for an option that was set and that the engine `kind` does not have."""
    default = EngineOptions()
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in supported and value != getattr(default, field.name):
            raise ConfigError(f"{field.name} = {value!r}: the {kind} engine has no such option; leave it out")
