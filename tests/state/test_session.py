"""The session machine where things go wrong: losses, doubles, strangers, failures, ends in the middle of a round."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.instructions import Finished, Send
from coordinator.schedule import Lockstep
from coordinator.session import Phase, Session
from outrider.speculators.factory import make_chain
from outrider.speculators.types import SpeculatorParams
from outrider.types import ModelFacts, SamplingParams
from outrider.wire.messages import (
    Begin,
    DraftRequest,
    DraftTokens,
    End,
    Failure,
    Message,
    Process,
    Rollback,
    SessionMessage,
    Verdict,
    VerifyRequest,
)
from tests.harness import DRAFT_SIMPLE, Pair, make_request, plain, scripted

FACTS = scripted().facts


def facts(**changes: Any) -> ModelFacts:
    return msgspec.structs.replace(FACTS, **changes)


def started(**options: Any) -> tuple[Session, list[Message]]:
    """A session of five prompt tokens that has asked for its first draft, and what it sent."""
    options = {"prompt": [1, 2, 3, 4, 5], **options}
    session = Session(make_request(**options), Lockstep())
    session.worker_ready("target", 1, FACTS)
    session.worker_ready("draft", 2, FACTS)
    return session, messages(session.start(0.0))


def messages(commands: list[Any]) -> list[Message]:
    return [command.message for command in commands if isinstance(command, Send)]


def kinds(commands: list[Any]) -> list[str]:
    return [type(getattr(command, "message", command)).__name__ for command in commands]


def stamp(request: SessionMessage) -> tuple[int, ...]:
    return tuple(getattr(request, name) for name in SessionMessage.__struct_fields__)


def draft(request: SessionMessage, tokens: list[int]) -> DraftTokens:
    ones = [1.0] * len(tokens)
    return DraftTokens(*stamp(request), request.committed_len, tokens, ones, [0.0] * len(tokens), [], True, 0, 1, 10)  # type: ignore[arg-type]


def verdict(request: SessionMessage, tokens: list[int], accepted: int, end: bool = False) -> Verdict:
    pieces = [bytes([token % 256]) for token in tokens]
    return Verdict(
        *stamp(request),
        False,
        max(accepted, len(getattr(request, "draft", []))),
        accepted,
        tokens,
        pieces,
        end,
        [],
        0,
        1,
        10,
        1,
        1,
        [],
    )  # type: ignore[arg-type]


def failure(request: SessionMessage, code: Any, reason: str = "why") -> Failure:
    return Failure(*stamp(request), 0, code, reason)  # type: ignore[arg-type]


def test_both_workers_read_the_prompt_at_the_same_time() -> None:
    _, sent = started()
    assert [type(message) for message in sent] == [Begin, DraftRequest, Begin, Process]
    assert sent[1].tail == sent[3].tail == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]


def test_one_round_with_a_mismatch() -> None:
    session, sent = started()
    (verify,) = messages(session.handle(draft(sent[1], [10, 11, 12]), 1.0))  # type: ignore[arg-type]
    assert isinstance(verify, VerifyRequest)
    assert (verify.draft, verify.keep_len, verify.tail) == ([10, 11, 12], 5, [])
    commands = session.handle(verdict(verify, [10, 77], 1), 2.0)
    assert kinds(commands) == ["Rollback", "DraftRequest", "Emit"]
    rollback, again = messages(commands)
    assert isinstance(rollback, Rollback)
    assert (rollback.epoch, rollback.keep_len, rollback.tail, rollback.committed_len) == (1, 5, [10, 77], 7)
    assert isinstance(again, DraftRequest)
    assert (again.keep_len, again.tail, again.round, again.epoch) == (7, [], 2, 1)
    assert session.generated == [10, 77]


def test_full_acceptance_needs_no_rollback() -> None:
    session, sent = started()
    (verify,) = messages(session.handle(draft(sent[1], [10, 11]), 1.0))  # type: ignore[arg-type]
    commands = session.handle(verdict(verify, [10, 11, 12], 2), 2.0)  # type: ignore[arg-type]
    assert kinds(commands) == ["DraftRequest", "Emit"]
    assert session.epoch == 0


@pytest.mark.parametrize("field", SessionMessage.__struct_fields__)
@pytest.mark.parametrize("delta", [-1, 1])
def test_a_reply_with_one_wrong_number_changes_nothing(field: str, delta: int) -> None:
    session, sent = started()
    (verify,) = messages(session.handle(draft(sent[1], [10]), 1.0))  # type: ignore[arg-type]
    reply = verdict(verify, [10, 11], 1)  # type: ignore[arg-type]
    wrong = msgspec.structs.replace(reply, **{field: getattr(reply, field) + delta})
    assert session.handle(wrong, 2.0) == []
    assert (session.generated, session.counts.n_stale, session.phase) == ([], 1, Phase.VERIFYING)
    assert session.handle(reply, 2.0)
    assert session.generated == [10, 11]


def test_a_prompt_that_is_only_to_be_read() -> None:
    request = make_request(types=[], n_predict=0)
    session = Pair(scripted()).run(request)
    assert (session.generated, session.finish_reason, session.counts.rounds) == ([], "length", 1)
    assert not session.context_full


def test_a_request_that_costs_its_target_twice_is_given_up() -> None:
    session = Session(make_request(types=[]), Lockstep())
    session.worker_ready("target", 1, FACTS)
    (_, asked) = messages(session.start(0.0))
    for incarnation in (2, 3):  # with a token in between it goes on
        session.handle(verdict(asked, [5], 0), 1.0)  # type: ignore[arg-type]
        assert session.worker_lost("target", "killed", 2.0) == []
        (_, asked) = messages(session.worker_ready("target", incarnation, FACTS))
    commands = session.worker_lost("target", "killed by signal 6", 3.0)
    assert isinstance(commands[-1], Finished)
    assert session.error_code == "worker_lost"
    assert session.error == "the target worker was lost 2 times on the same request: killed by signal 6"


def test_doubled_and_late_replies_are_counted_and_dropped() -> None:
    session, sent = started()
    first = draft(sent[1], [10])  # type: ignore[arg-type]
    (verify,) = messages(session.handle(first, 1.0))
    reply = verdict(verify, [10, 11], 1)  # type: ignore[arg-type]
    session.handle(reply, 2.0)
    for late in (reply, first):
        assert session.handle(late, 3.0) == []
    assert session.counts.n_stale == 2
    assert session.generated == [10, 11]


def test_a_reply_from_the_wrong_worker_is_stale() -> None:
    session, sent = started()
    assert session.handle(verdict(sent[1], [10], 0), 1.0) == []  # type: ignore[arg-type]
    assert session.phase is Phase.DRAFTING


def test_a_lost_draft_costs_its_drafts_and_a_new_one_rejoins() -> None:
    session, _ = started()
    (verify,) = messages(session.worker_lost("draft", "killed", 1.0))
    assert isinstance(verify, VerifyRequest)
    assert verify.draft == []
    commands = session.handle(verdict(verify, [10], 0), 2.0)
    assert kinds(commands) == ["VerifyRequest", "Emit"]
    assert session.worker_ready("draft", 7, FACTS) == []
    commands = session.handle(verdict(messages(commands)[0], [11], 0), 3.0)  # type: ignore[arg-type]
    assert kinds(commands) == ["Begin", "DraftRequest", "Emit"]
    request = messages(commands)[1]
    assert isinstance(request, DraftRequest)
    assert (request.incarnation, request.keep_len, request.tail) == (7, 0, [1, 2, 3, 4, 5, 10, 11])
    assert session.notes == ["draft worker lost at token 0: killed", "draft worker rejoined at token 1"]


def test_a_target_that_comes_back_is_asked_again() -> None:
    session, sent = started()
    session.handle(draft(sent[1], [10, 11]), 1.0)  # type: ignore[arg-type]
    assert session.worker_lost("target", "killed", 2.0) == []
    commands = session.worker_ready("target", 9, FACTS)
    assert kinds(commands) == ["Begin", "VerifyRequest"]
    begin, verify = messages(commands)
    assert begin.prompt_len == 5  # type: ignore[attr-defined]
    assert (verify.incarnation, verify.keep_len, verify.draft) == (9, 0, [10, 11])  # type: ignore[attr-defined]
    session.handle(verdict(verify, [10, 11, 12], 2), 3.0)  # type: ignore[arg-type]
    assert session.generated == [10, 11, 12]


def test_a_missing_prefix_is_sent_whole() -> None:
    session, sent = started()
    (verify,) = messages(session.handle(draft(sent[1], [10]), 1.0))  # type: ignore[arg-type]
    (again,) = messages(session.handle(failure(verify, "missing_prefix"), 2.0))  # type: ignore[arg-type]
    assert isinstance(again, VerifyRequest)
    assert (again.keep_len, again.tail, again.draft) == (0, [1, 2, 3, 4, 5], [10])


def test_a_draft_that_keeps_failing_is_left_alone() -> None:
    session, sent = started()
    request: Any = sent[1]
    for _ in range(3):
        (request,) = messages(session.handle(failure(request, "engine", "no memory"), 1.0))
        assert isinstance(request, DraftRequest)
    (verify,) = messages(session.handle(failure(request, "engine", "no memory"), 1.0))
    assert isinstance(verify, VerifyRequest)
    commands = session.handle(verdict(verify, [10], 0), 2.0)
    assert kinds(commands) == ["VerifyRequest", "Emit"]
    assert "no memory" in session.notes[0]
    assert not session.speculates


def test_a_target_that_keeps_failing_ends_the_request_with_its_reason() -> None:
    session, sent = started()
    (request,) = messages(session.handle(draft(sent[1], []), 1.0))  # type: ignore[arg-type]
    for _ in range(2):
        (request,) = messages(session.handle(failure(request, "engine", "no memory"), 1.0))  # type: ignore[arg-type]
    commands = session.handle(failure(request, "engine", "no memory"), 1.0)  # type: ignore[arg-type]
    assert commands[-1] == Finished("error", "target worker: no memory", "engine")


def test_a_verdict_that_contradicts_itself_ends_the_request() -> None:
    session, sent = started()
    (verify,) = messages(session.handle(draft(sent[1], [10]), 1.0))  # type: ignore[arg-type]
    commands = session.handle(verdict(verify, [10, 11, 12], 2), 2.0)  # type: ignore[arg-type]
    assert isinstance(commands[-1], Finished)
    assert commands[-1].reason == "error"
    assert session.generated == []


@pytest.mark.parametrize("n_predict", range(1, 13))
def test_exactly_as_many_tokens_as_asked(n_predict: int) -> None:
    session = Pair(scripted(), scripted()).run(make_request(n_predict=n_predict, n_max=4))
    assert len(session.generated) == n_predict
    assert session.finish_reason == "length"
    assert session.counts.rounds == -(-n_predict // 5)


def test_an_end_of_text_inside_a_draft_ends_everything() -> None:
    session, sent = started(n_max=6)
    session.handle(draft(sent[1], [10, 11, 256]), 1.0)  # type: ignore[arg-type]
    verify = session._waiting
    assert verify is not None
    commands = session.handle(verdict(verify, [10, 11, 256], 3, end=True), 2.0)
    assert session.generated == [10, 11, 256]
    assert session.counts.draft_n_accepted == 3
    assert kinds(commands) == ["Emit", "End", "End", "Finished"]


def test_a_stop_string_in_mid_block_ends_there() -> None:
    """What the target verified behind the stop is neither committed nor counted."""
    session, sent = started(prompt=[1, 2], stops=("bc",), n_max=6)
    session.handle(draft(sent[1], list(b"abcde")), 1.0)  # type: ignore[arg-type]
    verify = session._waiting
    assert verify is not None
    commands = session.handle(verdict(verify, list(b"abcdef"), 5), 2.0)
    assert session.text.text == "a"
    assert bytes(session.generated) == b"abc"
    assert session.counts.draft_n_accepted == 3
    assert session.counts.n_verified == 5
    assert isinstance(commands[-1], Finished)


@pytest.mark.parametrize("n_ctx", [20, 21, 30])
def test_the_context_is_used_to_its_end_and_no_further(n_ctx: int) -> None:
    request = make_request(prompt=list(range(16)), n_predict=-1, n_max=5)
    expected = plain(scripted(n_ctx=n_ctx), request)
    session = Pair(scripted(n_ctx=n_ctx), scripted(n_ctx=n_ctx)).run(request)
    assert session.generated == expected.generated
    assert len(session.history) == n_ctx
    assert session.finish_reason == "length"


def test_a_smaller_draft_context_ends_drafting_and_nothing_else() -> None:
    request = make_request(n_predict=100, n_max=4)
    pair = Pair(scripted(n_ctx=512), scripted(n_ctx=40))
    session = pair.run(request)
    assert session.generated == plain(scripted(n_ctx=512), request).generated
    assert session.notes == ["draft context full: n_ctx = 40 of the draft worker"]
    assert session.counts.draft_n_accepted > 10


def test_a_token_that_only_the_target_knows_switches_drafting_off() -> None:
    request = make_request(prompt=[1, 2, 299], n_predict=20)
    session = Pair(scripted("vocab=300"), scripted("vocab=290")).run(request)
    assert session.generated == plain(scripted("vocab=300"), request).generated
    assert "token 299 is unknown to the draft model" in session.notes[0]
    assert session.counts.draft_n == 0


def test_a_generated_token_that_only_the_target_knows_is_not_told_to_the_draft() -> None:
    session, sent = started()
    session._peers["draft"].facts = facts(n_vocab=200)
    session.handle(draft(sent[1], [10, 11]), 1.0)  # type: ignore[arg-type]
    verify = session._waiting
    assert verify is not None
    commands = session.handle(verdict(verify, [10, 250], 1), 2.0)
    assert kinds(commands) == ["VerifyRequest", "Emit"]
    assert session.notes == ["token 250 is unknown to the draft model (n_vocab = 200)"]


def test_a_draft_never_brings_an_id_beyond_the_target() -> None:
    session, sent = started()
    (verify,) = messages(session.handle(draft(sent[1], [10, 300, 11]), 1.0))  # type: ignore[arg-type]
    assert verify.draft == [10]  # type: ignore[attr-defined]


@pytest.mark.parametrize("n_messages", range(1, 12))
def test_cancel_at_every_point_frees_both_workers(n_messages: int) -> None:
    pair = Pair(scripted(), scripted("disagree=30"))
    session = Session(make_request(), Lockstep())
    for incarnation, role in enumerate(pair.workers, start=1):
        pair.connect(session, role, incarnation)
    seen = 0

    def cancel_later(role: str, message: Message) -> list[Message]:
        nonlocal seen
        seen += 1
        if seen == n_messages:
            for command in session.cancel(1.0):
                if isinstance(command, Send):
                    pair.workers[command.role].handle(command.message)
            return []
        return [] if seen > n_messages else [message]

    pair.filter = cancel_later
    pair.drive(session, session.start(0.0))
    assert session.finish_reason == "cancelled"
    assert all(not worker.slots for worker in pair.workers.values())
    pair.filter = lambda role, message: [message]
    again = pair.run(make_request())
    assert again.generated == plain(scripted(), make_request()).generated


def test_end_is_told_once_and_only_to_those_who_began() -> None:
    session = Session(make_request(types=()), Lockstep())
    session.worker_ready("target", 1, FACTS)
    session.worker_ready("draft", 2, FACTS)
    session.start(0.0)
    assert [type(m) for m in messages(session.cancel(1.0))] == [End]
    assert session.cancel(2.0) == []


def test_drafting_that_is_not_wanted_asks_nobody() -> None:
    for options in ({"types": ()}, {"n_max": 0}, {"n_max": 2, "n_min": 3}):
        pair = Pair(scripted(), scripted())
        session = pair.run(make_request(**{"types": DRAFT_SIMPLE, "n_predict": 8, **options}))
        assert session.counts.draft_n == 0
        assert not [message for role, message in pair.sent if role == "draft" and not isinstance(message, End)]


def test_a_predicted_answer_is_drafted_from_without_a_model() -> None:
    """The prediction is the answer with one wrong token; it is found again behind it."""
    request = make_request(n_predict=60, types=(), prompt=[1, 2, 3])
    expected = plain(scripted(), request)
    wrong = [*expected.generated[:30], 299, *expected.generated[31:]]
    chain = make_chain(["ngram-suffix"], SpeculatorParams())
    prediction = make_request(n_predict=60, types=("ngram-suffix",), prompt=[1, 2, 3], prediction=wrong)
    session = Session(prediction, Lockstep(), chain)
    pair = Pair(scripted())
    pair.connect(session, "target", 1)
    pair.drive(session, session.start(0.0))
    assert session.generated == expected.generated
    assert session.counts.rounds < 30


def test_a_request_that_ignores_ends_of_text_is_drafted_without_them() -> None:
    """Else each of them would be a rejection."""
    sampling = SamplingParams(temp=0.0, ignore_eos=True)
    session = Pair(scripted("eos=30"), scripted("eos=30")).run(make_request(n_predict=200, sampling=sampling, n_max=4))
    assert session.counts.draft_n_accepted == session.counts.draft_n > 100
