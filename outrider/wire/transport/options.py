"""Every option of every socket, set in one place, with its reason.

libzmq 4.3.5 aborts the process ("Assertion failed: !_io_error") where it is to send a ping or pong on a connection that
broke while its input was stopped because RCVHWM was reached. Hence a coordinator, which must bound its input, sends no
pings, and a dealer, which does, has no bound: it takes only what its coordinator sends. The coordinator notices a worker
that has stopped by its missing Heartbeats, which it needs anyway: pings tell nothing about the work loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from outrider.wire.codec import MAX_MESSAGE_BYTES

#: Messages queued per peer. A round takes about six messages; this holds those of 80 sessions at once.
HWM = 512


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # in `zmq`
    value: int
    why: str


COMMON = (
    Option("LINGER", 500, "closing waits at most so many ms for a peer that does not read; the default is for ever"),
    Option("SNDTIMEO", 1000, "we never send blocking; should we, it ends"),
    Option("RCVTIMEO", 1000, "we never receive blocking; should we, it ends"),
    Option("MAXMSGSIZE", MAX_MESSAGE_BYTES, "a longer frame cuts the connection before it is read; default no limit"),
    Option("HANDSHAKE_IVL", 5000, "ms for a handshake: half-open connections go away sooner than the default 30 s"),
    Option(
        "TCP_MAXRT", 5000, "ms that sent bytes may stay unacknowledged before the link counts as dead; default minutes"
    ),
    Option("TCP_KEEPALIVE", 1, "the system's own check, should ours be starved"),
    Option("TCP_KEEPALIVE_IDLE", 30, "seconds of silence before it; default 2 hours"),
    Option("TCP_KEEPALIVE_INTVL", 10, "seconds between probes"),
    Option("TCP_KEEPALIVE_CNT", 3, "probes"),
)
ROUTER = (
    Option("ROUTER_MANDATORY", 1, "sending to an unknown or full peer is an error; the default drops in silence"),
    Option("ROUTER_HANDOVER", 0, "a second peer with a taken identity does not get the first one's messages"),
)
DEALER = (
    Option(
        "RCVHWM", 0, "no bound on what the coordinator sends: see above; `link` bounds what waits for the work loop"
    ),
    Option("HEARTBEAT_IVL", 500, "ms between pings: notices a stopped process or a dead link, also without traffic"),
    Option("HEARTBEAT_TIMEOUT", 2000, "ms without an answer after which the connection is cut"),
    Option("HEARTBEAT_TTL", 2000, "ms after a ping, if nothing follows, after which the other side cuts it"),
    Option("RECONNECT_IVL", 50, "ms before the first attempt to connect again"),
    Option("RECONNECT_IVL_MAX", 2000, "doubling up to so many ms; the default does not back off"),
    Option("CONNECT_TIMEOUT", 3000, "ms for a connect to a host that does not answer; default minutes"),
    Option(
        "IMMEDIATE",
        0,
        "1 would throw away what has come but is not read when the connection ends, a Shutdown say;"
        " that nothing is queued for an absent coordinator is `DealerTransport`'s care",
    ),
)


def options_of(kind: int, hwm: int = HWM) -> tuple[Option, ...]:
    """All options of a ROUTER or DEALER socket; `hwm` messages are queued per peer."""
    sending = Option("SNDHWM", hwm, "messages queued for a peer; beyond that sending is an error (PeerFullError)")
    if kind == zmq.ROUTER:
        return (*COMMON, sending, Option("RCVHWM", hwm, "messages queued from a peer; then it must wait"), *ROUTER)
    return (*COMMON, sending, *DEALER)


def set_options(socket: zmq.Socket[bytes], hwm: int = HWM) -> None:
    """Before bind or connect: most options hold for connections made after them."""
    for option in options_of(int(socket.getsockopt(zmq.TYPE)), hwm):
        socket.setsockopt(getattr(zmq, option.name), option.value)
