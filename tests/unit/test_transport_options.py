"""Every socket has the options of the table, as the system reports them, and closes its context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import zmq

from outrider.wire.codec import MAX_MESSAGE_BYTES
from outrider.wire.transport import DealerTransport, RouterTransport
from outrider.wire.transport.options import HWM, options_of, set_options

#: libzmq has no getsockopt for these; `tests/inproc` tests what they do.
WRITE_ONLY = {"ROUTER_MANDATORY", "ROUTER_HANDOVER"}
KINDS = [zmq.ROUTER, zmq.DEALER]


@pytest.fixture
def sockets() -> Iterator[dict[int, zmq.Socket[bytes]]]:
    with closing(RouterTransport()) as router, closing(DealerTransport(router.endpoint)) as dealer:
        yield {zmq.ROUTER: router._socket, zmq.DEALER: dealer._socket}


def values(kind: int) -> dict[str, int]:
    return {option.name: option.value for option in options_of(kind)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_sockets_in_use_have_the_options_of_the_table(kind: int, sockets: dict[int, zmq.Socket[bytes]]) -> None:
    for name, value in values(kind).items():
        if name not in WRITE_ONLY:
            assert sockets[kind].getsockopt(getattr(zmq, name)) == value, name


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_table_must_say(kind: int) -> None:
    table = values(kind)
    assert 0 <= table["LINGER"] <= 500
    assert table["MAXMSGSIZE"] == MAX_MESSAGE_BYTES
    assert table["SNDHWM"] == HWM
    assert 0 < table["SNDTIMEO"] <= 1000
    assert 0 < table["RCVTIMEO"] <= 1000
    assert 0 < table["HANDSHAKE_IVL"] < 30_000
    assert table["TCP_KEEPALIVE"] == 1
    assert {"TCP_KEEPALIVE_IDLE", "TCP_KEEPALIVE_INTVL", "TCP_KEEPALIVE_CNT"} <= table.keys()


def test_what_the_coordinators_table_must_say() -> None:
    table = values(zmq.ROUTER)
    assert table["ROUTER_MANDATORY"] == 1
    assert table["ROUTER_HANDOVER"] == 0
    assert table["RCVHWM"] == HWM


def test_what_the_workers_table_must_say() -> None:
    table = values(zmq.DEALER)
    assert 0 < table["HEARTBEAT_IVL"] < table["HEARTBEAT_TIMEOUT"] <= 3000
    assert table["HEARTBEAT_TTL"] == table["HEARTBEAT_TIMEOUT"]
    assert 0 < table["RECONNECT_IVL"] < table["RECONNECT_IVL_MAX"] <= 5000
    assert table["IMMEDIATE"] == 0


def test_pings_and_a_bound_on_input_never_meet() -> None:
    """The two together abort the process (see `transport/options.py`)."""
    with zmq.Context() as context:
        for kind in KINDS:
            with context.socket(kind) as socket:
                set_options(socket)
                assert not (socket.heartbeat_ivl > 0 and socket.rcvhwm > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_says_why(kind: int) -> None:
    for option in options_of(kind):
        assert len(option.why) > 3, option.name
    assert len(values(kind)) == len(options_of(kind))


def test_the_high_water_mark_can_be_chosen() -> None:
    assert {option.value for option in options_of(zmq.ROUTER, 7) if option.name.endswith("HWM")} == {7}
