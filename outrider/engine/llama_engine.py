"""The engine on llama.cpp: any architecture it runs, GPUs, threads, types of cached values.

What llama.cpp asserts is checked here first, because a wrong number would end the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from outrider.engine.base import BRANCH_ROWS, Engine, Output, Span, check_room
from outrider.engine.gguf_header import Header, read_header
from outrider.engine.llama_check import check_cache_types, check_metadata, short_rope_limit
from outrider.engine.llama_cpp import LOG, Batch, Device, NativeContext, NativeModel, gpu_devices
from outrider.engine.llama_memory import LlamaMemory
from outrider.engine.llama_tokenizer import LlamaTokenizer
from outrider.engine.options import FLOAT_CACHE_TYPES, MAX_SEQ, EngineOptions
from outrider.errors import ConfigError, ContextFullError, EngineError, ModelFileError
from outrider.types import MAX_TOKENS, ModelFacts

_INT32 = 2**31
_PROBE_ROWS = 3
_NO_ROOM, _BAD_BATCH = 1, -1  # codes of llama_decode after which nothing was changed


class LlamaEngine(Engine):
    """See the module's docstring.

    memory is found out by trying. Where it is "checkpoint", `truncate` works as far as the snapshots of the last decode
    reach back (`EngineOptions.n_rs_seq`), and raises CacheError beyond. After a failed decode the sequences of a
    "checkpoint" memory are empty. Logits are read-only views of llama.cpp's own buffer.

    Raises ConfigError for options that this build or model does not have, ModelFileError for the file.
    """

    def __init__(self, path: str | Path, options: EngineOptions | None = None) -> None:
        options = options or EngineOptions()
        header = read_header(path)
        check_metadata(header)
        check_cache_types(header, options)
        self._model = load_model(Path(path), options)
        self._context: NativeContext | None = None
        try:
            self._open(header, options)
        except BaseException:
            self.close()
            raise

    def _open(self, header: Header, options: EngineOptions) -> None:
        model, path = self._model, header.path
        if not model.is_decoder():
            raise ModelFileError(f"{path}: is not a model that writes text on from text; use a decoder-only one")
        self.n_vocab, self.n_seq = model.vocab.n_tokens, options.n_seq
        if model.is_recurrent():
            options = replace(options, n_branches=0)  # such a memory has none
        self.n_ctx = options.n_ctx or model.n_ctx_train
        limit = short_rope_limit(header, model.n_ctx_train)
        if self.n_ctx <= limit < n_cells(options, self.n_ctx):
            options = replace(options, n_branches=0)
        self.n_branches = options.n_branches
        n_seq = self.n_seq + self.n_branches
        n_mirrors = 2 if model.n_swa and n_seq > 1 and not model.is_recurrent() else 1
        apart = self.n_ctx <= limit < n_cells(options, self.n_ctx)
        if apart and n_mirrors > 1:
            raise ConfigError(
                f"n_ctx = {self.n_ctx} with n_seq = {self.n_seq}: this model has other factors of position from {limit + 1}"
                f" cells on; use n_seq = 1, or an n_ctx above {limit}"
            )
        self._context = make_context(path, model, options, self.n_ctx, n_mirrors, unified=not apart)
        self.n_batch = min(options.n_batch, self._context.n_batch)
        self._batch = Batch(self.n_batch, n_seq, n_mirrors)
        self._sequences = LlamaMemory(self._context, n_seq, model.n_swa, n_mirrors)
        self.tokenizer = LlamaTokenizer(model.vocab, model.chat_template())
        cache_bytes = self._probe(path)
        self.memory = self._sequences.kind
        self.facts = self._facts(header, model.n_bytes + cache_bytes)

    def _probe(self, path: Path) -> int:
        """Evaluate a few rows: can the memory drop them, are the logits real? It also warms up, and a build whose
        kernels for several rows are broken dies here and not in the middle of a text.

        Returns the bytes of all caches.
        """
        assert self._context is not None
        token, counts, sizes = max(self._model.vocab.bos, 0), [1], []
        while sum(counts) < self._context.n_rs_seq + _PROBE_ROWS:
            counts.append(min(2, self.n_batch))
        for count in counts:
            logits = self.decode([Span(0, self.length(0), [token] * count, count)]).logits
            sizes.append(self._context.state_size(0, partial=False))
        if not np.isfinite(logits).all() or logits.min() == logits.max():
            raise ModelFileError(f"{path}: its logits are all equal or no numbers; the file is damaged, fetch it again")
        self._sequences.probe(0)
        per_row = (sizes[1] - sizes[0]) // counts[1]
        return self.n_seq * (sizes[0] + per_row * (self.n_ctx - 1))

    def _facts(self, header: Header, memory_bytes: int) -> ModelFacts:
        return ModelFacts(
            engine="llama",
            architecture=str(header.metadata["general.architecture"])[:64],
            name=str(header.metadata.get("general.name", header.path.stem))[:256],
            n_vocab=self.n_vocab,
            n_ctx=self.n_ctx,
            n_batch=self.n_batch,
            n_seq=self.n_seq,
            memory=self.memory,
            memory_bytes=memory_bytes,
            has_chat_template=self._model.chat_template() is not None,
            vocab=self.tokenizer.vocab,
            row_times=[],
        )

    def decode(self, spans: Sequence[Span]) -> Output:
        assert self._context is not None, "closed"
        self._check(spans)
        n_rows, n_outputs = self._write(spans), sum(span.n_outputs for span in spans)
        if n_rows:
            LOG.forget()
            code = self._context.decode(self._batch, n_rows)
            if code:
                raise self._failure(code, spans)
            self._sequences.appended(spans)
        return Output(self._context.logits(n_outputs) if n_outputs else np.empty((0, self.n_vocab), np.float32))

    def _check(self, spans: Sequence[Span]) -> None:
        check_room(spans, self.n_ctx)
        if len({span.seq for span in spans}) != len(spans):
            raise EngineError("two spans of one decode name the same sequence")
        n_rows = sum(len(span.tokens) for span in spans)
        if n_rows > self.n_batch:
            raise EngineError(f"{n_rows} rows in one decode, n_batch is {self.n_batch}")
        for span in spans:
            held = self.length(span.seq)
            if span.start != held:
                raise EngineError(f"sequence {span.seq}: row {span.start} given, {held} rows held")
            if not 0 <= span.n_outputs <= len(span.tokens):
                raise EngineError(f"sequence {span.seq}: {span.n_outputs} outputs of {len(span.tokens)} rows")

    def _write(self, spans: Sequence[Span]) -> int:
        """Put the spans into the batch; the number of rows."""
        row = 0
        for span in spans:
            if span.tokens and not 0 <= min(span.tokens) <= max(span.tokens) < self.n_vocab:
                bad = next(token for token in span.tokens if not 0 <= token < self.n_vocab)
                raise EngineError(f"sequence {span.seq}: token {bad} is not in 0..{self.n_vocab - 1}")
            row = self._batch.write(row, span.seq, span.start, span.tokens, span.n_outputs)
        return row

    def _failure(self, code: int, spans: Sequence[Span]) -> EngineError:
        reason = f"llama_decode returned {code}: {LOG.cause()}"
        if code not in (_NO_ROOM, _BAD_BATCH):
            for span in spans:
                self._sequences.cut_back(span.seq)
        return ContextFullError(reason) if code == _NO_ROOM else EngineError(reason)

    def length(self, seq: int) -> int:
        return self._sequences.length(seq)

    def truncate(self, seq: int, length: int) -> None:
        self._sequences.truncate(seq, length)

    def copy(self, src: int, dst: int) -> None:
        self._sequences.copy(src, dst)

    def save(self, seq: int) -> object:
        return self._sequences.save(seq)

    def restore(self, seq: int, checkpoint: object) -> None:
        self._sequences.restore(seq, checkpoint)

    def close(self) -> None:
        if self._context is not None:
            self._context.free()
            self._context = None
        self._model.free()


def load_model(path: Path, options: EngineOptions) -> NativeModel:
    devices = chosen_devices(options, gpu_devices())
    LOG.forget()
    model = NativeModel(path, options, devices)
    if not model.handle:
        raise ModelFileError(f"{path}: {LOG.cause()}")
    return model


def chosen_devices(options: EngineOptions, available: Sequence[Device]) -> list[Device] | None:
    """The devices that the options name; None = whatever there is. Raises ConfigError."""
    if options.n_gpu_layers and not available and options.devices != "none":
        raise ConfigError(
            f"n_gpu_layers = {options.n_gpu_layers}: this llama.cpp sees no GPU; "
            "leave it out, or install a llama-cpp-python built for your GPU"
        )
    if options.devices is None:
        return None
    if options.devices == "none":
        return []
    by_name = {device.name: device for device in available}
    names = options.devices.split(",")
    for name in names:
        if name not in by_name:
            raise ConfigError(f"devices: {name!r} is not there; use {', '.join(['none', *by_name])}")
    return [by_name[name] for name in names]


def flash_attention(options: EngineOptions, available: Sequence[Device]) -> str:
    """What `flash_attn` = "auto" stands for. llama.cpp decides on a GPU.

    On a CPU its flash attention computes batches of fewer than 64 rows a row at a time, which takes 2 to 3 times as
    long (0.5B model, 768 rows cached, 8 rows: 278 ms with it, 133 ms without), so it is used where it must be:
    for quantised values.
    """
    on_cpu = not available or options.devices == "none" or options.n_gpu_layers == 0
    if options.flash_attn == "auto" and on_cpu:
        return "off" if options.cache_type_v in FLOAT_CACHE_TYPES else "on"
    return options.flash_attn


def n_cells(options: EngineOptions, n_ctx: int) -> int:
    """Rows that a context for `n_seq` sequences of `n_ctx` positions each has, with a few of each branch's own."""
    return n_ctx * options.n_seq + BRANCH_ROWS * options.n_branches


def make_context(
    path: Path, model: NativeModel, options: EngineOptions, n_ctx: int, n_mirrors: int, *, unified: bool = True
) -> NativeContext:
    """A context for `n_seq` sequences of `n_ctx` positions each, and `n_branches`. unified: they share their cells, so that
    a copy costs none; llama.cpp counts all of them as those of each."""
    cells = n_cells(options, n_ctx)
    n_seq = (options.n_seq + options.n_branches) * n_mirrors
    if n_ctx > MAX_TOKENS or cells >= _INT32:
        raise ConfigError(f"n_ctx = {n_ctx} with n_seq = {options.n_seq} is more than can be counted; lower one")
    if n_seq > MAX_SEQ:
        raise ConfigError(
            f"n_seq = {options.n_seq} and n_branches = {options.n_branches}: this model can have"
            f" {MAX_SEQ // n_mirrors} sequences; lower one"
        )
    least = options.n_rs_seq + _PROBE_ROWS + 1
    if n_ctx < least:
        raise ConfigError(f"n_ctx = {n_ctx} is too small; at least {least} are needed")
    LOG.forget()
    context = NativeContext(model, options, cells, n_seq, flash_attention(options, gpu_devices()), unified=unified)
    if not context.handle:
        raise EngineError(f"{path}: llama.cpp cannot make a context for it: {LOG.cause()}")
    if not context.has_memory():
        context.free()
        raise ModelFileError(f"{path}: this architecture does not write text token by token")
    return context
