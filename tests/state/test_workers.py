"""What workers answer to requests that they cannot serve: a failure with its reason, and life goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from draft_worker.worker import DraftWorker
from outrider.errors import EngineError
from outrider.wire.messages import (
    Accept,
    Begin,
    DraftRequest,
    DraftTokens,
    End,
    Failure,
    Measure,
    Message,
    Process,
    Ready,
    Rollback,
    Tokenize,
    Verdict,
    Verifying,
    VerifyRequest,
)
from outrider.wire.prefix_hash import EMPTY, extend
from outrider.worker.slots import SlotWorker
from target_worker.worker import TargetWorker
from tests.harness import GREEDY, scripted, ticking
from tests.wire_samples import SAMPLES

STAMP = (1, 7, 1, 0)  # incarnation, session, round, epoch
TOKENS = [10, 20, 30]


def begin(session: int = 7) -> Begin:
    changes: dict[str, Any] = {"session": session, "sampling": GREEDY, "prompt_len": 3, "grammar": None}
    return msgspec.structs.replace(SAMPLES["Begin"], synth_rates=[], draft_sampling="greedy", **changes)  # type: ignore[return-value]


def prefix(tokens: list[int], keep_len: int = 0) -> tuple[Any, ...]:
    return (*STAMP, len(tokens), extend(EMPTY, tokens), keep_len, tokens[keep_len:])


def verify(tokens: list[int], keep_len: int = 0, draft: list[int] | None = None) -> VerifyRequest:
    return VerifyRequest(*prefix(tokens, keep_len), draft or [], 0, False)


def only_failure(replies: list[Message]) -> Failure:
    (reply,) = replies
    assert isinstance(reply, Failure)
    return reply


def run(worker: SlotWorker[Any]) -> list[Message]:
    """All replies until nothing is left to do."""
    replies: list[Message] = []
    while worker.has_work():
        replies += worker.step()
    return replies


@pytest.fixture
def target() -> TargetWorker:
    worker = TargetWorker(scripted(n_ctx=64))
    assert worker.handle(begin()) == []
    return worker


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (VerifyRequest(1, 99, 1, 0, 3, 0, 0, TOKENS, [], 0, False), "unknown_session"),
        (verify(TOKENS, keep_len=2), "missing_prefix"),  # it knows nothing yet
        (VerifyRequest(*STAMP, 3, 12345, 0, TOKENS, [], 0, False), "missing_prefix"),  # another text
        (
            VerifyRequest(*STAMP, 9, extend(EMPTY, TOKENS), 0, TOKENS, [], 0, False),
            "missing_prefix",
        ),  # lengths disagree
        (verify([10, 300]), "bad_request"),  # an id beyond the vocabulary
        (verify(TOKENS, draft=[300]), "bad_request"),
        (verify([1] * 70), "context_full"),
        (verify([1] * 62, draft=[1] * 4), "context_full"),
        (DraftRequest(*prefix(TOKENS), 3, 0, 0.0, 0, 0, True), "bad_request"),  # not a draft worker
    ],
)
def test_what_cannot_be_served_is_said_and_the_next_request_works(
    target: TargetWorker, request_: Message, code: str
) -> None:
    failure = only_failure(target.handle(request_))
    assert failure.code == code
    assert failure.session == request_.session  # type: ignore[attr-defined]
    assert target.handle(verify(TOKENS)) == []
    (verdict,) = run(target)
    assert isinstance(verdict, Verdict)


def test_the_same_request_twice_gives_the_same_answer_twice(target: TargetWorker) -> None:
    answers = []
    for _ in range(2):
        assert target.handle(verify(TOKENS, draft=[1, 2])) == []
        answers.append(run(target))
    unlike = {"n_evaluated": 0, "decode_us": 0, "n_sessions": 0, "n_rows": 0}  # the prompt was read for the first one
    first, second = (msgspec.structs.replace(answer[0], **unlike) for answer in answers)  # type: ignore[type-var]
    assert first == second


def test_ends_and_accepts_of_unknown_sessions_are_nothing(target: TargetWorker) -> None:
    assert target.handle(End(1, 99, 1, 0, 3)) == []
    assert target.handle(Accept(1, 99, 1, 0, 3, 2, False)) == []
    assert list(target.slots) == [7]


def test_a_session_beyond_the_sequences_is_refused_and_takes_no_place(target: TargetWorker) -> None:
    assert only_failure(target.handle(begin(8))).code == "no_slot"
    target.handle(End(1, 7, 1, 0, 3))
    assert target.handle(begin(8)) == []


def test_a_second_begin_of_a_session_starts_it_anew(target: TargetWorker) -> None:
    target.handle(verify(TOKENS))
    run(target)
    assert target.handle(begin()) == []
    assert only_failure(target.handle(verify(TOKENS, keep_len=3))).code == "missing_prefix"


@pytest.mark.parametrize("kind", [Process, Rollback])
def test_replay_and_rollback_bring_the_cache_up_to_the_pending_token(kind: Any) -> None:
    worker = DraftWorker(scripted())
    worker.handle(begin())
    assert worker.handle(kind(*prefix(TOKENS))) == []
    assert run(worker) == []
    assert worker.slots[7].cache.tokens == TOKENS[:-1]


def test_only_the_target_tokenizes() -> None:
    """One template, one tokenizer: the draft's own are never used."""
    question = Tokenize(1, 5, "text", [], True, True, False)
    assert only_failure(DraftWorker(scripted()).handle(question)).code == "bad_request"
    assert type(TargetWorker(scripted()).handle(question)[0]).__name__ == "TokenizeResult"


def test_a_draft_measures_between_sessions_and_not_within_one() -> None:
    worker = DraftWorker(scripted(), ticking())
    worker.handle(begin())
    worker.handle(Process(*prefix(TOKENS)))
    run(worker)
    (busy,) = worker.handle(Measure(1))
    assert isinstance(busy, Ready)
    assert busy.facts.row_times == []
    assert worker.engine.length(0) == len(TOKENS) - 1

    worker.handle(End(*STAMP, 3))
    (idle,) = worker.handle(Measure(2))
    assert isinstance(idle, Ready)
    assert idle.incarnation == 2
    assert idle.facts.row_times[0].n_rows == 1
    assert all(time.us > 0 for time in idle.facts.row_times)

    worker.handle(begin())
    worker.handle(DraftRequest(*prefix(TOKENS), 3, 0, 0.0, 0, 0, True))
    (after,) = run(worker)
    fresh = DraftWorker(scripted(), ticking())
    fresh.handle(begin())
    fresh.handle(DraftRequest(*prefix(TOKENS), 3, 0, 0.0, 0, 0, True))
    assert [after] == run(fresh)


@pytest.mark.parametrize(("p_min", "with_probs", "told"), [(0.0, False, 0), (0.01, False, 3), (0.0, True, 3)])
def test_a_draft_tells_probabilities_where_they_are_asked_for_or_needed(
    p_min: float, with_probs: bool, told: int
) -> None:
    worker = DraftWorker(scripted())
    worker.handle(begin())
    worker.handle(DraftRequest(*prefix(TOKENS), 3, 0, p_min, 0, 0, with_probs))
    (reply,) = run(worker)
    assert isinstance(reply, DraftTokens)
    assert (len(reply.tokens), len(reply.probs), len(reply.entropies)) == (3, told, told)


def test_a_draft_that_cannot_measure_is_ready_all_the_same() -> None:
    worker = DraftWorker(scripted())
    worker.engine.decode = failing  # type: ignore[method-assign]
    (reply,) = worker.handle(Measure(1))
    assert reply == Ready(1, worker.engine.facts)


def failing(spans: object) -> Any:
    raise EngineError("no memory")


def riding(n_branches: int = 0, sessions: int = 1) -> tuple[DraftWorker, list[int]]:
    """A draft worker that has drafted two tokens and could go on, and its clock in nanoseconds; a step takes 10 ms."""
    now = [0]

    def clock() -> int:
        now[0] += 5_000_000
        return now[0]

    worker = DraftWorker(scripted(n_seq=sessions, n_branches=n_branches), clock)
    for session in range(7, 7 + sessions):
        ids = (1, session, 1, 0)
        worker.handle(begin(session))
        worker.handle(DraftRequest(*ids, 3, extend(EMPTY, TOKENS), 0, TOKENS, 8, 0, 0.0, 10, n_branches, True))
    worker.step()
    worker.step()
    return worker, now


def test_a_draft_waits_for_a_verdict_that_is_about_to_come() -> None:
    worker, now = riding()

    def expect(after_ms: int) -> float:
        worker.handle(Verifying(*STAMP, 3, 2, now[0] // 1000 + 5_000 + 1_000 * after_ms))
        return worker.patience_s()

    assert worker.patience_s() == 0.0  # it knows of none
    assert worker.has_work()
    assert expect(1) == pytest.approx(0.0035)  # and half a step more
    assert expect(6) == 0.0  # the step is over before
    assert expect(-3) == 0.0  # it is overdue
    assert expect(10**9) == 0.0  # by the clock of another host


@pytest.mark.parametrize(("n_branches", "sessions"), [(4, 1), (0, 2)])
def test_a_draft_does_not_wait_where_others_profit_from_its_step(n_branches: int, sessions: int) -> None:
    worker, now = riding(n_branches, sessions)
    worker.handle(Verifying(*STAMP, 3, 2, now[0] // 1000 + 6_000))
    assert worker.patience_s() == 0.0


def test_word_of_a_verdict_for_a_session_that_is_over_does_no_harm() -> None:
    assert DraftWorker(scripted()).handle(Verifying(*STAMP, 3, 2, 0)) == []
