"""llama.cpp behind small typed classes: the only module that imports `llama_cpp`.

Nothing is checked here. Integers that do not fit are cut off by ctypes and wrong ones abort the process, so callers
(`llama_engine`, `llama_tokenizer`) check every number first.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
from numpy.typing import NDArray

from outrider.engine.llama_log import NativeLog
from outrider.engine.options import CACHE_TYPES, FLASH_ATTN, EngineOptions
from outrider.engine.vocab_facts import VocabType

# An abort ends the process at once; else llama.cpp would first attach a debugger to print where it was.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

LOG = NativeLog(logging.getLogger("outrider.llama"))

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: what cannot be cut back, without the plain attention cache
_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU
_VOCAB_TYPES: tuple[VocabType, ...] = ("none", "spm", "bpe", "wpm", "ugm", "rwkv", "plamo2")


def _on_log(level: int, text: bytes, _user_data: object) -> None:
    LOG.feed(level, text.decode("utf-8", "replace"))


_log_callback = lib.llama_log_callback(_on_log)  # kept, because the library keeps the pointer


def _take_log() -> None:
    """Have the library's lines for us; others in this process may have asked for them meanwhile."""
    lib.llama_log_set(_log_callback, ctypes.c_void_p(0))


_take_log()
# Native destructors that run after the interpreter is gone must not call into it.
atexit.register(lib.llama_log_set, lib.llama_log_callback(0), ctypes.c_void_p(0))
lib.llama_backend_init()


def native_version() -> str:
    """Version and CPU features of the native library."""
    return f"{lib.llama_version().decode()} {lib.llama_print_system_info().decode()}"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that layers can be put on. Memory in bytes."""

    name: str
    description: str
    free_bytes: int
    total_bytes: int
    handle: int


def _ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml that `llama_cpp` does not wrap."""
    function = getattr(lib._lib, name)
    function.restype, function.argtypes = result, arguments
    return function


def gpu_devices() -> list[Device]:
    """The GPUs that this build of llama.cpp can use."""
    count = _ggml("ggml_backend_dev_count", ctypes.c_size_t)
    get = _ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    handles = [get(i) for i in range(count())]
    return [_device(handle) for handle in handles if kind(handle) in _GPU_TYPES]


def _device(handle: int) -> Device:
    name = _ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    description = _ggml("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    size_p = ctypes.POINTER(ctypes.c_size_t)
    memory = _ggml("ggml_backend_dev_memory", None, ctypes.c_void_p, size_p, size_p)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    memory(handle, ctypes.byref(free), ctypes.byref(total))
    return Device(name(handle).decode(), description(handle).decode(), free.value, total.value, handle)


def _load_mode(use_mmap: bool, mlock: bool) -> int:
    if use_mmap:
        return lib.LLAMA_LOAD_MODE_MMAP_MLOCK if mlock else lib.LLAMA_LOAD_MODE_AUTO
    return lib.LLAMA_LOAD_MODE_MLOCK if mlock else lib.LLAMA_LOAD_MODE_NONE


class NativeModel:
    """A loaded model. `handle` is 0 if llama.cpp refused it; then `LOG.cause()` says why.

    devices: the only ones to use (none of them = CPU), or None for every GPU.
    """

    def __init__(self, path: Path, options: EngineOptions, devices: Sequence[Device] | None) -> None:
        _take_log()
        params = lib.llama_model_default_params()
        if devices is not None:
            handles = [device.handle for device in devices]
            # Kept, because the library keeps the pointer.
            self._devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
            params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        if options.n_gpu_layers is not None:
            params.n_gpu_layers = options.n_gpu_layers
        params.load_mode = _load_mode(options.use_mmap, options.mlock)
        self.handle: Any = lib.llama_model_load_from_file(os.fsencode(path), params) or 0
        if self.handle:
            self.vocab = NativeVocab(lib.llama_model_get_vocab(self.handle))
            self.n_ctx_train = lib.llama_model_n_ctx_train(self.handle)
            self.n_bytes = lib.llama_model_size(self.handle)
            self.n_swa = lib.llama_model_n_swa(self.handle)

    def is_decoder(self) -> bool:
        """Does it generate text from text alone?"""
        return bool(lib.llama_model_has_decoder(self.handle)) and not lib.llama_model_has_encoder(self.handle)

    def is_recurrent(self) -> bool:
        """Has it recurrent layers, all or some?"""
        return bool(lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle))

    def chat_template(self) -> str | None:
        template = lib.llama_model_chat_template(self.handle, None)
        return None if template is None else template.decode("utf-8", "replace")

    def free(self) -> None:
        if self.handle:
            lib.llama_model_free(self.handle)
        self.handle = 0


class NativeVocab:
    """The vocabulary of a loaded model. Token ids must be in 0..n_tokens-1."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.n_tokens = lib.llama_vocab_n_tokens(handle)
        self.type = _VOCAB_TYPES[lib.llama_vocab_type(handle)]
        self.bos, self.eos = lib.llama_vocab_bos(handle), lib.llama_vocab_eos(handle)
        self.add_bos, self.add_eos = lib.llama_vocab_get_add_bos(handle), lib.llama_vocab_get_add_eos(handle)
        n = ctypes.c_int32(0)
        suppressed = lib.llama_vocab_get_suppress_tokens(handle, ctypes.byref(n))
        #: Ids that must never be sampled.
        self.suppressed = [
            token for token in (suppressed[: n.value] if suppressed else ()) if 0 <= token < self.n_tokens
        ]

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        room = len(text) + 8
        while True:
            tokens = (ctypes.c_int32 * room)()
            n = lib.llama_tokenize(self._handle, text, len(text), tokens, room, add_special, parse_special)
            if n >= 0:
                return tokens[:n]
            room = -n

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes that a token adds to a text; those of a control token only if `special`."""
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = lib.llama_token_to_piece(self._handle, token, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def is_eog(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._handle, token))

    def text(self, token: int) -> bytes:
        return bytes(lib.llama_vocab_get_text(self._handle, token))


class Batch:
    """The memory of one `llama_batch` of up to `capacity` rows, written through numpy and allocated once.

    Row i belongs to sequence s, and with `n_mirrors` = 2 to s + n_seq as well (see `llama_engine`).
    """

    def __init__(self, capacity: int, n_seq: int, n_mirrors: int) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.wanted = np.zeros(capacity, np.int8)
        self._counts = np.full(capacity, n_mirrors, np.int32)
        self._ids = np.arange(n_seq, dtype=np.int32)[:, None] + n_seq * np.arange(n_mirrors, dtype=np.int32)
        self._addresses = [row.ctypes.data for row in self._ids]
        self._sequences = np.zeros(capacity, np.uint64)
        self.native = lib.llama_batch(
            n_tokens=0,
            token=self._pointer(self.tokens, ctypes.c_int32),
            pos=self._pointer(self.positions, ctypes.c_int32),
            n_seq_id=self._pointer(self._counts, ctypes.c_int32),
            seq_id=self._pointer(self._sequences, ctypes.POINTER(ctypes.c_int32)),
            logits=self._pointer(self.wanted, ctypes.c_int8),
        )

    @staticmethod
    def _pointer(array: NDArray[Any], kind: Any) -> Any:
        return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

    def write(self, at: int, seq: int, start: int, tokens: Sequence[int], n_outputs: int) -> int:
        """Rows `at…` become `tokens` of `seq` at positions `start…`, the last `n_outputs` wanted. Returns the row after."""
        end = at + len(tokens)
        self.tokens[at:end] = tokens
        self.positions[at:end] = range(start, start + len(tokens))
        self._sequences[at:end] = self._addresses[seq]
        self.wanted[at:end] = 0
        self.wanted[end - n_outputs : end] = 1
        return end


class NativeContext:
    """Caches and buffers for `n_seq` sequences of a model. `handle` is 0 if llama.cpp refused; see `LOG.cause()`.

    n_seq: as llama.cpp counts them; n_ctx: positions of all of them together.
    """

    def __init__(
        self, model: NativeModel, options: EngineOptions, n_ctx: int, n_seq: int, flash_attn: str, *, unified: bool
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx, n_seq
        # llama.cpp aborts if a batch cannot hold a row of each sequence, or all rows that get a snapshot and one more.
        params.n_batch = max(options.n_batch, n_seq, options.n_rs_seq + 2)
        params.n_ubatch = max(min(options.n_ubatch, options.n_batch), options.n_rs_seq + 2)
        params.n_outputs_max = params.n_outputs_max_per_seq = params.n_batch  # every row of a batch may be wanted
        params.n_threads, params.n_threads_batch = threads(options)
        params.type_k, params.type_v = CACHE_TYPES[options.cache_type_k], CACHE_TYPES[options.cache_type_v]
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        params.n_rs_seq = options.n_rs_seq
        params.swa_full = True  # rows outside the window stay, so that they can come into it again by a rollback
        params.kv_unified = unified  # sequences share rows when copied
        self._n_vocab = model.vocab.n_tokens
        self._logits: NDArray[np.float32] = np.empty((0, self._n_vocab), np.float32)
        self._logits_at = 0
        self.handle: Any = lib.llama_init_from_model(model.handle, params) or 0
        if self.handle:
            self._memory = lib.llama_get_memory(self.handle)
            self.n_batch = lib.llama_n_batch(self.handle)
            self.n_ubatch = lib.llama_n_ubatch(self.handle)
            self.n_rs_seq = lib.llama_n_rs_seq(self.handle)

    def has_memory(self) -> bool:
        return bool(self._memory)

    def decode(self, batch: Batch, n_rows: int) -> int:
        """llama_decode's code, after the computation has ended: 0 is success."""
        batch.native.n_tokens = n_rows
        code: int = lib.llama_decode(self.handle, batch.native)
        lib.llama_synchronize(self.handle)
        return code

    def logits(self, n_rows: int) -> NDArray[np.float32]:
        """Read-only view [n_rows, n_vocab] of the logits of the last decode, in the order of its batch."""
        address = ctypes.addressof(lib.llama_get_logits(self.handle).contents)
        if address != self._logits_at or n_rows > len(self._logits):
            values = (ctypes.c_float * (n_rows * self._n_vocab)).from_address(address)
            self._logits = np.frombuffer(values, np.float32).reshape(n_rows, self._n_vocab)
            self._logits.flags.writeable = False
            self._logits_at = address
        return self._logits[:n_rows]

    def remove(self, seq: int, start: int) -> bool:
        """Drop the rows from position `start` on; False, with nothing changed, if the memory cannot."""
        return bool(lib.llama_memory_seq_rm(self._memory, seq, start, -1))

    def copy(self, src: int, dst: int) -> None:
        lib.llama_memory_seq_cp(self._memory, src, dst, -1, -1)

    def first_position(self, seq: int) -> int:
        """The first position from which on every row is there; -1 if the sequence is empty."""
        return int(lib.llama_memory_seq_pos_min(self._memory, seq))

    def state_size(self, seq: int, partial: bool) -> int:
        return int(lib.llama_state_seq_get_size_ext(self.handle, seq, _PARTIAL * partial))

    def state(self, seq: int, partial: bool) -> NDArray[np.uint8]:
        """The rows of `seq`; `partial`: without those that `remove` can drop. Empty if llama.cpp failed."""
        data = np.empty(self.state_size(seq, partial), np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        n = lib.llama_state_seq_get_data_ext(self.handle, pointer, data.nbytes, seq, _PARTIAL * partial)
        return data[:n]

    def set_state(self, seq: int, data: NDArray[np.uint8], partial: bool) -> bool:
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        n = lib.llama_state_seq_set_data_ext(self.handle, pointer, data.nbytes, seq, _PARTIAL * partial)
        return int(n) > 0

    def free(self) -> None:
        if self.handle:
            lib.llama_free(self.handle)
        self.handle, self._memory = 0, None


def threads(options: EngineOptions) -> tuple[int, int]:
    """Threads for one row and for several."""
    one = options.n_threads or _n_cores()
    return one, options.n_threads_batch or one


def _n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
