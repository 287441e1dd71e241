"""One message of every type, and hypothesis strategies that make any valid message of a type from its definition."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as mi

from outrider.types import (
    ChatMessage,
    Grammar,
    LogitBias,
    ModelFacts,
    RowTime,
    SamplingParams,
    TokenLogprobs,
    VocabFacts,
)
from outrider.wire import messages as m

MESSAGE_TYPES: tuple[type[m.Message], ...] = get_args(m.AnyMessage)

_VOCAB = VocabFacts(
    type="bpe", n_vocab=49152, add_bos=False, bos=1, add_eos=False, eos=2, block_hashes=[2**64 - 1, 0, 12345]
)
_FACTS = ModelFacts(
    engine="numpy",
    architecture="llama",
    name="SmolLM2 135M",
    n_vocab=49152,
    n_ctx=2048,
    n_batch=512,
    n_seq=4,
    memory="truncate",
    memory_bytes=271_000_000,
    has_chat_template=True,
    vocab=_VOCAB,
    row_times=[RowTime(1, 40000), RowTime(4, 44000)],
)
_SAMPLING = SamplingParams(seed=42, temp=0.75, logit_bias=[LogitBias(token=7, bias=-1.5)], n_probs=2)
_LOGPROBS = TokenLogprobs(logprob=-0.5, tokens=[5, 7], logprobs=[-0.5, -1e9], pieces=[b" a", b"\xff"])
_IDS = (3, 2**40, 17, 2, 129)  # incarnation, session, round, epoch, committed_len

SAMPLES: dict[str, m.Message] = {
    type(message).__name__: message
    for message in (
        m.Hello(m.PROTOCOL_VERSION, "draft", "draft-1", 4711),
        m.Welcome(m.PROTOCOL_VERSION, 3, 0.5),
        m.Ready(3, _FACTS),
        m.VocabRequest(3, 2),
        m.VocabBlock(3, 2, 2053, [b"ab", b"\xff\x00", b""]),
        m.Measure(3),
        m.Begin(
            *_IDS,
            sampling=_SAMPLING,
            prompt_len=100,
            choice=0,
            row_hashes=True,
            reuse_rows=False,
            grammar=Grammar("gbnf", 'root ::= "é"'),
            synth_rates=[0.5, 0.25],
            draft_sampling="coupled",
            report_progress=False,
        ),
        m.Process(*_IDS, prefix_hash=2**61 - 2, keep_len=128, tail=[300]),
        m.DraftRequest(
            *_IDS,
            prefix_hash=99,
            keep_len=127,
            tail=[1, 2**31 - 1],
            n_max=3,
            n_min=0,
            p_min=0.75,
            credit=0,
            n_branches=0,
            with_probs=False,
        ),
        m.DraftTokens(
            *_IDS,
            start=129,
            tokens=[5, 6],
            probs=[1.0, 0.25],
            entropies=[0.0, 1.5],
            branches=[m.Branch(130, [7, 8], [0.5, 0.75])],
            final=True,
            n_dropped=0,
            n_evaluated=3,
            decode_us=1234,
        ),
        m.VerifyRequest(*_IDS, prefix_hash=99, keep_len=128, tail=[1], draft=[5, 6], credit=0, goes_on=False),
        m.Push(*_IDS, branches=[m.Branch(130, [7, 8], [0.5, 0.75])]),
        m.Verifying(*_IDS, n_tested=2, due_us=2**40),
        m.Verdict(
            *_IDS,
            ahead=False,
            n_tested=2,
            accepted=1,
            tokens=[5, 9],
            pieces=[b" a", b"\xf0\x9f"],
            end_of_text=False,
            row_hashes=[1, 2**64 - 1],
            n_reused=128,
            n_evaluated=3,
            decode_us=11000,
            n_sessions=2,
            n_rows=5,
            logprobs=[_LOGPROBS, _LOGPROBS],
        ),
        m.Rollback(*_IDS, prefix_hash=98, keep_len=128, tail=[9]),
        m.Accept(*_IDS, n_accepted=1, by_other=False),
        m.End(*_IDS),
        m.Progress(*_IDS, n_held=64),
        m.Tokenize(3, 8, "", [ChatMessage("user", "Grüße 🎈")], True, False, True),
        m.TokenizeResult(3, 8, [1, 2, 3], [b"", b"Gr", b"\xc3"]),
        m.Detokenize(3, 9, [1, 2, 3], True),
        m.RenderChat(3, 10, [ChatMessage("user", "Grüße 🎈")], True, '{"enable_thinking": false}'),
        m.TextResult(3, 10, "user: Grüße 🎈"),
        m.Heartbeat(3, 2**63, 1),
        m.Failure(*_IDS, request=0, code="missing_prefix", reason="12 tokens known, 128 assumed"),
        m.Shutdown(3, "end of run"),
        m.Generate(5, 1, "Hello", [], True, '{"sampling": {"seed": 1}}'),
        m.Chunk(5, 1, "wörld"),
        m.Done(5, 1, '{"text": "wörld"}'),
        m.Cancel(5, 1),
    )
}


def messages(cls: type[m.Message]) -> st.SearchStrategy[Any]:
    """Any valid message of this type."""
    info = mi.type_info(cls)
    assert isinstance(info, mi.StructType)
    fields = {field.name: _values(field.type) for field in info.fields}
    return st.fixed_dictionaries(fields).map(_with_equal_lengths(cls)).map(lambda values: cls(**values))


def _values(info: mi.Type) -> st.SearchStrategy[Any]:
    match info:
        case mi.BoolType():
            return st.booleans()
        case mi.IntType():
            return st.integers(_least(info), _most(info))
        case mi.FloatType(ge=ge, gt=gt, le=le):
            low = ge if ge is not None else gt
            return st.floats(low, le, exclude_min=ge is None, allow_nan=False)
        case mi.StrType(pattern=None):
            letters = st.characters(exclude_categories=["Cs"])
            return st.text(letters, min_size=info.min_length or 0, max_size=min(info.max_length or 0, 50))
        case mi.StrType():
            return st.text("azAZ09_.-", min_size=info.min_length or 0, max_size=info.max_length)
        case mi.BytesType():
            return st.binary(max_size=20)
        case mi.LiteralType():
            return st.sampled_from(info.values)
        case mi.ListType():
            return st.lists(_values(info.item_type), min_size=info.min_length or 0, max_size=12)
        case mi.NoneType():
            return st.none()
        case mi.UnionType():
            return st.one_of([_values(kind) for kind in info.types])
        case mi.StructType() if info.cls is TokenLogprobs:
            return _logprobs(info)
        case mi.StructType() if info.cls is m.Branch:
            return _branches(info)
        case mi.StructType():
            return st.builds(info.cls, **{field.name: _values(field.type) for field in info.fields})
    raise NotImplementedError(info)


def _logprobs(info: mi.StructType) -> st.SearchStrategy[Any]:
    """Its lists have one length."""
    one = {field.name: _values(getattr(field.type, "item_type", field.type)) for field in info.fields}
    best = st.lists(st.tuples(one["tokens"], one["logprobs"], one["pieces"]), max_size=4)

    def build(logprob: float, best: list[tuple[int, float, bytes]]) -> TokenLogprobs:
        tokens, logprobs, pieces = (list(column) for column in zip(*best, strict=True)) if best else ([], [], [])
        return TokenLogprobs(logprob=logprob, tokens=tokens, logprobs=logprobs, pieces=pieces)

    return st.builds(build, one["logprob"], best)


def _branches(info: mi.StructType) -> st.SearchStrategy[m.Branch]:
    """Its lists have one length."""
    one = {field.name: _values(getattr(field.type, "item_type", field.type)) for field in info.fields}
    rows = st.lists(st.tuples(one["tokens"], one["probs"]), min_size=1, max_size=4)
    return st.builds(lambda start, rows: m.Branch(start, *map(list, zip(*rows, strict=True))), one["start"], rows)


def _least(info: mi.IntType) -> int:
    assert info.gt is None
    return info.ge if info.ge is not None else -(2**63)


def _most(info: mi.IntType) -> int:
    if info.le is not None:
        return info.le
    return info.lt - 1 if info.lt is not None else 2**64 - 1


def _with_equal_lengths(cls: type[m.Message]) -> Any:
    """The two messages with parallel arrays get them at one length."""

    def draft(values: dict[str, Any]) -> dict[str, Any]:
        if not values["probs"]:
            return values | {"entropies": []}
        n = min(len(values[name]) for name in ("tokens", "probs", "entropies"))
        return values | {name: values[name][:n] for name in ("tokens", "probs", "entropies")}

    def verdict(values: dict[str, Any]) -> dict[str, Any]:
        n = len(values["tokens"])
        pieces = (values["pieces"] + [b""] * n)[:n]
        hashes = (values["row_hashes"] + [0] * n)[:n] if values["row_hashes"] else []
        logprobs = (values["logprobs"] * n)[:n] if values["logprobs"] else []
        at_end = values["end_of_text"] and values["accepted"] % 2 == 0
        return values | {
            "pieces": pieces,
            "row_hashes": hashes,
            "logprobs": logprobs,
            "accepted": n - (0 if at_end else 1),
            "n_tested": max(values["n_tested"], n),
        }

    return {m.DraftTokens: draft, m.Verdict: verdict}.get(cls, lambda values: values)


def as_array(message: m.Message) -> list[Any]:
    """The array that travels: tag, then the fields."""
    array: list[Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    return array
