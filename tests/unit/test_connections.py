"""Who may connect, under which name, and who counts as alive."""

from __future__ import annotations

import pytest

from coordinator.workers import Connection, Connections
from outrider.wire.messages import PROTOCOL_VERSION, Failure, Heartbeat, Hello, Welcome


def table() -> Connections:
    return Connections({"t": "target", "d": "draft"}, heartbeat_s=0.5, lost_after_s=2.0, stuck_after_s=30.0)


def hello(name: str = "d", role: str = "draft", protocol: int = PROTOCOL_VERSION, pid: int = 77) -> Hello:
    return Hello(protocol, role, name, pid)  # type: ignore[arg-type]


def connect(connections: Connections, peer: bytes = b"p", **options: str) -> Connection:
    answer, _ = connections.hello(peer, hello(**options), 0.0)  # type: ignore[arg-type]
    assert isinstance(answer, Welcome)
    connection = connections.of_peer(peer)
    assert connection is not None
    return connection


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (hello(protocol=PROTOCOL_VERSION + 1), f"speaks protocol {PROTOCOL_VERSION + 1}"),
        (hello(name="x"), "no worker named 'x' is configured (names: d, t)"),
        (hello(role="target"), "'d' is configured as draft worker, it came as target worker"),
    ],
)
def test_refused_with_its_reason(greeting: Hello, reason: str) -> None:
    connections = table()
    answer, ended = connections.hello(b"p", greeting, 0.0)
    assert isinstance(answer, Failure)
    assert answer.code == "refused"
    assert reason in answer.reason
    assert ended is None
    assert connections.of_peer(b"p") is None


def test_a_name_in_use_is_refused_and_the_first_works_on() -> None:
    connections = table()
    first = connect(connections, b"one")
    answer, _ = connections.hello(b"two", hello(pid=78), 1.0)
    assert isinstance(answer, Failure)
    assert answer.reason == "the name 'd' is in use by process 77"
    assert connections.heard(b"one", first.incarnation, 1.0) is first


def test_clients_may_share_a_name() -> None:
    connections = table()
    one = connect(connections, b"one", name="c", role="client")
    assert connect(connections, b"two", name="c", role="client") is not one
    assert connections.of_peer(b"one") is one


def test_greeting_again_starts_anew() -> None:
    connections = table()
    first = connect(connections)
    answer, ended = connections.hello(b"p", hello(), 1.0)
    assert ended is first
    assert isinstance(answer, Welcome)
    assert answer.incarnation > first.incarnation
    assert connections.heard(b"p", first.incarnation, 1.0) is None


def test_incarnations_are_never_given_twice() -> None:
    connections = table()
    numbers = []
    for i in range(5):
        connection = connect(connections, bytes([i]))
        numbers.append(connection.incarnation)
        connections.drop(connection)
    assert len(set(numbers)) == 5


def test_silence_is_death_and_any_message_is_life() -> None:
    connections = table()
    connection = connect(connections)
    connections.heard(b"p", connection.incarnation, 1.5)
    assert connections.lost(3.4) == []
    ((lost, why),) = connections.lost(3.6)
    assert lost is connection
    assert why == "nothing heard for 2.1 s"


def test_a_target_may_be_silent_for_longer() -> None:
    connections = table()
    connect(connections, name="t", role="target")
    assert connections.lost(5.9) == []
    assert len(connections.lost(6.1)) == 1


def test_a_socket_that_answers_while_the_work_stands_still_is_no_life() -> None:
    connections = table()
    connection = connect(connections)
    for second in range(32):
        connections.heard(b"p", connection.incarnation, float(second))
        connections.heartbeat(connection, Heartbeat(connection.incarnation, 5, n_waiting=1), float(second))
    ((_, why),) = connections.lost(31.0)
    assert why.startswith("no progress for")
    idle = table()
    connection = connect(idle)
    for second in range(100):
        idle.heard(b"p", connection.incarnation, float(second))
        idle.heartbeat(connection, Heartbeat(connection.incarnation, 5, n_waiting=0), float(second))
    assert idle.lost(100.0) == []
