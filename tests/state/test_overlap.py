"""The schedules `overlap` and `auto`: the same text as plain decoding, whatever order, loss or delay messages suffer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.ahead import Ahead
from coordinator.auto import Auto, AutoSession, make_session
from coordinator.costs import Acceptance
from coordinator.instructions import Emit, Finished, Send, WakeAt
from coordinator.overlap import Overlap, OverlapSession
from coordinator.schedule import Lockstep, Schedule
from coordinator.session import Phase, Session
from outrider.speculators.factory import make_chain
from outrider.speculators.types import SpeculatorParams
from outrider.types import RowTime, SamplingParams
from outrider.wire.messages import Branch, DraftRequest, DraftTokens, Message, Verdict, VerifyRequest
from tests.harness import GREEDY, Pair, make_request, plain, scripted
from tests.state.test_lossless import samplings

SCHEDULES: list[Callable[[], Overlap]] = [Overlap, partial(Overlap, 6), Auto, partial(Auto, apart=True, n_branches=6)]


@given(
    sampling=samplings,
    n_max=st.integers(1, 8),
    p_min=st.sampled_from([0.0, 0.7]),
    disagree=st.sampled_from([0, 10, 40, 100]),
    eos=st.sampled_from([0, 3]),
    n_batch=st.sampled_from([3, 512]),
    n_predict=st.integers(1, 40),
    checkpoint=st.booleans(),
    schedule=st.sampled_from(SCHEDULES),
)
def test_overlap_equals_plain(
    sampling: SamplingParams,
    n_max: int,
    p_min: float,
    disagree: int,
    eos: int,
    n_batch: int,
    n_predict: int,
    checkpoint: bool,
    schedule: Callable[[], Overlap],
) -> None:
    request = make_request(sampling=sampling, n_max=n_max, p_min=p_min, n_predict=n_predict, row_hashes=True)
    expected = plain(scripted(f"seed=7,eos={eos}"), request)
    target = scripted(f"seed=7,eos={eos},checkpoint={checkpoint:d}", n_batch=n_batch)
    draft = scripted(f"seed=7,eos={eos},disagree={disagree},checkpoint={checkpoint:d}", n_batch=n_batch, n_branches=6)
    session = Pair(target, draft).run(request, schedule())
    assert session.generated == expected.generated
    assert session.row_hashes == expected.row_hashes
    assert session.finish_reason == expected.finish_reason


class Network:
    """Both workers behind links that delay, lose, double and reorder; time passes only while nothing can happen."""

    def __init__(self, pair: Pair, session: Session, seed: int, loss: float) -> None:
        self.pair, self.session, self.loss = pair, session, loss
        self.random = random.Random(seed)
        self.now = 0.0
        self.links: dict[tuple[str, str], list[Message]] = {}
        self.text = ""
        self.finished: Finished | None = None
        self.wake_at: float | None = None

    def do(self, commands: Sequence[Any]) -> None:
        for command in commands:
            match command:
                case Send(role, message):
                    self.put("to", role, message)
                case Emit():
                    self.text += command.text
                case WakeAt(time):
                    self.wake_at = time
                case Finished():
                    self.finished = command

    def put(self, direction: str, role: str, message: Message) -> None:
        link = self.links.setdefault((direction, role), [])
        for _ in range(1 + (self.random.random() < self.loss)):
            if self.random.random() >= self.loss:
                link.append(message)

    def step(self) -> None:
        """Something that can happen happens."""
        ready = [key for key, link in self.links.items() if link]
        busy = [role for role, worker in self.pair.workers.items() if worker.has_work()]
        choices: list[Any] = [*ready, *busy]
        if not choices:
            self.idle()
            return
        self.now += 0.001
        choice = self.random.choice(choices)
        if isinstance(choice, str):
            for reply in self.pair.workers[choice].step():
                self.put("from", choice, reply)
            return
        direction, role = choice
        link = self.links[choice]
        at = self.random.randrange(len(link)) if self.random.random() < self.loss else 0
        message = link.pop(at)
        if direction == "from":
            self.do(self.session.handle(message, self.now))
            self.session.prepare()
        else:
            for reply in self.pair.workers[role].handle(message):
                self.put("from", role, reply)

    def idle(self) -> None:
        """Nothing is under way: a time that is waited for comes, or what is due was lost and is asked for again."""
        if self.wake_at is not None:
            self.now, self.wake_at = max(self.now, self.wake_at), None
            self.do(self.session.wake(self.now))
        for role in ("target", "draft"):
            if self.finished is None and self.session.expects(role):  # type: ignore[arg-type]
                self.do(self.session.resend(role))  # type: ignore[arg-type]


@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    disagree=st.sampled_from([0, 20, 100]),
    temp=st.sampled_from([0.0, 0.8]),
    schedule=st.sampled_from([Lockstep, *SCHEDULES]),
)
def test_no_order_or_loss_of_messages_changes_the_text(
    seed: int, loss: float, disagree: int, temp: float, schedule: Callable[[], Schedule]
) -> None:
    request = make_request(n_predict=25, sampling=SamplingParams(temp=temp, seed=3))
    expected = plain(scripted("seed=7"), request)
    pair = Pair(scripted("seed=7"), scripted(f"seed=7,disagree={disagree}", n_branches=6))
    session = make_session(request, schedule())
    for incarnation, role in enumerate(pair.workers, start=1):
        pair.connect(session, role, incarnation)
    network = Network(pair, session, seed, loss)
    network.do(session.start(0.0))
    for _ in range(20_000):
        if network.finished is not None:
            break
        network.step()
    assert network.finished == Finished("length")
    assert session.generated == expected.generated
    assert network.text == expected.text.text


def test_a_draft_like_its_target_rides_on_without_a_rollback() -> None:
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    schedule = Overlap()
    schedule.costs.drafted(0.0001, busy=True)  # a quick draft is worth waiting for
    session = pair.run(make_request(n_predict=100, n_max=3, sampling=GREEDY), schedule)
    assert session.counts.draft_n_accepted == session.counts.draft_n > 40
    assert session.counts.rounds < 60


def let_draft_ride(pair: Pair, network: Network, session: Session) -> None:
    """Until it has come to the end of its credit."""
    worker = pair.workers["draft"]
    while network.links.get(("to", "draft")) or network.links.get(("from", "draft")) or worker.has_work():
        replies = [reply for message in network.links.pop(("to", "draft"), []) for reply in worker.handle(message)]
        replies += worker.step() if worker.has_work() else []
        for reply in [*network.links.pop(("from", "draft"), []), *replies]:
            network.do(session.handle(reply, network.now))


def test_the_target_gets_its_next_draft_without_waiting() -> None:
    """With the draft ahead, a verdict is answered by the next VerifyRequest at once."""
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    session = make_session(make_request(n_predict=50, n_max=2), Overlap())
    for incarnation, role in enumerate(pair.workers, start=1):
        pair.connect(session, role, incarnation)
    network = Network(pair, session, 1, 0.0)
    network.do(session.start(0.0))
    while not any(isinstance(m, Verdict) for m in network.links.get(("from", "target"), [])):
        network.step()
    let_draft_ride(pair, network, session)
    (reply,) = network.links.pop(("from", "target"))
    commands = session.handle(reply, network.now)
    sent = [command.message for command in commands if isinstance(command, Send)]
    assert type(sent[0]).__name__ == "VerifyRequest"
    assert len(sent[0].draft) == 2  # type: ignore[attr-defined]


def test_a_draft_that_comes_while_the_target_is_away_is_kept_for_its_return() -> None:
    """Also where drafts are pushed to it."""
    pair = Pair(scripted("seed=3"), scripted("seed=3"))
    schedule = Overlap()
    schedule.costs.target_trip.add(1.0)
    session = make_session(make_request(n_predict=50, n_max=2), schedule)
    for incarnation, role in enumerate(pair.workers, start=1):
        pair.connect(session, role, incarnation)
    network = Network(pair, session, 1, 0.0)
    network.do(session.start(0.0))
    network.do(session.worker_lost("target", "gone", network.now))
    network.links.pop(("to", "target"), None)
    let_draft_ride(pair, network, session)
    pair.workers["target"].reset()
    network.do(pair.connect(session, "target", 7))
    while network.finished is None:
        network.step()
    assert session.generated == plain(scripted("seed=3"), make_request(n_predict=50)).generated


@pytest.mark.parametrize("apart", [True, False])
def test_a_draft_on_processors_of_its_own_follows_branches_from_the_first_round(apart: bool) -> None:
    session = make_session(make_request(n_max=3), Auto(apart=apart, n_branches=6))
    for role in ("target", "draft"):
        session.worker_ready(role, 1, scripted(n_branches=6).facts)  # type: ignore[arg-type]
    (asked,) = _of_kind(session.start(0.0), DraftRequest)
    assert (asked.n_branches > 0) is apart


def test_a_draft_that_skips_what_was_not_told_tells_all_again() -> None:
    session = OverlapSession(make_request(), Overlap(), None)
    for role in ("target", "draft"):
        session.worker_ready(role, 1, scripted().facts)  # type: ignore[arg-type]
    (asked,) = _of_kind(session.start(0.0), DraftRequest)
    stamp = (1, 1, asked.round, asked.epoch, asked.committed_len)
    lost = DraftTokens(*stamp, asked.committed_len + 1, [5], [1.0], [0.0], [], False, 0, 1, 10)
    (again,) = _of_kind(session.handle(lost, 1.0), DraftRequest)
    assert (again.epoch, again.committed_len) == (asked.epoch + 1, asked.committed_len)
    assert session.learning.acceptance.value == Acceptance().value  # it was not wrong


def test_a_target_does_not_wait_for_a_draft_that_nobody_makes() -> None:
    session = make_session(make_request(), Auto(), None)
    assert isinstance(session, AutoSession)
    for role in ("target", "draft"):
        session.worker_ready(role, 1, scripted().facts)  # type: ignore[arg-type]
    session.start(0.0)
    session.phase, session._reach = Phase.DRAFTING, 0  # the controller has left the draft alone meanwhile
    assert len(_of_kind(session.resend("draft"), VerifyRequest)) == 1
    assert session.phase is Phase.VERIFYING


@pytest.mark.parametrize(("left_s", "prob", "is_told"), [(0.004, 0.5, True), (0.012, 0.99, False)])
def test_a_draft_that_waits_for_the_verdict_is_told_where_the_target_waits_for_the_draft(
    left_s: float, prob: float, is_told: bool
) -> None:
    """As the draft, whose step takes 16 ms, the coordinator knows when it holds a step: where the verdict comes in 4 ms and
    will probably contradict it."""
    schedule = Overlap()
    for busy in (False, True):
        schedule.costs.drafted(0.016, busy=busy)
        for n_rows in range(1, 6):
            schedule.costs.verified(n_rows, 0.1, busy)
    schedule.costs.speed.add(12, 1.0)
    session = OverlapSession(make_request(n_max=4), schedule, None)
    session.worker_ready("target", 1, scripted().facts)
    session.worker_ready("draft", 2, scripted().facts)
    commands = session.start(0.0)
    (asked,), (verify,) = _of_kind(commands, DraftRequest), _of_kind(commands, VerifyRequest)
    told_at = 0.1 - left_s  # the verification takes 0.1 s
    session.learning.draft_restarts()  # the link takes no time
    at = asked.committed_len
    session.handle(
        DraftTokens(2, 1, asked.round, asked.epoch, at, at, [5], [prob], [0.0], [], False, 0, 1, 16000), told_at
    )
    stamp = (1, 1, verify.round, verify.epoch, verify.committed_len)
    verdict = Verdict(*stamp, False, 0, 0, [5], [b"x"], False, [], 0, 1, 100_000, 1, 1, [])
    commands = session.handle(verdict, 0.1)
    assert session.phase is Phase.DRAFTING  # the target waits
    assert [command for command in commands if isinstance(command, WakeAt)]
    assert [request.committed_len for request in _of_kind(commands, DraftRequest)] == [at + 1] * is_told


@pytest.mark.parametrize("forgotten", [False, True])
def test_how_long_to_wait_is_known_before_the_draft_begins_anew(forgotten: bool) -> None:
    """And is what would be worked out then."""
    schedule = Overlap()
    schedule.costs.expect("target", [RowTime(n, 100_000) for n in range(1, 9)])
    schedule.costs.drafted(0.01, busy=True)
    session = OverlapSession(make_request(n_max=4), schedule, None)
    session.worker_ready("target", 1, scripted().facts)
    session.worker_ready("draft", 2, scripted().facts)
    commands = session.start(0.0)
    (asked,), (verify,) = _of_kind(commands, DraftRequest), _of_kind(commands, VerifyRequest)
    at = asked.committed_len
    session.handle(
        DraftTokens(2, 1, asked.round, asked.epoch, at, at, [6], [0.9], [0.0], [], False, 0, 1, 10_000), 0.02
    )
    session.prepare()
    prepared = session._wish_anew
    session._wish_anew = None if forgotten else 2
    session.prepare()  # has had its turn in this round
    stamp = (1, 1, verify.round, verify.epoch, verify.committed_len)
    session.handle(Verdict(*stamp, False, 0, 0, [5], [b"x"], False, [], 0, 1, 100_000, 1, 1, []), 0.1)
    assert session.phase is Phase.DRAFTING  # the draft was wrong
    assert session._wish == (prepared if forgotten else 2)
    assert prepared is not None
    assert prepared > 2


@pytest.mark.parametrize(("row_ms", "lengths"), [(1, range(30, 65)), (50, range(5, 13)), (100, range(1))])
def test_what_was_looked_up_is_verified_as_far_as_it_is_worth_its_rows(row_ms: int, lengths: range) -> None:
    """A decode of one row takes 100 ms, each further one `row_ms`."""
    schedule = Overlap()
    schedule.costs.expect("target", [RowTime(n, 1000 * (100 + (n - 1) * row_ms)) for n in range(1, 18)])
    prompt, types = [*range(1, 31), *range(1, 20)], ["ngram-suffix"]
    session = OverlapSession(make_request(prompt, types=types), schedule, make_chain(types, SpeculatorParams()))
    session.worker_ready("target", 1, scripted().facts)
    (verify,) = _of_kind(session.start(0.0), VerifyRequest)
    assert len(verify.draft) in lengths
    assert verify.draft == (3 * prompt[19:])[: len(verify.draft)]


def _of_kind(commands: Sequence[Any], kind: type[Any]) -> list[Any]:
    messages = [command.message for command in commands if isinstance(command, Send)]
    return [message for message in messages if isinstance(message, kind)]


def test_ahead_keeps_what_was_confirmed() -> None:
    ahead = Ahead(10)
    assert ahead.add(10, [1, 2, 3], [0.9, 0.8, 0.7])[0] is None
    assert ahead.add(12, [3, 4], [0.7, 0.6])[0] is None  # told again, and one more
    assert (ahead.tokens, ahead.probs) == ([1, 2, 3, 4], [0.9, 0.8, 0.7, 0.6])
    assert ahead.add(15, [9], [1.0])[0] == 14  # a gap
    assert ahead.commit([1, 2]) == "chain"
    assert (ahead.start, ahead.tokens) == (12, [3, 4])
    assert ahead.commit([3, 9]) == "none"
    assert (ahead.start, ahead.tokens) == (14, [])


def test_ahead_takes_what_comes_late_if_the_text_agrees() -> None:
    ahead = Ahead(10)
    assert ahead.commit([1, 2]) == "chain"  # nothing was told yet: it may still be right
    assert ahead.add(10, [1], [0.9]) == (None, 1)
    assert (ahead.late, ahead.tokens, ahead.end) == ([2], [], 11)
    assert ahead.add(11, [2, 3], [0.9, 0.8]) == (None, 1)
    assert (ahead.late, ahead.tokens, ahead.probs) == ([], [3], [0.8])
    assert ahead.commit([3, 4]) == "chain"
    assert ahead.add(13, [5], [0.9])[0] == 13  # the text has 4 there


def test_ahead_lets_the_draft_skip_what_is_committed() -> None:
    ahead = Ahead(10)
    ahead.commit([1, 2, 3])
    assert ahead.add(13, [4], [0.5])[0] is None
    assert (ahead.late, ahead.tokens) == ([], [4])
    assert ahead.add(16, [7], [0.5])[0] == 14


def test_a_branch_becomes_the_chain_where_the_target_leaves_it() -> None:
    ahead = Ahead(10)
    ahead.add(10, [1, 2, 3], [0.9, 0.8, 0.7])
    ahead.add_branches(
        [Branch(11, [7], [0.1]), Branch(11, [8, 9, 10], [0.2, 0.6, 0.5]), Branch(12, [5, 6], [0.1, 0.9])]
    )
    ahead.add_branches([Branch(11, [8, 9], [0.2, 0.6])])  # an older report of it
    assert ahead.commit([1, 8]) == "branch"
    assert (ahead.start, ahead.tokens, ahead.probs) == (12, [9, 10], [0.6, 0.5])
    assert ahead.commit([9, 5]) == "none"  # that branch was of the other chain
    assert ahead.tokens == []


def test_branches_outlive_the_commit_of_what_is_before_them() -> None:
    ahead = Ahead(10)
    ahead.add(10, [1, 2, 3], [0.9, 0.8, 0.7])
    ahead.add_branches([Branch(10, [4, 5], [0.1, 0.9]), Branch(12, [5, 6], [0.1, 0.9])])
    assert ahead.commit([1, 2]) == "chain"
    assert ahead.commit([5]) == "branch"
    assert ahead.tokens == [6]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_draft_that_tells_no_probabilities_is_not_taken(schedule: Callable[[], Overlap]) -> None:
    """Whatever a worker leaves out, the text goes on."""
    pair, request = Pair(scripted(), scripted()), make_request(n_predict=40)
    pair.filter = lambda role, message: [
        msgspec.structs.replace(message, with_probs=False) if isinstance(message, DraftRequest) else message
    ]
    session = pair.run(request, schedule())
    assert session.generated == plain(scripted(), request).generated
    assert any(isinstance(message, DraftRequest) and message.with_probs for _, message in pair.sent)
    assert session.counts.draft_n == 0


@pytest.mark.parametrize(("p_min", "drafts"), [(0.0, True), (0.999, False)])
def test_a_draft_that_stops_too_soon_is_dropped(p_min: float, drafts: bool) -> None:
    """As n_min asks for; one that is still on its way is not too short."""
    request = make_request(n_predict=40, n_max=8, n_min=4, p_min=p_min)
    session = Pair(scripted(), scripted()).run(request, Overlap())
    assert (session.counts.draft_n > 0) is drafts
