"""For every option: a text that is not its default, and the value it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import inspect as mi

from outrider.config.merge import Origin, Setting
from outrider.config.options import BY_FLAG, Option
from outrider.types import LogitBias

_OWN: dict[str, tuple[str, Any]] = {
    "target.cpus": ("0-1,5", [0, 1, 5]),
    "draft.cpus": ("3", [3]),
    "target.n_gpu_layers": ("all", -2),
    "draft.n_gpu_layers": ("7", 7),
    "target.sha256": ("ab" * 32, "ab" * 32),
    "draft.sha256": ("cd" * 32, "cd" * 32),
    "target.devices": ("CUDA0, CUDA1", ["CUDA0", "CUDA1"]),
    "draft.devices": ("none", ["none"]),
    "speculative.types": ("ngram-mod,ngram-cache", ["ngram-mod", "ngram-cache"]),
    "speculative.synth_len": ("0x1p1", 2.0),
    "speculative.synth_rates": ("0.5, 0.25", [0.5, 0.25]),
    "sampling.logit_bias": ("15-2.5", [LogitBias(15, -2.5)]),
    "generation.prompt_tokens": ("1,2,3", [1, 2, 3]),
    "generation.stop": ("a,b", ["a,b"]),
    "coordinator.listen": ("tcp://127.0.0.1:5570", "tcp://127.0.0.1:5570"),
    "coordinator.address": ("tcp://127.0.0.1:5571", "tcp://127.0.0.1:5571"),
    "coordinator.allow": ("alice,bob", ["alice", "bob"]),
    "server.port": ("8081", 8081),
    "server.host": ("127.0.0.1,::1", ["127.0.0.1", "::1"]),
    "server.alias": ("one, two", ["one", "two"]),
    "server.tags": ("chat", ["chat"]),
    "server.cors_origins": ("*", ["*"]),
    "client.connect": ("ipc:///tmp/socket", "ipc:///tmp/socket"),
}


def sample(option: Option) -> tuple[str, Any]:
    """A text for a flag or variable, and the value of the key that it must give."""
    if option.key in _OWN:
        return _OWN[option.key]
    kind: Any = option.kind
    if option.path:
        return "some/file", str(Path.cwd() / "some/file")
    match kind:
        case mi.BoolType():
            return str(not option.default).lower(), not option.default
        case mi.IntType():
            return str(option.default + 1), option.default + 1
        case mi.FloatType():
            value = 0.75 if kind.le is None or kind.le >= 0.75 else 0.5
            return str(value), value
        case mi.LiteralType(values=values):
            other = next((value for value in values if value != option.default), option.default)
            return str(other), other
        case _:
            return "word", "word"


def argv_for(option: Option, flag: str) -> tuple[list[str], Any]:
    """Arguments that set the option by this flag, and the value it must have then."""
    switch = BY_FLAG[flag][1]
    if switch is not None:
        return [flag], switch
    text, value = sample(option)
    return [flag, text], value


def setting(key: str, value: object, level: str = "command line") -> Setting:
    return Setting(key, value, Origin(level, "test"), Path(), typed=not isinstance(value, str))
