"""A target that nobody drafts for goes on with its own next token: what it may do unasked, and who says that it may."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from coordinator.auto import OFF, PROBE, Auto, AutoSession
from coordinator.instructions import Send
from coordinator.overlap import Overlap, OverlapSession
from coordinator.schedule import Lockstep
from coordinator.session import QUIET, Session
from outrider.speculators.factory import make_chain
from outrider.speculators.types import SpeculatorParams
from outrider.wire.messages import Message, Verdict, VerifyRequest
from target_worker.worker import TargetWorker
from tests.harness import make_request, scripted
from tests.state.alone import Alone

PROMPT = [10, 20, 30]


class Unasked(Alone):
    """A session whose requests let the target go on up to `credit`."""

    def ask(self, text: Sequence[int], credit: int, draft: Sequence[int] = ()) -> list[Message]:
        request = self.verify_request(text, draft)
        return self.worker.handle(msgspec.structs.replace(request, goes_on=True, credit=credit))

    def step(self) -> Verdict:
        (reply,) = self.worker.step()
        assert isinstance(reply, Verdict)
        return reply


@pytest.fixture
def session() -> Unasked:
    alone = Unasked(TargetWorker(scripted(n_ctx=64)))
    alone.begin(len(PROMPT))
    return alone


def expected(n: int) -> list[int]:
    """The prompt and `n` tokens, each asked for."""
    alone, text = Alone(TargetWorker(scripted(n_ctx=64))), list(PROMPT)
    alone.begin(len(PROMPT))
    for _ in range(n):
        text += alone.verify(text).tokens
    return text


def test_the_next_token_is_there_when_it_is_asked_for(session: Unasked) -> None:
    text = [*PROMPT]
    session.ask(text, credit=20)
    verdict = session.step()
    for _ in range(8):
        text += verdict.tokens
        assert session.worker.step() == []  # the next row; it tells nobody
        assert not session.worker.has_work()
        (verdict,) = session.ask(text, credit=20)  # type: ignore[assignment]
        assert isinstance(verdict, Verdict)
        assert (verdict.ahead, verdict.n_evaluated) == (True, 1)
    assert text + verdict.tokens == expected(9)


def test_one_token_ahead_and_no_further_than_the_credit(session: Unasked) -> None:
    text = [*PROMPT]
    for credit, goes in ((4, True), (4, False)):
        session.ask(text, credit)
        text += session.step().tokens
        assert session.worker.has_work() is goes


def test_without_leave_it_waits(session: Unasked) -> None:
    session.verify(PROMPT)
    assert not session.worker.has_work()


def test_a_draft_that_comes_all_the_same_is_left_for_the_next_round(session: Unasked) -> None:
    text = expected(3)
    session.ask(PROMPT, credit=20)
    session.step()
    session.worker.step()
    (verdict,) = session.ask(text[:4], 20, draft=text[4:])
    assert isinstance(verdict, Verdict)
    assert (verdict.n_tested, verdict.accepted, verdict.tokens) == (0, 0, text[4:5])


def test_another_text_is_answered_as_if_nothing_had_been_done(session: Unasked) -> None:
    session.ask(PROMPT, credit=20)
    session.step()
    session.worker.step()
    other = [*PROMPT, 99]
    assert session.ask(other, credit=20) == []
    verdict = session.step()
    assert not verdict.ahead
    session.end()
    session.begin(len(PROMPT))
    assert verdict.tokens == session.verify(other).tokens


def test_sessions_that_go_on_share_their_decodes() -> None:
    worker = TargetWorker(scripted(n_ctx=64, n_seq=2))
    pair = [Unasked(worker, session=number) for number in (1, 2)]
    for session in pair:
        session.begin(len(PROMPT))
        session.ask(PROMPT, credit=20)
    assert len(worker.step()) == 2
    assert worker.step() == []
    assert [len(slot.cache) for slot in worker.slots.values()] == [4, 4]


def leave(session: Session) -> bool:
    """Does the first VerifyRequest of this session let the target go on?"""
    session.worker_ready("target", 1, scripted().facts)
    (request,) = [
        command.message
        for command in session.start(0.0)
        if isinstance(command, Send) and isinstance(command.message, VerifyRequest)
    ]
    return request.goes_on


def test_leave_is_given_where_nobody_drafts() -> None:
    assert leave(Session(make_request(PROMPT, types=[]), Lockstep()))
    assert leave(Session(make_request(PROMPT), Lockstep()))  # its draft worker is not there
    chain = make_chain(["ngram-suffix"], SpeculatorParams())
    session = Session(make_request(PROMPT, types=["ngram-suffix"]), Lockstep(), chain)
    assert not leave(session)
    session._n_in_vain = QUIET
    assert session._goes_on()


def test_leave_is_given_while_a_draft_worker_is_silent() -> None:
    session = OverlapSession(make_request(PROMPT), Overlap(), None)
    session.worker_ready("draft", 2, scripted().facts)
    assert not leave(session)
    session._gave_up, session._give_up_at = True, 1.0
    for round_since, goes_on in ((0.5, False), (2.0, True)):  # given up in this round, or before it
        session.learning.round_since = round_since
        assert session._goes_on() is goes_on


def test_the_controller_gives_leave_while_it_leaves_the_draft_alone() -> None:
    session = AutoSession(make_request(PROMPT), Auto(), None)
    session.worker_ready("draft", 2, scripted().facts)
    assert not leave(session)  # nothing is decided before the first token
    session.history.extend([1])
    session._choice = OFF
    assert not session._goes_on()  # it drafts still
    session._riding = None
    for choice, goes_on in ((OFF, True), (PROBE, False)):
        session._choice = choice
        assert session._goes_on() is goes_on
    session._choice = OFF
    session._ahead.restart(len(session.history))
    session._ahead.add(len(session.history), [7], [0.9])
    assert not session._goes_on()  # something is left of it
