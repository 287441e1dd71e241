"""Faults that users of other implementations reported, tried on the whole pipeline. Each test names its entry of the
table in the tests' README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from coordinator.assemble import make_request as configured
from coordinator.auto import make_session
from coordinator.request import Request
from coordinator.result import result, summary
from coordinator.schedule import Lockstep
from coordinator.service import check_prompt
from coordinator.session import Session
from draft_worker.worker import DraftWorker
from outrider.config import Config, Draft, Speculative, Target, apply_request
from outrider.engine.base import Output, Span
from outrider.errors import RequestError
from outrider.speculators.factory import make_chain
from outrider.speculators.types import NgramModParams, NgramParams, SpeculatorParams
from outrider.types import Grammar, SamplingParams
from outrider.wire.messages import DraftRequest, VerifyRequest
from target_worker.worker import TargetWorker
from tests.harness import GREEDY, Pair, make_request, plain, scripted

SMALL = SpeculatorParams(
    ngram_simple=NgramParams(size_n=3, size_m=4),
    ngram_map_k=NgramParams(size_n=3, size_m=4),
    ngram_map_k4v=NgramParams(size_n=3, size_m=4),
    ngram_mod=NgramModParams(n_match=3, n_min=1, n_max=4),
)
LOOKUP = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "ngram-suffix")
NO_END = SamplingParams(temp=0.0, ignore_eos=True)
LOOP = Grammar("gbnf", 'root ::= ("ab" "cd")*')  # the text repeats itself whatever the model wants


def run(pair: Pair, request: Request, params: SpeculatorParams = SMALL) -> Session:
    """With the speculators that the request names."""
    chain = make_chain(request.speculation.types, params, model_outside=True)
    session = make_session(request, Lockstep(), chain)
    for incarnation, role in enumerate(pair.workers, start=1):
        pair.connect(session, role, incarnation)
    pair.drive(session, session.start(0.0))
    return session


def rows_decoded(engine: Any) -> list[int]:
    """Rows of every decode from now on."""
    rows: list[int] = []
    decode = engine.decode

    def counting(spans: Sequence[Span]) -> Output:
        rows.append(sum(len(span.tokens) for span in spans))
        output: Output = decode(spans)
        return output

    engine.decode = counting
    return rows


# --- B: speculation that is off or set otherwise than it seems ------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "draft", "reason"),
    [
        ({"types": (), "off_reason": "--spec-type none"}, scripted, "--spec-type none"),
        ({}, None, "draft worker not connected"),
        ({"prompt": [1, 299]}, lambda: scripted("vocab=290"), "token 299 is unknown"),
        ({}, lambda: scripted(n_ctx=8), "draft context full"),
    ],
)
def test_b1_drafting_that_is_off_says_so_and_why(options: dict[str, Any], draft: Any, reason: str) -> None:
    off_reason = options.pop("off_reason", None)
    request = make_request(n_predict=5, **options)
    request = replace(request, speculation=replace(request.speculation, off_reason=off_reason))
    answer = result(Pair(scripted(), draft() if draft else None).run(request))
    assert answer["speculation"]["status"] == "off"
    assert reason in (answer["speculation"]["reason"] or "")
    assert answer["timings"]["draft_n"] == 0
    assert reason in summary(answer)


@pytest.mark.parametrize("type_", LOOKUP)
def test_b4_every_type_drafts_where_it_must_and_is_named(type_: str) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed (extra `grammar`)")
    request = make_request(list(b"abcdabcdabcd"), n_predict=60, types=(type_,), grammar=LOOP, sampling=NO_END)
    answer = result(run(Pair(scripted()), request))
    stats = answer["speculation"]["per_type"][type_]
    assert stats["n_tested_tokens"] == answer["timings"]["draft_n"] > 0
    assert stats["n_committed_tokens"] == answer["timings"]["draft_n_accepted"] > 10


@pytest.mark.parametrize(("asked", "used"), [(0, 0), (1, 1), (4, 4), (8, 8), (16, 8)])
def test_b6_a_request_sets_its_own_length_below_the_cap(asked: int, used: int) -> None:
    config = Config(
        target=Target(model="scripted:"),
        draft=Draft(model="scripted:"),
        speculative=Speculative(types=["draft-simple"], n_max=8),
    )
    config = apply_request(config, f'{{"speculative": {{"n_max": {asked}}}, "generation": {{"n_predict": 40}}}}')
    pair = Pair(scripted(), scripted())
    answer = result(pair.run(configured(config, list(b"Once"))))
    longest = max(len(message.draft) for _, message in pair.sent if isinstance(message, VerifyRequest))
    assert longest == answer["speculation"]["n_max"] == used


def test_b8_drafts_that_are_all_too_short_are_counted() -> None:
    session = Pair(scripted("seed=3"), scripted("seed=3")).run(make_request(n_max=3, n_min=3, p_min=0.66, n_predict=60))
    assert session.counts.draft_n == 0
    assert session.counts.n_dropped > 0
    assert result(session)["speculation"]["per_type"]["draft-simple"]["n_made_tokens"] == session.counts.n_dropped


# --- C: what is accepted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_max", [1, 2, 4])
def test_c1_c2_only_what_the_target_samples_is_committed(n_max: int) -> None:
    request = make_request(n_max=n_max, n_predict=120)
    session = Pair(scripted("seed=3"), scripted("seed=3,disagree=33")).run(request)
    assert session.generated == plain(scripted("seed=3"), request).generated
    rate = session.counts.accepted_per_pos[0] / session.counts.drafted_per_pos[0]
    assert 0.5 < rate < 0.85


# --- D: ends --------------------------------------------------------------------------------------------------------


def test_d1_an_end_inside_a_block_leaves_nothing_behind_it() -> None:
    """The next turn extends the answer, and is what a fresh worker makes of it."""
    script = "seed=11,eos=6"
    pair = Pair(scripted(script), scripted(script))
    first = pair.run(make_request(n_max=8, n_predict=200))
    assert (first.finish_reason, first.generated[-1]) == ("stop", 256)
    assert first.counts.draft_n_accepted <= len(first.generated)
    assert len(pair.workers["target"].engine.tokenizer.piece(256)) == 0
    follow_up = make_request([*first.history.tokens[:-1], *b" and then"], n_max=8, n_predict=30, row_hashes=True)
    second = pair.run(follow_up)
    fresh = plain(scripted(script), follow_up)
    assert (second.generated, second.row_hashes) == (fresh.generated, fresh.row_hashes)
    assert second.counts.n_cached == len(first.history) - 1
    ignored = make_request(n_max=8, n_predict=200, sampling=SamplingParams(temp=0.0, ignore_eos=True))
    assert len(pair.run(ignored).generated) == 200


@pytest.mark.parametrize("n_max", [0, 1, 8])
def test_d3_d5_the_stop_that_is_complete_first_ends_ids_and_text_alike(n_max: int) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed (extra `grammar`)")
    sampling = SamplingParams(temp=0.0, n_probs=1)
    request = make_request(
        stops=("zz", "q", "-"),
        n_max=n_max,
        n_predict=30,
        sampling=sampling,
        grammar=Grammar("gbnf", 'root ::= "ab-cq zz"'),
    )
    session = Pair(scripted("seed=3"), scripted("seed=3")).run(request)
    answer = result(session)
    assert (answer["text"], answer["stopped_by"], answer["finish_reason"]) == ("ab", "-", "stop")
    assert bytes(answer["tokens"]) == b"ab-"  # the token that completes the stop is the last one
    assert [entry["id"] for entry in answer["logprobs"]] == answer["tokens"]
    assert answer["timings"]["predicted_n"] == 3


def test_d6_a_draft_is_never_told_of_stop_strings() -> None:
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    pair.run(make_request(stops=("never in the text",), n_predict=20))
    assert b"never" not in b"".join(msgspec.msgpack.encode(message) for role, message in pair.sent if role == "draft")


# --- E: memory ------------------------------------------------------------------------------------------------------


def test_e2_a_draft_whose_context_is_full_reads_nothing_any_more() -> None:
    draft = scripted("seed=3", n_ctx=64)
    rows = rows_decoded(draft)
    session = Pair(scripted("seed=3", n_ctx=512), draft).run(make_request(n_predict=300))
    assert len(session.generated) == 300
    assert sum(rows) <= 64 + 4  # the last draft may be one token too long for its context
    assert len(session.notes) == 1


def test_e12_a_prefix_that_a_cache_holds_serves_both_sides() -> None:
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    prompt = [i % 251 for i in range(200)]
    changed = [*prompt[:150], 7, *prompt[151:]]
    expected = {tuple(p): plain(scripted("seed=3"), make_request(p, 20)).generated for p in (prompt, changed)}
    cached = []
    for text in (prompt, prompt, changed):
        session = pair.run(make_request(text, 20))
        assert session.generated == expected[tuple(text)]
        assert session.counts.draft_n_accepted == session.counts.draft_n
        cached.append(session.counts.n_cached)
    assert cached == [0, 199, 150]
    pair.workers["draft"] = DraftWorker(scripted("seed=3"))
    assert pair.run(make_request(changed, 20)).counts.n_cached == 199
    pair.workers["target"] = TargetWorker(scripted("seed=3"))
    session = pair.run(make_request(changed, 20))
    assert (session.counts.n_cached, session.generated) == (0, expected[tuple(changed)])
    assert session.counts.draft_n_accepted == session.counts.draft_n


@pytest.mark.parametrize("n_max", [1, 2, 8, 64])
@pytest.mark.parametrize("n_batch", [1, 2, 9])
def test_e14_a_block_that_is_longer_than_a_batch_goes_in_parts(n_max: int, n_batch: int) -> None:
    request = make_request(n_max=n_max, n_predict=70, row_hashes=True)
    session = Pair(scripted("seed=3", n_batch=n_batch), scripted("seed=3", n_batch=n_batch)).run(request)
    expected = plain(scripted("seed=3"), request)
    assert (session.generated, session.row_hashes) == (expected.generated, expected.row_hashes)
    assert session.counts.draft_n == session.counts.draft_n_accepted


def test_e16_a_prompt_beyond_the_context_is_refused_with_both_numbers() -> None:
    for n_prompt in (16, 17):
        with pytest.raises(RequestError, match=rf"{n_prompt} tokens.* n_ctx = 16"):
            check_prompt([1] * n_prompt, n_vocab=300, n_ctx=16)
    check_prompt([1] * 15, n_vocab=300, n_ctx=16)
    session = Pair(scripted(n_ctx=16), scripted(n_ctx=16)).run(make_request([1] * 15, n_predict=-1))
    assert (len(session.generated), session.finish_reason) == (1, "length")


# --- F: seeds -------------------------------------------------------------------------------------------------------


def test_f8_one_seed_one_text_after_restarts_and_beside_others() -> None:
    request = make_request(sampling=SamplingParams(temp=0.9, seed=42), n_predict=50)
    expected = plain(scripted("seed=3"), request).generated
    for n_max in (0, 2, 8):
        pair = Pair(scripted("seed=3", n_seq=2), scripted("seed=3,disagree=20", n_seq=2))
        for _ in range(2):
            limited = replace(request, speculation=replace(request.speculation, n_max=n_max))
            assert pair.run(limited).generated == expected
            pair.workers["draft"] = DraftWorker(scripted("seed=3,disagree=20", n_seq=2))


# --- I: several requests --------------------------------------------------------------------------------------------


def test_i3_all_sequences_of_a_worker_share_one_model() -> None:
    worker = DraftWorker(scripted(n_seq=4))
    assert {id(cache.engine) for cache in worker._free} == {id(worker.engine)}
    assert Config().coordinator.n_seq == 1  # what more sequences cost is asked for


# --- J: text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_max", [0, 1, 3, 8])
@pytest.mark.parametrize(
    ("text", "n_predict", "stops", "kept"),
    [
        ("a🌱b", 50, (), "a🌱b"),
        ("a🌱b", 4, (), "a\ufffd"),  # cut after three of its four bytes
        ("漢字", 50, (), "漢字"),
        ("a🌱b", 50, ("🌱",), "a"),
        ("🌱x!", 50, ("x",), "🌱"),
    ],
)
def test_j1_characters_are_whole_wherever_blocks_end(
    n_max: int, text: str, n_predict: int, stops: tuple[str, ...], kept: str
) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed (extra `grammar`)")
    sampling = SamplingParams(temp=0.0, n_probs=1)
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    request = make_request(
        n_predict=n_predict, n_max=n_max, stops=stops, sampling=sampling, grammar=Grammar("gbnf", f'root ::= "{text}"')
    )
    session = pair.run(request)
    assert session.text.text == "".join(pair.texts) == kept
    assert all("\ufffd" not in part for part in pair.texts[:-1])
    entries = result(session)["logprobs"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == text.encode()[: len(session.generated)]


def test_drafts_of_the_first_round_are_asked_for_by_their_limits() -> None:
    pair = Pair(scripted(), scripted())
    pair.run(make_request(n_max=5, n_min=1, p_min=0.25, n_predict=3, sampling=GREEDY))
    request = next(message for _, message in pair.sent if isinstance(message, DraftRequest))
    assert (request.n_max, request.n_min, request.p_min) == (2, 1, 0.25)
