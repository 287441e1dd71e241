"""Every message between coordinator, workers and clients. `docs/protocol.md` says each field in words.

Messages are arrays on the wire: an integer tag, then the fields in the order written here, all of them. There are no
defaults on purpose: a missing field is an error, like one too many. Field order, types and bounds are the protocol;
whoever changes them raises `PROTOCOL_VERSION`.

Token ids, positions, counts, probabilities and bounded texts travel, and nothing that a receiver could open, connect
to, import or run. The comment of a field is its entry in `docs/protocol.md`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from outrider.types import (
    MAX_TOKENS,
    U16,
    U32,
    U64,
    ChatMessage,
    DraftSampling,
    Grammar,
    ModelFacts,
    Probability,
    SamplingParams,
    Token,
    TokenLogprobs,
    Tokens,
)

PROTOCOL_VERSION = 10

#: A draft longer than this is a protocol error; `n_max` is bounded by it too.
MAX_DRAFT = 512
#: Branches of one session that a draft worker may follow.
MAX_BRANCHES = 64

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+\Z")]  # `$` would let a line end by
Text = Annotated[str, Meta(max_length=1 << 22)]
Line = Annotated[str, Meta(max_length=4096)]
Draft = Annotated[list[Token], Meta(max_length=MAX_DRAFT)]
Microseconds = U64
Incarnation = Annotated[int, Meta(ge=1, lt=2**32)]
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
    """worker, client → coordinator. First message of a connection, repeated until the reply comes.

    Reply: Welcome, or Failure `refused` with the reason. A Hello on a connection that is known starts it anew."""

    protocol: U32  # PROTOCOL_VERSION of the sender
    role: Literal["target", "draft", "client"]  # what the sender is
    name: Name  # its name in the configuration; over tcp also the name of its key
    pid: U32  # its process id, for logs


class Welcome(Message, frozen=True, tag=2):
    """coordinator → worker, client. The name was free and allowed; `incarnation` stamps all that follows."""

    protocol: U32  # PROTOCOL_VERSION of the coordinator
    incarnation: Incarnation  # number of this connection, never used before; 0 is no connection
    heartbeat_s: Annotated[float, Meta(gt=0.0, le=60.0)]  # both sides send a Heartbeat at least this often, seconds


class Ready(Message, frozen=True, tag=3):
    """worker → coordinator. The model is loaded; sent after every Welcome. No reply."""

    incarnation: U32  # of the Welcome
    facts: ModelFacts  # what was loaded


class VocabRequest(Message, frozen=True, tag=4):
    """coordinator → worker. Which texts does a block of the vocabulary hold? Reply: VocabBlock."""

    incarnation: U32  # of the Welcome
    block: U16  # index into `VocabFacts.block_hashes`


class VocabBlock(Message, frozen=True, tag=5):
    """worker → coordinator. The texts of one block of the vocabulary."""

    incarnation: U32  # of the request
    block: U16  # of the request
    first: Token  # id of texts[0]
    texts: Annotated[list[Annotated[bytes, Meta(max_length=65536)]], Meta(max_length=1024)]  # raw bytes of each token


class Measure(Message, frozen=True, tag=6):
    """coordinator → draft. The target is not at work now: what do your decodes take? Reply: Ready, with `row_times`."""

    incarnation: U32  # of the Welcome


# --- one session -------------------------------------------------------------------------------------------------


class SessionMessage(Message, frozen=True):
    """Base of everything that belongs to a session. A reply repeats these five numbers of its request."""

    incarnation: U32  # of the worker's connection
    session: U64  # which session
    round: U32  # token round within the session
    epoch: U32  # grows with each mismatch; drafts of an older epoch are void
    committed_len: U32  # tokens committed so far, the pending one included


class Begin(SessionMessage, frozen=True, tag=10):
    """coordinator → worker. A session starts; the worker keeps a place for it, and the sampler's settings. No reply
    (Failure `no_slot` if there is no place)."""

    sampling: SamplingParams  # how the target samples
    prompt_len: U32  # tokens of the committed text that were given, not generated
    choice: U32  # which of several answers to one prompt: part of the key of the random stream
    row_hashes: bool  # report a hash of the logits row of every committed position
    reuse_rows: bool  # rows of an earlier session with the same prefix may be kept
    grammar: Grammar | None  # what the generated tokens must obey; to the target alone
    synth_rates: Annotated[list[Probability], Meta(max_length=MAX_DRAFT)]  # not empty: INVALID output, the draft is
    # accepted up to position i with this probability; to the target alone
    draft_sampling: DraftSampling  # how a draft picks its tokens where temp > 0
    report_progress: bool  # send Progress while the prompt is read; to the target alone


class Prefix(SessionMessage, frozen=True):
    """Base of the requests that name the committed text: `history[:keep_len] + tail`.

    Failure `missing_prefix` if the receiver's history does not give that hash: it is then sent whole (keep_len 0)."""

    prefix_hash: U64  # hash of all committed_len tokens (`wire/prefix_hash.py`)
    keep_len: U32  # committed tokens that the worker is believed to know already
    tail: Tokens  # the committed tokens from keep_len on; keep_len + len(tail) = committed_len


class Process(Prefix, frozen=True, tag=11):
    """coordinator → worker. Replay batch: bring the cache up to the committed text, all but its pending token.
    No reply."""


class DraftRequest(Prefix, frozen=True, tag=12):
    """coordinator → draft worker. Draft tokens after the pending one. Reply: DraftTokens."""

    n_max: Annotated[int, Meta(ge=1, le=MAX_DRAFT)]  # at most so many tokens
    n_min: Annotated[int, Meta(ge=0, le=MAX_DRAFT)]  # a shorter draft is dropped
    p_min: Probability  # stop before a token whose probability (among the ten best) is below this
    credit: U32  # absolute position up to which the draft may ride on by itself; 0 in lockstep
    n_branches: Annotated[int, Meta(ge=0, le=MAX_BRANCHES)]  # at most so many branches off the chain; 0 in lockstep
    with_probs: bool  # tell what the draft model thought of each token; told in any case where p_min is above 0


class Branch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Another way on: up to `start` the text is the chain's, there it takes another token, and then it may go on so."""

    start: U32  # absolute position of tokens[0]
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_DRAFT)]  # the other token, and what follows it
    probs: Annotated[list[Probability], Meta(min_length=1, max_length=MAX_DRAFT)]  # of each token, among the ten best

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probs):
            raise ValueError("`tokens` and `probs` of a branch differ in length")


class DraftTokens(SessionMessage, frozen=True, tag=13):
    """draft worker → coordinator. Drafted tokens, and where that was asked for what the draft model thought of each: of the
    chain, which goes on where the message before ended, and of its branches, each told whole when it has grown."""

    start: U32  # absolute position of tokens[0]
    tokens: Draft  # may be none
    probs: Annotated[list[Probability], Meta(max_length=MAX_DRAFT)]  # of each token, among the ten best, or none
    entropies: Annotated[list[Annotated[float, Meta(ge=0.0, le=3.0)]], Meta(max_length=MAX_DRAFT)]  # nats, same ten
    branches: Annotated[list[Branch], Meta(max_length=MAX_BRANCHES)]  # for the case that the target leaves the chain
    final: bool  # nothing more comes for this request
    n_dropped: U32  # tokens drafted and withheld (n_min)
    n_evaluated: U32  # rows the engine evaluated for this reply
    decode_us: Microseconds  # time inside Engine.decode

    def __post_init__(self) -> None:
        if len(self.probs) != len(self.entropies) or len(self.probs) not in (0, len(self.tokens)):
            raise ValueError("`tokens`, `probs` and `entropies` differ in length")


class VerifyRequest(Prefix, frozen=True, tag=14):
    """coordinator → target worker. One batch: pending token and draft, all rows out. Reply: Verdict."""

    draft: Draft  # compared with what the target samples, never injected; may be none
    credit: U32  # absolute position up to which the target may verify what was not yet asked for
    goes_on: bool  # no draft is to follow: the target may go on with its own next token, up to the credit


class Push(SessionMessage, frozen=True, tag=26):
    """coordinator → target worker. What will be asked for next, by what the verdict at hand ends with: a branch whose first
    token is the verdict's last one, at its position. The target may begin with it before the request comes. No reply."""

    branches: Annotated[list[Branch], Meta(max_length=MAX_BRANCHES)]  # a later one replaces an earlier one of its token


class Verifying(SessionMessage, frozen=True, tag=27):
    """coordinator → draft worker. The target has just been asked: a step that would not end before a verdict which probably
    contradicts it is better not begun. No reply."""

    n_tested: Annotated[int, Meta(ge=0, le=MAX_DRAFT)]  # drafted tokens that the verdict will be about
    due_us: U64  # when it probably comes, by the monotonic clock of the coordinator's host: others make nothing of it


class Verdict(SessionMessage, frozen=True, tag=15):
    """target worker → coordinator. What the target sampled, row by row: as far as it equals the draft, and one more."""

    ahead: bool  # it was begun before the request came
    n_tested: U16  # how many tokens of the draft were evaluated; the rest was cut at one that the grammar forbids
    accepted: U16  # how many tokens of the draft the target sampled too
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_DRAFT + 1)]  # what was sampled: accepted + 1, or
    # `accepted` where the last accepted token ends the text
    pieces: Annotated[list[Annotated[bytes, Meta(max_length=65536)]], Meta(max_length=MAX_DRAFT + 1)]  # bytes of each
    end_of_text: bool  # the last token is an end-of-generation token
    row_hashes: Annotated[list[U64], Meta(max_length=MAX_DRAFT + 1)]  # of each token's logits; empty unless asked for
    n_reused: U32  # rows of an earlier session that this one could keep (its prompt cache)
    n_evaluated: U32  # rows the engine evaluated for this reply
    decode_us: Microseconds  # time inside Engine.decode
    n_sessions: U16  # that shared the decode; 0: there were several decodes, or rows of a prompt in it
    n_rows: U32  # of all of them
    logprobs: Annotated[list[TokenLogprobs], Meta(max_length=MAX_DRAFT + 1)]  # of each token; empty unless asked for

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if n != self.accepted + 1 and not (n == self.accepted and self.end_of_text):
            raise ValueError("`tokens` are not `accepted` + 1")
        if self.accepted > self.n_tested:
            raise ValueError("more was accepted than tested")
        if len(self.pieces) != n or {len(self.row_hashes), len(self.logprobs)} - {0, n}:
            raise ValueError("`tokens`, `pieces`, `row_hashes` and `logprobs` differ in length")


class Rollback(Prefix, frozen=True, tag=16):
    """coordinator → worker. The draft was wrong from some position on: drop the wrong rows, evaluate the right ones.
    No reply."""


class Accept(SessionMessage, frozen=True, tag=17):
    """coordinator → draft worker. What became of the last draft. No reply."""

    n_accepted: U16  # how many of its tokens were committed
    by_other: bool  # another speculator made that draft


class End(SessionMessage, frozen=True, tag=18):
    """coordinator → worker. The session is over; its place is free. Unknown sessions are ignored. No reply."""


class Progress(SessionMessage, frozen=True, tag=19):
    """target worker → coordinator. How far the prompt is read; where Begin asked for it, at the start and after every
    batch."""

    n_held: U32  # tokens of the prompt that are evaluated


# --- text --------------------------------------------------------------------------------------------------------


class Tokenize(Message, frozen=True, tag=20):
    """coordinator → target worker. Text, or chat messages rendered by the target's own template, to tokens.
    Reply: TokenizeResult, or Failure."""

    incarnation: U32  # of the target's connection
    request: U64  # number that the reply repeats
    text: Text  # what to tokenize
    messages: Annotated[list[ChatMessage], Meta(max_length=4096)]  # not empty: `text` is ignored
    add_special: bool  # add BOS and EOS where the model's flags say so
    parse_special: bool  # control tokens written out in the text are recognised
    with_pieces: bool  # also tell the bytes of each token


class TokenizeResult(Message, frozen=True, tag=21):
    """target worker → coordinator. The tokens of a Tokenize."""

    incarnation: U32  # of the request
    request: U64  # of the request
    tokens: Tokens  # token ids
    pieces: Annotated[list[Annotated[bytes, Meta(max_length=65536)]], Meta(max_length=MAX_TOKENS)]  # bytes that each
    # adds to a text; empty unless asked for


class Detokenize(Message, frozen=True, tag=22):
    """coordinator → target worker. Tokens to text. Reply: TextResult, or Failure."""

    incarnation: U32  # of the target's connection
    request: U64  # number that the reply repeats
    tokens: Tokens  # token ids
    special: bool  # write control tokens out too


class RenderChat(Message, frozen=True, tag=23):
    """coordinator → target worker. Chat messages to text, by the target's own template. Reply: TextResult, or
    Failure."""

    incarnation: U32  # of the target's connection
    request: U64  # number that the reply repeats
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]  # the conversation
    add_generation_prompt: bool  # end with the head of the assistant's answer
    variables: Line  # JSON object of further variables of the template; empty: none


class TextResult(Message, frozen=True, tag=24):
    """target worker → coordinator. The text of a Detokenize or RenderChat."""

    incarnation: U32  # of the request
    request: U64  # of the request
    text: Text  # what it came to


# --- life and death ----------------------------------------------------------------------------------------------


class Heartbeat(Message, frozen=True, tag=30):
    """both ways, every `Welcome.heartbeat_s`, also while a worker computes. The work loop moves its numbers: `progress`
    at rest while requests wait means that the worker is stuck. The coordinator and clients send 0 for both."""

    incarnation: U32  # of the connection
    progress: U64  # grows with every message handled and every decode finished
    n_waiting: U32  # requests received and not yet answered


class Failure(SessionMessage, frozen=True, tag=31):
    """both ways. The request that these five numbers name failed (all 0: it concerns the connection itself)."""

    request: U64  # of a Tokenize, Detokenize, RenderChat or Generate, else 0
    code: FailureCode  # what the receiver can act on
    reason: Line  # the same in words


class Shutdown(Message, frozen=True, tag=32):
    """coordinator → worker, client. Finish the decode step at hand, free everything, exit 0. No reply."""

    incarnation: U32  # of the connection
    reason: Line  # for the log


# --- clients (`outrider run --connect`) --------------------------------------------------------------------------


class Generate(Message, frozen=True, tag=40):
    """client → coordinator. One request. Reply: Chunk as often as there is text, then Done; or Failure."""

    incarnation: U32  # of the client's connection
    request: U64  # number that the replies repeat
    prompt: Text  # text to go on from
    prompt_tokens: Tokens  # not empty: used instead of `prompt`
    chat: bool  # the prompt is a user message for the model's chat template
    options: Text  # JSON: the `[sampling]`, `[generation]` and `[speculative]` sections of a configuration


class Chunk(Message, frozen=True, tag=41):
    """coordinator → client. A piece of the text."""

    incarnation: U32  # of the request
    request: U64  # of the request
    text: Text  # follows the text of the chunks before


class Done(Message, frozen=True, tag=42):
    """coordinator → client. The request is finished."""

    incarnation: U32  # of the request
    request: U64  # of the request
    result: Text  # the object that `--json` prints


class Cancel(Message, frozen=True, tag=43):
    """client → coordinator. Stop a request. Reply: its Done."""

    incarnation: U32  # of the client's connection
    request: U64  # of the Generate


AnyMessage = (
    Hello
    | Welcome
    | Ready
    | VocabRequest
    | VocabBlock
    | Measure
    | Begin
    | Process
    | DraftRequest
    | DraftTokens
    | VerifyRequest
    | Push
    | Verifying
    | Verdict
    | Rollback
    | Accept
    | End
    | Progress
    | Tokenize
    | TokenizeResult
    | Detokenize
    | RenderChat
    | TextResult
    | Heartbeat
    | Failure
    | Shutdown
    | Generate
    | Chunk
    | Done
    | Cancel
)
