"""What a GGUF file is, from its header alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import msgspec

from outrider.engine.gguf_file import open_gguf
from outrider.engine.gguf_header import Header, read_header
from outrider.engine.llama_check import check_metadata
from outrider.engine.numpy_params import read_params
from outrider.engine.vocabulary import load_vocabulary
from outrider.errors import ModelFileError
from outrider.speculators.detect import detect_types, is_eagle3


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one file. What the file does not say is None, an empty text or 0.

    weights: per type of tensor, how many of them and their bytes. kv_values: numbers that one cached position takes
    (keys and values of all layers). numpy, llama: why that engine would refuse the file; empty if nothing speaks
    against it. speculates: the types of speculation that it can draft for.
    """

    path: str
    n_bytes: int
    architecture: str
    name: str
    n_params: int
    weights: dict[str, tuple[int, int]]
    n_layers: int
    n_embd: int
    n_ctx_train: int
    kv_values: int | None
    tokenizer: str
    n_vocab: int
    has_chat_template: bool
    speculates: list[str]
    numpy: str
    llama: str

    @property
    def weight_bytes(self) -> int:
        return sum(n_bytes for _, n_bytes in self.weights.values())

    @property
    def quantisation(self) -> str:
        """The type that holds most of the bytes."""
        return max(self.weights, key=lambda name: self.weights[name][1], default="no tensors")


def inspect_file(path: str) -> FileFacts:
    """Raises ModelFileError: not a GGUF file, or damaged."""
    header = read_header(path)
    keys = _Keys(header)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return FileFacts(
        path=path,
        n_bytes=header.n_bytes,
        architecture=keys.architecture,
        name=keys.text("general.name"),
        n_params=sum(math.prod(tensor.shape) for tensor in header.tensors.values()),
        weights=_weights(header),
        n_layers=keys.number("block_count"),
        n_embd=keys.number("embedding_length"),
        n_ctx_train=keys.number("context_length"),
        kv_values=_kv_values(keys),
        tokenizer=keys.text("tokenizer.ggml.model"),
        n_vocab=len(tokens) if isinstance(tokens, list) else keys.number("vocab_size"),
        has_chat_template=bool(keys.text("tokenizer.chat_template")),
        speculates=_speculates(header, keys),
        numpy=_refusal(lambda: _numpy_reads(path)),
        llama=_refusal(lambda: check_metadata(header)),
    )


class _Keys:
    """Metadata that may be missing or of any type."""

    def __init__(self, header: Header) -> None:
        self._metadata = header.metadata
        self.architecture = self.text("general.architecture")

    def text(self, key: str) -> str:
        value = self._metadata.get(key)
        return value if isinstance(value, str) else ""

    def numbers(self, name: str) -> list[int]:
        """Of a key of the architecture: its whole numbers, one or one per layer."""
        value = self._metadata.get(f"{self.architecture}.{name}")
        return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)]

    def number(self, name: str) -> int:
        """The first of them; 0 where there is none."""
        return next(iter(self.numbers(name)), 0)


def _weights(header: Header) -> dict[str, tuple[int, int]]:
    counts, sizes = Counter[str](), Counter[str]()
    for tensor in header.tensors.values():
        counts[tensor.type_name] += 1
        sizes[tensor.type_name] += tensor.n_bytes
    return {name: (counts[name], sizes[name]) for name in sorted(sizes, key=lambda name: -sizes[name])}


def _kv_values(keys: _Keys) -> int | None:
    """Keys and values of one position in all layers; None where the memory is no such cache."""
    n_layers, n_heads = keys.number("block_count"), keys.number("attention.head_count")
    per_layer = keys.numbers("attention.head_count_kv") or [n_heads]
    if not n_layers or not n_heads:
        return None
    head = keys.number("embedding_length") // n_heads
    width = (keys.number("attention.key_length") or head) + (keys.number("attention.value_length") or head)
    return width * (sum(per_layer) if len(per_layer) > 1 else n_layers * per_layer[0])


def _speculates(header: Header, keys: _Keys) -> list[str]:
    """Made for a type of speculation, or an ordinary model with a vocabulary, which can be the draft of draft-simple."""
    made_for = ["draft-eagle3"] if is_eagle3(header) else detect_types(header)
    whole = set(made_for) <= {"draft-mtp"}  # a prediction head is a part of a model that also works without it
    has_vocabulary = keys.text("tokenizer.ggml.model") not in ("", "no_vocab", "none")
    return [*made_for, "draft-simple"] if whole and has_vocabulary and header.tensors else made_for


def _numpy_reads(path: str) -> None:
    file = open_gguf(path)
    read_params(file)
    load_vocabulary(file)


def _refusal(check: Callable[[], object]) -> str:
    """What the check says, without the file's name; empty if it passes."""
    try:
        check()
    except ModelFileError as error:
        return str(error).partition(": ")[2]
    return ""
