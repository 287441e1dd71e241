"""The tensors of a dense llama-like model: which there must be, of which shape, and how they are kept.

Each tensor of the file is loaded exactly once; one that is missing, unknown or of another shape is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.engine.gguf_file import GgufFile
from outrider.engine.gguf_header import fail
from outrider.engine.numpy_kernels import Arena, Linear, Matrix
from outrider.engine.numpy_params import ModelParams

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Floats  # [n_embd]
    qkv: Linear  # n_embd -> (n_head + 2 n_kv) · head
    q_norm: Floats | None  # [head]
    k_norm: Floats | None
    attn_output: Linear  # n_head · head -> n_embd
    ffn_norm: Floats
    gate_up: Linear  # n_embd -> 2 n_ff
    down: Linear  # n_ff -> n_embd


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Floats  # [n_vocab, n_embd]; rows of the output matrix where the file ties them
    layers: list[Layer]
    output_norm: Floats
    output: Linear  # n_embd -> n_vocab
    rope_factors: Floats | None  # [n_rot / 2]
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Expected:
    name: str
    shape: tuple[int, ...]
    needed: bool = True


def check_tensors(file: GgufFile, params: ModelParams) -> None:
    """Are these exactly the tensors that such a model has? Raises ModelFileError naming the first that is wrong.

    Stops at the first that is not there, so a layer count of 2**31 costs nothing.
    """
    if not file.tensors:
        fail(file.path, "has no tensors: it is a vocabulary-only file", "use a complete model file")
    unknown = set(file.tensors)
    for tensor in _expected(params, _n_vocab(file)):
        unknown.discard(tensor.name)
        info = file.tensors.get(tensor.name)
        if info is None and tensor.needed:
            fail(file.path, f"tensor {tensor.name!r} is missing", "convert the model again")
        if info is not None and info.shape != tensor.shape:
            what = f"tensor {tensor.name!r} has shape {list(info.shape)}, the metadata say {list(tensor.shape)}"
            fail(file.path, what, "convert the model again")
    if unknown:
        what = f"tensor {min(unknown)!r} is unknown for architecture {file.architecture!r}"
        fail(file.path, what + (f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""), "use the llama engine")


def _n_vocab(file: GgufFile) -> int:
    """Rows of the embedding; that they are as many as the vocabulary has tokens is checked with the tokenizer."""
    info = file.tensors.get("token_embd.weight")
    return info.shape[0] if info is not None else 0


def load_weights(file: GgufFile, params: ModelParams) -> Weights:
    """All weights as float32, of a file that `check_tensors` let through. Raises ModelFileError if one has no decoder."""
    loader = _Loader(file)
    layers = [_layer(loader, f"blk.{i}.") for i in range(params.n_layer)]
    output_norm = loader.array("output_norm.weight")
    rope_factors = loader.optional("rope_freqs.weight")
    embedding, output = _embedding_and_output(loader)
    loader.check_complete()
    return Weights(embedding, layers, output_norm, output, rope_factors, loader.nbytes)


def _embedding_and_output(loader: _Loader) -> tuple[Floats, Linear]:
    if "output.weight" in loader:
        return loader.array("token_embd.weight"), loader.linear("output")
    matrix = loader.matrix("token_embd.weight")
    return matrix.rows, Linear(matrix, loader.optional("output.bias"))


def _layer(loader: _Loader, prefix: str) -> Layer:
    return Layer(
        attn_norm=loader.array(prefix + "attn_norm.weight"),
        qkv=loader.linear(prefix + "attn_q", prefix + "attn_k", prefix + "attn_v"),
        q_norm=loader.optional(prefix + "attn_q_norm.weight"),
        k_norm=loader.optional(prefix + "attn_k_norm.weight"),
        attn_output=loader.linear(prefix + "attn_output"),
        ffn_norm=loader.array(prefix + "ffn_norm.weight"),
        gate_up=loader.linear(prefix + "ffn_gate", prefix + "ffn_up"),
        down=loader.linear(prefix + "ffn_down"),
    )


def _expected(params: ModelParams, n_vocab: int) -> Iterator[_Expected]:
    n_embd, family = params.n_embd, params.architecture
    yield _Expected("token_embd.weight", (n_vocab, n_embd))
    yield _Expected("output_norm.weight", (n_embd,))
    yield _Expected("output.weight", (n_vocab, n_embd), needed=False)
    if family.output_bias:
        yield _Expected("output.bias", (n_vocab,), needed=False)
    if family.rope_factors:
        yield _Expected("rope_freqs.weight", (params.rope.n_rot // 2,), needed=False)
    for i in range(params.n_layer):
        yield from _expected_in_layer(params, f"blk.{i}.")


def _expected_in_layer(params: ModelParams, prefix: str) -> Iterator[_Expected]:
    n_embd, family = params.n_embd, params.architecture
    width_q, width_kv = params.n_head * params.head, params.n_kv * params.head
    matrices = {
        "attn_q": (width_q, n_embd),
        "attn_k": (width_kv, n_embd),
        "attn_v": (width_kv, n_embd),
        "attn_output": (n_embd, width_q),
        "ffn_gate": (params.n_ff, n_embd),
        "ffn_up": (params.n_ff, n_embd),
        "ffn_down": (n_embd, params.n_ff),
    }
    yield _Expected(prefix + "attn_norm.weight", (n_embd,))
    yield _Expected(prefix + "ffn_norm.weight", (n_embd,))
    for name, shape in matrices.items():
        yield _Expected(f"{prefix}{name}.weight", shape)
        if name in family.needed_biases + family.optional_biases:
            yield _Expected(f"{prefix}{name}.bias", shape[:1], needed=name in family.needed_biases)
    if family.qk_norms:
        yield _Expected(prefix + "attn_q_norm.weight", (params.head,))
        yield _Expected(prefix + "attn_k_norm.weight", (params.head,))


class _Loader:
    """Hands out each tensor once, and adds up the memory that they take."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._left = set(file.tensors)
        self._arena = self._reserve()
        self.nbytes = 0

    def _reserve(self) -> Arena:
        shapes = [info.shape for info in self._file.tensors.values()]
        matrices = [(shape[0], shape[1]) for shape in shapes if len(shape) == 2]
        try:
            return Arena(matrices)
        except MemoryError:
            n_bytes = 4 * sum(n_out * n_in for n_out, n_in in matrices)
            what = f"needs {n_bytes / 2**30:.1f} GiB of memory as float32, which there is not"
            fail(self._file.path, what, "use a smaller model, or the llama engine")

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def take(self, name: str) -> Floats:
        self._left.remove(name)
        return self._file.tensor(name)

    def array(self, name: str) -> Floats:
        values = self.take(name).copy()
        self.nbytes += values.nbytes
        return values

    def optional(self, name: str) -> Floats | None:
        return self.array(name) if name in self else None

    def linear(self, *names: str) -> Linear:
        """The projections `names`, their outputs one after the other."""
        bias = self._bias(names)
        self.nbytes += 0 if bias is None else bias.nbytes
        return Linear(self.matrix(*(name + ".weight" for name in names)), bias)

    def matrix(self, *names: str) -> Matrix:
        matrix = Matrix([self.take(name) for name in names], self._arena)
        self.nbytes += matrix.nbytes
        return matrix

    def _bias(self, names: Sequence[str]) -> Floats | None:
        if not any(name + ".bias" in self for name in names):
            return None
        return np.concatenate([self._bias_part(name) for name in names])

    def _bias_part(self, name: str) -> Floats:
        if name + ".bias" in self:
            return self.take(name + ".bias")
        return np.zeros(self._file.tensors[name + ".weight"].shape[0], np.float32)

    def check_complete(self) -> None:
        assert not self._left, f"not loaded: {sorted(self._left)}"
