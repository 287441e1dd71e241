"""The schedules `overlap` and `auto`: the same text as plain decoding, whatever order, loss or delay messages suffer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.ahead import Ahead
from coordinator.auto import Auto, Choice, Chooser, make_session, predict
from coordinator.costs import Calibration, Costs
from coordinator.instructions import Emit, Finished, Send, WakeAt
from coordinator.overlap import Overlap
from coordinator.schedule import Lockstep
from coordinator.session import Session
from outrider.types import SamplingParams
from outrider.wire.messages import Message, Verdict
from tests.harness import GREEDY, Pair, make_request, plain, scripted
from tests.state.test_lossless import samplings


@given(
    sampling=samplings,
    n_max=st.integers(1, 8),
    p_min=st.sampled_from([0.0, 0.7]),
    disagree=st.sampled_from([0, 10, 40, 100]),
    eos=st.sampled_from([0, 3]),
    n_batch=st.sampled_from([3, 512]),
    n_predict=st.integers(1, 40),
    checkpoint=st.booleans(),
    schedule=st.sampled_from([Overlap, Auto]),
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
    schedule: type[Overlap],
) -> None:
    request = make_request(sampling=sampling, n_max=n_max, p_min=p_min, n_predict=n_predict, row_hashes=True)
    expected = plain(scripted(f"seed=7,eos={eos}"), request)
    target = scripted(f"seed=7,eos={eos},checkpoint={checkpoint:d}", n_batch=n_batch)
    draft = scripted(f"seed=7,eos={eos},disagree={disagree},checkpoint={checkpoint:d}", n_batch=n_batch)
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
    schedule=st.sampled_from([Lockstep, Overlap, Auto]),
)
def test_no_order_or_loss_of_messages_changes_the_text(
    seed: int, loss: float, disagree: int, temp: float, schedule: type[Lockstep] | type[Overlap]
) -> None:
    request = make_request(n_predict=25, sampling=SamplingParams(temp=temp, seed=3))
    expected = plain(scripted("seed=7"), request)
    pair = Pair(scripted("seed=7"), scripted(f"seed=7,disagree={disagree}"))
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
    session = pair.run(make_request(n_predict=100, n_max=3, sampling=GREEDY), Overlap())
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


def test_ahead_keeps_what_was_confirmed() -> None:
    ahead = Ahead(10)
    assert ahead.add(10, [1, 2, 3], [0.9, 0.8, 0.7])
    assert ahead.add(12, [3, 4], [0.7, 0.6])  # told again, and one more
    assert (ahead.tokens, ahead.probs) == ([1, 2, 3, 4], [0.9, 0.8, 0.7, 0.6])
    assert not ahead.add(15, [9], [1.0])  # a gap
    assert ahead.commit([1, 2])
    assert (ahead.start, ahead.tokens) == (12, [3, 4])
    assert not ahead.commit([3, 9])
    assert (ahead.start, ahead.tokens) == (14, [])


def test_submit_len_stops_where_a_row_costs_more_than_it_brings() -> None:
    costs = Costs()
    for n, ms in ((1, 40), (2, 42), (3, 44), (4, 80)):
        costs.verified(n, ms / 1e3)
    costs.speed.add(25.0)
    assert costs.submit_len([0.99, 0.99, 0.6, 0.6]) == 2  # the third row costs 36 ms, 0.9 tokens at our speed
    assert costs.submit_len([0.01]) == 0
    assert costs.submit_len([]) == 0


def test_calibration_learns_that_a_draft_is_too_sure() -> None:
    calibration = Calibration()
    assert calibration.accept_prob(0.95) == pytest.approx(0.95)
    for _ in range(100):
        calibration.add(0.95, accepted=False)
    assert calibration.accept_prob(0.95) < 0.1
    assert calibration.accept_prob(0.45) == pytest.approx(0.45)


def known(verify_ms: dict[int, float], step_ms: float, trip_ms: float = 0.0) -> Costs:
    costs = Costs()
    for n, ms in verify_ms.items():
        costs.verified(n, ms / 1e3)
    costs.draft_step.add(step_ms / 1e3)
    costs.round_trip.add(trip_ms / 1e3)
    return costs


FLAT = {1: 40.0, 2: 41.0, 4: 43.0, 9: 48.0}
STEEP = {1: 40.0, 2: 70.0, 4: 130.0, 9: 280.0}


@pytest.mark.parametrize(
    ("costs", "acceptance", "slowdown", "mode"),
    [
        (known(FLAT, 2.0), 0.8, 2.0, "lockstep"),  # a quick draft on shared processors
        (known(FLAT, 15.0), 0.8, 1.0, "overlap"),  # a slow one on its own
        (known(FLAT, 2.0, trip_ms=60.0), 0.9, 1.0, "overlap"),  # a far one
        (known(FLAT, 15.0), 0.3, 2.0, "off"),  # it is mostly wrong
        (known(STEEP, 10.0), 0.8, 2.0, "off"),  # rows cost as much as they bring
        (known(FLAT, 60.0), 0.9, 2.0, "off"),  # a draft slower than its target
    ],
)
def test_the_choice_follows_the_costs(costs: Costs, acceptance: float, slowdown: float, mode: str) -> None:
    chooser = Chooser(costs, slowdown)
    for _ in range(5):
        choice = chooser.next(8, acceptance)
    assert choice.mode == mode


def test_drafting_that_does_not_pay_is_probed_rarely_and_comes_back() -> None:
    costs = known(FLAT, 4.0)
    chooser = Chooser(costs, 2.0)
    modes = [chooser.next(4, 0.05).mode for _ in range(200)]
    assert 0 < 200 - modes.count("off") <= 8
    assert chooser.next(4, 0.9).mode == "lockstep"


def test_what_a_choice_brought_counts_more_than_what_it_promised() -> None:
    costs = known(FLAT, 4.0)
    chooser = Chooser(costs, 2.0)
    assert chooser.next(4, 0.8).mode == "lockstep"
    for _ in range(80):
        choice = chooser.next(4, 0.8)
        chooser.brought(choice, 0.8, 1, 0.040 if choice.mode == "off" else 0.400)
    assert chooser.counts["off"] > 60


def test_prediction_matches_the_formulas() -> None:
    costs = known({1: 100.0, 6: 200.0}, 10.0, trip_ms=50.0)
    tokens = sum(0.7**i for i in range(6))
    assert predict(Choice("off", 0), costs, 0.7, 1.0) == pytest.approx(10.0)
    assert predict(Choice("lockstep", 5), costs, 0.7, 1.0) == pytest.approx(tokens / (0.05 + 0.2 + 0.05))
    ahead = 0.7**6
    overlap = tokens / (0.2 + (1 - ahead) * (0.05 + 0.05))
    assert predict(Choice("overlap", 5), costs, 0.7, 1.0) == pytest.approx(overlap)
    assert predict(Choice("lockstep", 5), Costs(), 0.7, 1.0) is None
