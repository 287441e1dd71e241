"""Every message between coordinator, workers and clients. `docs/protocol.md` says each field in words.

Messages are arrays on the wire: an integer tag, then the fields in the order written here, all of them. There are no
defaults on purpose: a missing field is an error, like one too many. Field order, types and bounds are the protocol;
whoever changes them raises `PROTOCOL_VERSION`.

Token ids, positions, counts, probabilities and bounded texts travel, and nothing that a receiver could open, connect to,
import or run.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from outrider.types import (
    ChatMessage,
    ModelFacts,
    Probability,
    SamplingParams,
    Token,
    Tokens,
    U16,
    U32,
    U64,
)

PROTOCOL_VERSION = 1

#: A draft longer than this is a protocol error; `n_max` is bounded by it too.
MAX_DRAFT = 512

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Text = Annotated[str, Meta(max_length=1 << 22)]
Line = Annotated[str, Meta(max_length=4096)]
Draft = Annotated[list[Token], Meta(max_length=MAX_DRAFT)]
Microseconds = U64
FailureCode = Literal[
    "refused",  # the handshake failed: role, name, version or vocabulary; do not come back
    "unknown_incarnation",  # say Hello again: this connection is not (or no longer) known
    "unknown_session",  # no Begin was seen for it, or it has ended
    "missing_prefix",  # the cache lacks the prefix named: send all of it
    "no_slot",  # all sequences are in use
    "context_full",  # more positions than the context has
    "bad_request",  # the values do not fit this model or this state
    "engine",  # the engine failed; the session's memory was dropped
    "worker_lost",  # to clients: a worker that cannot be replaced is gone
]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages."""


# --- handshake ---------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """First message of a worker or client; it is repeated until Welcome or Failure comes."""

    protocol: U32
    role: Literal["target", "draft", "client"]
    name: Name
    pid: U32


class Welcome(Message, frozen=True, tag=2):
    """The name was free and allowed; `incarnation` stamps all that follows on this connection."""

    protocol: U32
    incarnation: U32
    heartbeat_s: Annotated[float, Meta(gt=0.0, le=60.0)]


class Ready(Message, frozen=True, tag=3):
    """The model is loaded."""

    incarnation: U32
    facts: ModelFacts


class VocabRequest(Message, frozen=True, tag=4):
    """Asks for the texts of block `block` (see `VocabFacts.block_hashes`)."""

    incarnation: U32
    block: U16


class VocabBlock(Message, frozen=True, tag=5):
    incarnation: U32
    block: U16
    first: Token  # id of texts[0]
    texts: Annotated[list[Annotated[bytes, Meta(max_length=65536)]], Meta(max_length=1024)]


# --- one session -------------------------------------------------------------------------------------------------


class SessionMessage(Message, frozen=True):
    """Base of everything that belongs to a session. A reply repeats these five numbers of its request."""

    incarnation: U32
    session: U64
    round: U32
    epoch: U32
    committed_len: U32  # tokens committed so far, the pending one included


class Begin(SessionMessage, frozen=True, tag=10):
    """A session starts: the worker reserves a sequence for it and keeps the sampler's settings."""

    sampling: SamplingParams
    prompt_len: U32  # tokens of the committed text that were given, not generated
    choice: U32  # which of several answers to one prompt: part of the key of the random stream
    row_hashes: bool  # report a hash of the logits row of every committed position


class Prefix(SessionMessage, frozen=True):
    """Base of the requests that name the committed text: `history[:keep_len] + tail`, with `prefix_hash` of the whole."""

    prefix_hash: U64
    keep_len: U32  # committed tokens that the worker is believed to know already
    tail: Tokens


class Process(Prefix, frozen=True, tag=11):
    """Replay batch: bring the cache up to the committed text (all but its pending token). No reply."""


class DraftRequest(Prefix, frozen=True, tag=12):
    """Draft up to `n_max` tokens after the pending one. Reply: DraftTokens."""

    n_max: Annotated[int, Meta(ge=1, le=MAX_DRAFT)]
    n_min: Annotated[int, Meta(ge=0, le=MAX_DRAFT)]  # a shorter draft is dropped
    p_min: Probability  # stop before a token whose probability (among the ten best) is below this
    credit: U32  # absolute position up to which the draft may ride on by itself; 0 in lockstep


class DraftTokens(SessionMessage, frozen=True, tag=13):
    start: U32  # absolute position of tokens[0]
    parent: U32  # branch that this continues; 0 is the chain
    tokens: Draft
    probs: Annotated[list[Probability], Meta(max_length=MAX_DRAFT)]  # of each token, among the ten best
    entropies: Annotated[list[Annotated[float, Meta(ge=0.0, le=3.0)]], Meta(max_length=MAX_DRAFT)]  # nats, same ten
    final: bool  # nothing more comes for this request
    n_dropped: U32  # tokens drafted and withheld (n_min)
    n_evaluated: U32  # rows the engine evaluated for this reply
    decode_us: Microseconds  # time inside Engine.decode


class VerifyRequest(Prefix, frozen=True, tag=14):
    """One batch: pending token and draft, all rows out. Reply: Verdict."""

    draft: Draft
    credit: U32  # absolute position up to which pushed drafts may be verified without a new request; 0 in lockstep


class Verdict(SessionMessage, frozen=True, tag=15):
    number: U32  # counts the verdicts of one VerifyRequest, from 0
    accepted: U16  # how many tokens of the draft the target sampled too
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_DRAFT + 1)]  # what was sampled: accepted + 1, or
    # `accepted` where the last accepted token ends the text
    pieces: Annotated[list[Annotated[bytes, Meta(max_length=65536)]], Meta(max_length=MAX_DRAFT + 1)]
    end_of_text: bool  # the last token is an end-of-generation token
    row_hashes: Annotated[list[U64], Meta(max_length=MAX_DRAFT + 1)]  # empty unless asked for
    n_reused: U32  # committed rows that the cache held already
    n_evaluated: U32
    decode_us: Microseconds


class Rollback(Prefix, frozen=True, tag=16):
    """The draft was wrong from some position on: drop the wrong rows, evaluate the right ones. No reply."""


class Accept(SessionMessage, frozen=True, tag=17):
    """How many tokens of the last draft were committed. No reply."""

    n_accepted: U16
    by_other: bool  # another speculator made that draft


class End(SessionMessage, frozen=True, tag=18):
    """The session is over; its sequence is free. Unknown sessions are ignored. No reply."""


# --- text --------------------------------------------------------------------------------------------------------


class Tokenize(Message, frozen=True, tag=20):
    """Text, or chat messages rendered by the target's own template, to tokens. Reply: Tokens, or Failure."""

    incarnation: U32
    request: U64
    text: Text
    messages: Annotated[list[ChatMessage], Meta(max_length=4096)]  # not empty: `text` is ignored
    add_special: bool
    parse_special: bool


class TokenizeResult(Message, frozen=True, tag=21):
    incarnation: U32
    request: U64
    tokens: Tokens


# --- life and death ----------------------------------------------------------------------------------------------


class Heartbeat(Message, frozen=True, tag=30):
    incarnation: U32
    progress: U64  # grows with every message handled and every decode finished
    n_waiting: U32  # requests received and not yet answered


class Failure(SessionMessage, frozen=True, tag=31):
    """The request that these five numbers name failed (all 0: the connection itself)."""

    request: U64  # of a Tokenize or Generate, else 0
    code: FailureCode
    reason: Line


class Shutdown(Message, frozen=True, tag=32):
    """Finish the decode step at hand, free everything, exit 0."""

    incarnation: U32
    reason: Line


# --- clients (`outrider run --connect`) --------------------------------------------------------------------------


class Generate(Message, frozen=True, tag=40):
    """One request of a client. `options` is JSON: the `[sampling]`, `[generation]` and `[speculative]` sections."""

    incarnation: U32
    request: U64
    prompt: Text
    prompt_tokens: Tokens  # not empty: used instead of `prompt`
    chat: bool
    options: Text


class Chunk(Message, frozen=True, tag=41):
    incarnation: U32
    request: U64
    text: Text


class Done(Message, frozen=True, tag=42):
    incarnation: U32
    request: U64
    result: Text  # the object that `--json` prints


class Cancel(Message, frozen=True, tag=43):
    incarnation: U32
    request: U64


AnyMessage = (
    Hello
    | Welcome
    | Ready
    | VocabRequest
    | VocabBlock
    | Begin
    | Process
    | DraftRequest
    | DraftTokens
    | VerifyRequest
    | Verdict
    | Rollback
    | Accept
    | End
    | Tokenize
    | TokenizeResult
    | Heartbeat
    | Failure
    | Shutdown
    | Generate
    | Chunk
    | Done
    | Cancel
)
