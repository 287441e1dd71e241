"""Messages over ZeroMQ: a ROUTER for the coordinator, a DEALER for everyone else. Only this package imports `zmq`.

RouterTransport     bound at ipc in a private folder, or at tcp with keys
DealerTransport     connected to it
generate_keys, load_server_keys, load_client_keys     the keys that tcp takes
"""

from outrider.wire.transport.dealer import DealerTransport
from outrider.wire.transport.keys import (
    ClientKeys,
    KeyPair,
    ServerKeys,
    generate_keys,
    load_client_keys,
    load_server_keys,
)
from outrider.wire.transport.options import HWM
from outrider.wire.transport.router import RouterTransport

__all__ = [
    "HWM",
    "ClientKeys",
    "DealerTransport",
    "KeyPair",
    "RouterTransport",
    "ServerKeys",
    "generate_keys",
    "load_client_keys",
    "load_server_keys",
]
