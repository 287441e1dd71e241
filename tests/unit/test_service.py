"""The coordinator's loop where a single message, worker or client is at fault: it alone pays for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.auto import Auto
from coordinator.questions import MAX_OPEN
from coordinator.request import Request
from coordinator.schedule import Lockstep
from coordinator.service import Limits, Service
from coordinator.trace import Trace
from outrider.errors import BusyError, OutriderError, RequestError
from outrider.speculators.chain import Chain
from outrider.types import LogitBias, RowTime, SamplingParams, WorkerRole
from outrider.wire.loopback import LoopbackDealer, Network
from outrider.wire.messages import (
    PROTOCOL_VERSION,
    DraftRequest,
    Failure,
    Hello,
    Measure,
    Message,
    Ready,
    Shutdown,
    Tokenize,
    VerifyRequest,
    Welcome,
)
from tests.harness import make_request, scripted

NAMES: dict[str, WorkerRole] = {"target": "target", "draft": "draft"}


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def service(network: Network) -> Service:
    return Service(network.router(), NAMES, Lockstep(), keep_target=True)


def greet(network: Network, service: Service, role: str) -> tuple[LoopbackDealer, Message]:
    """A new process of this role, and the answer to its greeting."""
    dealer = network.dealer()
    dealer.send(Hello(PROTOCOL_VERSION, role, role, 1))  # type: ignore[arg-type]
    service.turn(0.0)
    answer = dealer.recv()
    assert answer is not None
    return dealer, answer


def connect(network: Network, service: Service, role: str = "target") -> LoopbackDealer:
    dealer, welcome = greet(network, service, role)
    assert isinstance(welcome, Welcome)
    dealer.send(Ready(welcome.incarnation, scripted().facts))
    service.turn(0.0)
    return dealer


def received(dealer: LoopbackDealer) -> list[Message]:
    messages = []
    while (message := dealer.recv()) is not None:
        messages.append(message)
    return messages


def submit(service: Service, request: Request) -> list[dict[str, Any]]:
    """What is told once it is done."""
    done: list[dict[str, Any]] = []
    service.submit(request, Chain([]), lambda text: None, done.append)
    return done


def ask(service: Service, text: str) -> list[OutriderError]:
    """What goes wrong with a question."""
    errors: list[OutriderError] = []
    make = lambda incarnation, number: Tokenize(incarnation, number, text, [], True, True, False)  # noqa: E731
    service.questions.ask(make, lambda result: None, errors.append)
    return errors


def test_a_request_that_fits_no_message_ends_alone(network: Network, service: Service) -> None:
    target = connect(network, service)
    good = submit(service, make_request(types=[]))
    biases = [LogitBias(1, 1.0)] * 5000
    (answer,) = submit(service, make_request(types=[], sampling=SamplingParams(logit_bias=biases)))
    assert answer["finish_reason"] == "error"
    assert "does not fit a message: Begin" in answer["error"]
    assert not good
    assert [type(message) for message in received(target)].count(VerifyRequest) == 1
    assert list(service.live) == [1]


@pytest.mark.parametrize("observer", [None, Trace()])
def test_who_watches_sees_the_probabilities_of_drafts(network: Network, observer: Trace | None) -> None:
    """In lockstep nobody else reads them."""
    service = Service(network.router(), NAMES, Lockstep(), keep_target=True, observer=observer)
    _, draft = connect(network, service), connect(network, service, "draft")
    submit(service, make_request())
    (request,) = [message for message in received(draft) if isinstance(message, DraftRequest)]
    assert request.with_probs is (observer is not None)


def test_a_question_that_fits_no_message_fails_alone(network: Network, service: Service) -> None:
    connect(network, service)
    (error,) = ask(service, "\ud800")
    assert isinstance(error, RequestError)
    assert service.questions.n_open == 0


def test_no_more_questions_than_a_worker_takes_in(network: Network, service: Service) -> None:
    connect(network, service)
    errors = [error for _ in range(MAX_OPEN + 2) for error in ask(service, "a")]
    assert [type(error) for error in errors] == [BusyError] * 2


def test_a_worker_that_was_restarted_takes_the_place_of_the_one_that_is_gone(
    network: Network, service: Service
) -> None:
    connect(network, service).disconnect()
    running = submit(service, make_request(types=[]))
    again = connect(network, service)
    assert service.target is not None
    assert service.target.peer == again.identity
    assert any(isinstance(message, VerifyRequest) for message in received(again))  # its request goes on there
    assert not running


def test_a_worker_that_is_there_keeps_its_name(network: Network, service: Service) -> None:
    first = connect(network, service)
    _, answer = greet(network, service, "target")
    assert isinstance(answer, Failure)
    assert answer.code == "refused"
    assert service.target is not None
    assert service.target.peer == first.identity


def test_all_that_are_connected_are_told_of_the_end(network: Network, service: Service) -> None:
    target, (client, _) = connect(network, service), greet(network, service, "client")
    service.shutdown("that was it", 0.0)
    for dealer in (target, client):
        last = received(dealer)[-1]
        assert isinstance(last, Shutdown)
        assert last.reason == "that was it"


def measuring(network: Network) -> Service:
    return Service(network.router(), NAMES, Auto(), measure_draft=True)


def test_a_draft_beside_its_target_is_measured_once_both_are_there(network: Network) -> None:
    service = measuring(network)
    dealer = connect(network, service, "draft")
    assert Measure not in map(type, received(dealer))  # the target may still be measuring itself
    connect(network, service)
    (asked,) = (message for message in received(dealer) if isinstance(message, Measure))
    assert service.draft is None
    facts = msgspec.structs.replace(scripted().facts, row_times=[RowTime(1, 900)])
    dealer.send(Ready(asked.incarnation, facts))
    service.turn(0.0)
    assert service.draft is not None
    assert service.draft.facts == facts
    assert Measure not in map(type, received(dealer))


def test_a_draft_that_comes_while_the_target_works_is_not_measured(network: Network) -> None:
    service = measuring(network)
    connect(network, service)
    submit(service, make_request(types=[]))
    dealer = connect(network, service, "draft")
    assert service.draft is not None
    assert Measure not in map(type, received(dealer))


def test_requests_do_not_wait_for_ever_for_a_target_that_was_lost(network: Network) -> None:
    now = [0.0]
    limits = Limits(lost_after_s=1.0, away_s=5.0)
    service = Service(network.router(), NAMES, Lockstep(), keep_target=True, limits=limits, clock=lambda: now[0])
    connect(network, service)
    done = submit(service, make_request(types=[]))
    for now[0] in (10.0, 14.0):
        service.turn(0.0)
        assert service.target is None
        assert service.overdue is None
    assert not done
    now[0] = 16.0
    service.turn(0.0)
    (answer,) = done
    assert answer["finish_reason"] == "error"
    assert answer["error"] == "target worker: lost, and not back within 5 s"
    assert service.overdue is not None
    connect(network, service)  # a new one makes all well
    assert service.overdue is None
