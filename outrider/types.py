"""Values that several packages share and that also travel on the wire.

They are frozen `msgspec` structs, encoded as arrays: the order of the fields is the order on the wire, so a change
here is a change of the protocol version (`wire/messages.py`). Bounds are checked wherever a value is decoded.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

U16 = Annotated[int, Meta(ge=0, lt=2**16)]
U32 = Annotated[int, Meta(ge=0, lt=2**32)]
U64 = Annotated[int, Meta(ge=0)]  # msgpack has no larger integers; msgspec takes no bound beyond int64
Token = Annotated[int, Meta(ge=0, lt=2**31)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]

#: The most tokens that one message may carry; also the largest context we serve.
MAX_TOKENS = 1 << 20
Tokens = Annotated[list[Token], Meta(max_length=MAX_TOKENS)]

#: The most log-probabilities per position, and the smallest of them (JSON and msgpack checks know no -inf).
MAX_PROBS = 100
MIN_LOGPROB = -1e9
Logprob = Annotated[float, Meta(ge=MIN_LOGPROB, le=0.0)]

#: What a worker is for.
WorkerRole = Literal["target", "draft"]

#: How a sequence's memory goes back: by dropping a suffix, or only by restoring a checkpoint and replaying.
MemoryKind = Literal["truncate", "checkpoint"]


class Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the shared values."""


#: How a draft picks its tokens: the most probable one, or with the noise of the target's own sampler.
DraftSampling = Literal["greedy", "coupled"]

#: Notations of a grammar.
GrammarKind = Literal["json_schema", "gbnf"]


class Grammar(Value, frozen=True):
    """What a generated text must obey."""

    kind: GrammarKind  # its notation
    text: Annotated[str, Meta(min_length=1, max_length=1 << 20)]  # a JSON schema, or GBNF with the start rule `root`


class LogitBias(Value, frozen=True):
    """What is added to the logit of one token."""

    token: Token  # its id
    bias: Annotated[float, Meta(ge=-1e9, le=1e9)]  # logit units


class SamplingParams(Value, frozen=True, kw_only=True):
    """How the target turns a row of logits into a token. Names and neutral values are llama.cpp's.

    Order of application: logit bias, penalties, top_k, typical_p, top_p, min_p, temperature. `temp <= 0` is greedy:
    argmax after bias and penalties.
    """

    seed: U64 = 0  # key of the random stream, with choice and position
    temp: Annotated[float, Meta(ge=-1.0, le=100.0)] = 0.8  # temperature; 0 or less = greedy
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] = 40  # 0 = off
    top_p: Probability = 0.95  # 1 = off
    min_p: Probability = 0.05  # 0 = off
    typical_p: Probability = 1.0  # 1 = off
    repeat_penalty: Annotated[float, Meta(ge=1e-3, le=100.0)] = 1.0  # 1 = off
    presence_penalty: Annotated[float, Meta(ge=-100.0, le=100.0)] = 0.0  # 0 = off
    frequency_penalty: Annotated[float, Meta(ge=-100.0, le=100.0)] = 0.0  # 0 = off
    repeat_last_n: Annotated[int, Meta(ge=-1, lt=2**31)] = 64  # window of the penalties; 0 = off, -1 = whole context
    logit_bias: Annotated[list[LogitBias], Meta(max_length=4096)] = []  # added before everything else
    ignore_eos: bool = False  # end-of-generation tokens are never sampled
    min_tokens: U32 = 0  # no end-of-generation token before this many generated tokens
    n_probs: Annotated[int, Meta(ge=0, le=MAX_PROBS)] = 0  # log-probabilities of that many best tokens per position
    post_sampling_probs: bool = False  # those after the sampler's chain instead of the model's own


#: Vocabularies are compared from this id on, by hashes of blocks of so many token texts: block k begins at id
#: VOCAB_BLOCK_FIRST + VOCAB_BLOCK_SIZE * k. The ids before it are free to differ, as in llama.cpp.
VOCAB_BLOCK_FIRST = 5
VOCAB_BLOCK_SIZE = 1024


class VocabFacts(Value, frozen=True, kw_only=True):
    """What the compatibility gate compares, as the loader resolved it (defaults applied)."""

    type: Literal["spm", "bpe", "wpm", "ugm", "rwkv", "plamo2", "none"]  # llama.cpp's vocabulary types
    n_vocab: U32  # number of token ids
    add_bos: bool  # is BOS put in front of a text?
    bos: Annotated[int, Meta(ge=-1, lt=2**31)]  # -1 = no such token
    add_eos: bool  # is EOS put behind a text?
    eos: Annotated[int, Meta(ge=-1, lt=2**31)]  # -1 = no such token
    #: 64-bit hash of the token texts of each block (see `engine/vocab_facts.py`).
    block_hashes: Annotated[list[U64], Meta(max_length=4096)]


class RowTime(Value, frozen=True):
    """How long a decode of so many rows took when the worker started."""

    n_rows: U32  # rows, each with its logits
    us: U64  # microseconds inside Engine.decode


class ModelFacts(Value, frozen=True, kw_only=True):
    """What a worker reports of the model that it loaded."""

    engine: Annotated[str, Meta(max_length=32)]  # which engine runs it
    architecture: Annotated[str, Meta(max_length=64)]  # `general.architecture`
    name: Annotated[str, Meta(max_length=256)]  # `general.name`
    n_vocab: U32  # width of a row of logits
    n_ctx: U32  # positions per sequence
    n_batch: U32  # rows per decode
    n_seq: U32  # sequences held at once
    memory: MemoryKind  # how a sequence goes back
    memory_bytes: U64  # weights and caches, as far as the engine knows
    has_chat_template: bool  # can it render chat messages?
    vocab: VocabFacts  # for the compatibility gate
    row_times: Annotated[list[RowTime], Meta(max_length=64)]  # measured at start-up where the schedule asks for it


class TokenLogprobs(Value, frozen=True, kw_only=True):
    """What the target thought of one position: natural logarithms of probabilities, as `SamplingParams.n_probs` asks.

    They are the model's own, before bias, penalties and temperature; with `post_sampling_probs` those of the candidates
    that the sampler drew from.
    """

    logprob: Logprob  # of the token committed
    tokens: Annotated[list[Token], Meta(max_length=MAX_PROBS)]  # the most probable ones, best first
    logprobs: Annotated[list[Logprob], Meta(max_length=MAX_PROBS)]  # of these
    pieces: Annotated[list[Annotated[bytes, Meta(max_length=65536)]], Meta(max_length=MAX_PROBS)]  # bytes of these

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.pieces):
            raise ValueError("`tokens`, `logprobs` and `pieces` differ in length")


class ChatMessage(Value, frozen=True):
    """One message of a chat, for the model's own template."""

    role: Annotated[str, Meta(max_length=64)]  # "system", "user", "assistant" or what the template knows
    content: Annotated[str, Meta(max_length=1 << 22)]  # its text
