"""The command line `outrider`: find the sub-command, merge its configuration, run it, turn errors into one line.

Exit codes: 0 done; 1 a finding or a failure; 2 a wrong flag, variable, key or request; 3 a bad model file; 4 a worker
that cannot be replaced was lost; 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from coordinator.help import command_help, overview
from outrider.config.argv import Parsed, parse_argv
from outrider.config.load import load
from outrider.config.merge import Merged
from outrider.config.render import merged_toml
from outrider.config.request import request_options
from outrider.config.schema import Config
from outrider.config.settle import of_one_request, require_request, require_server, require_target
from outrider.errors import ConfigError, OutriderError

_WORKERS = ("target", "draft", "speculative", "coordinator", "log")
_REQUEST = ("sampling", "generation", "client")


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command. `sections`: the tables whose flags it takes (none: it has no configuration); `own`: its own
    flags with their help, a metavar in front where they take a value."""

    usage: str
    summary: str
    execute: Callable[[Parsed, Merged | None], int]
    sections: tuple[str, ...] = ()
    own: dict[str, tuple[str, str]] = field(default_factory=dict)
    n_names: tuple[int, int] = (0, 0)
    require: Callable[[Config], None] = require_target
    not_shown: Callable[[str], bool] = lambda key: False  # keys that it refuses with a reason of its own


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except OutriderError as error:
        _say(f"error: {' '.join(str(error).split())}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to be told
        sys.stderr.close()
        return 1


def _main(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        print(overview({name: command.summary for name, command in COMMANDS.items()}), end="")
        return 0 if argv else 2
    if name == "--version":
        print(f"outrider {_version()}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(f"{name} is no command; the commands are {', '.join(COMMANDS)}")
    return _run_command(name, COMMANDS[name], argv[1:])


def _run_command(name: str, command: Command, argv: list[str]) -> int:
    own = {**command.own, **(_CONFIG_FLAGS if command.sections else {}), **_HELP}
    takes_value = {flag: bool(metavar) for flag, (metavar, _) in own.items()}
    parsed = parse_argv(argv[:1] if argv[:1] in _HELP_ONLY else argv, takes_value, command.sections)
    if _HELP.keys() & parsed.own.keys():
        print(command_help(command.usage, command.summary, own, command.sections, command.not_shown), end="")
        return 0
    low, high = command.n_names
    if not low <= len(parsed.names) <= high:
        extra = f": {parsed.names[high]!r} is too much" if len(parsed.names) > high else ""
        raise ConfigError(f"usage: {command.usage}{extra}")
    if not command.sections:
        return command.execute(parsed, None)
    return _with_config(name, command, parsed)


def _with_config(name: str, command: Command, parsed: Parsed) -> int:
    file = parsed.own.get("--config")
    if name == "up" and parsed.names:
        if file is not None:
            raise ConfigError(f"usage: {command.usage}: name the configuration once")
        file = parsed.names[0]
    merged = load(parsed.settings, file)
    for warning in merged.warnings:
        _say(f"warning: {warning}")
    if "--print-config" in parsed.own:
        print(merged_toml(merged), end="")
        return 0
    command.require(merged.config)
    return command.execute(parsed, merged)


def _say(line: str) -> None:
    print(f"outrider: {line}", file=sys.stderr, flush=True)


def _version() -> str:
    try:
        return version("outrider")
    except PackageNotFoundError:
        return "(not installed)"


# What a command needs is imported when it runs: `--help` and `--print-config` load nothing.


def _run(parsed: Parsed, merged: Merged | None) -> int:
    from coordinator.commands import run

    assert merged is not None
    return run.execute(merged.config, request_options(merged))


def _up(parsed: Parsed, merged: Merged | None) -> int:
    from coordinator.commands import doctor, up

    assert merged is not None
    if "--check" in parsed.own:
        return doctor.execute(merged.config)
    return up.execute(merged.config, fixed_seed=merged.origins["sampling.seed"].explicit)


def _serve(parsed: Parsed, merged: Merged | None) -> int:
    from coordinator.commands import up

    assert merged is not None
    return up.execute(up.with_port(merged.config), fixed_seed=merged.origins["sampling.seed"].explicit)


def _doctor(parsed: Parsed, merged: Merged | None) -> int:
    from coordinator.commands import doctor

    assert merged is not None
    return doctor.execute(doctor.on_host_of(parsed.own.get("--role"), merged.config), as_json="--json" in parsed.own)


def _inspect(parsed: Parsed, merged: Merged | None) -> int:
    from coordinator.commands import inspect

    return inspect.execute(parsed.names[0], as_json="--json" in parsed.own)


def _keys(parsed: Parsed, merged: Merged | None) -> int:
    from coordinator.commands import keys

    return keys.execute(parsed.names[0], parsed.names[1:])


_HELP = {"-h": ("", ""), "--help": ("", "show this help")}
_HELP_ONLY = (["-h"], ["--help"])
_CONFIG_FLAGS = {
    "--config": ("FILE", "TOML file; docs/configuration.md lists its keys, --print-config shows them"),
    "--print-config": ("", "show the merged configuration, each value with its origin, and stop"),
}
_JSON = {"--json": ("", "print one JSON object")}

COMMANDS: dict[str, Command] = {
    "run": Command(
        "outrider run -m TARGET.gguf [-md DRAFT.gguf] -p TEXT [options]",
        "answer one prompt; start the workers for it, or use a coordinator that runs (--connect)",
        _run,
        sections=(*_WORKERS, *_REQUEST),
        require=require_request,
    ),
    "up": Command(
        "outrider up CONFIG [--check] [options]",
        "start coordinator and workers of a configuration and serve until SIGTERM",
        _up,
        sections=(*_WORKERS, "sampling", "server"),
        own={"--check": ("", "say what would go wrong (as `outrider doctor` does), start nothing")},
        n_names=(0, 1),
    ),
    "serve": Command(
        "outrider serve -m TARGET.gguf [-md DRAFT.gguf] [--port N] [options]",
        "answer OpenAI's and llama-server's clients over HTTP until SIGTERM",
        _serve,
        sections=(*_WORKERS, "sampling", "generation", "server"),
        not_shown=of_one_request,
        require=require_server,
    ),
    "doctor": Command(
        "outrider doctor -m TARGET.gguf [-md DRAFT.gguf] [--role ROLE] [--json] [options]",
        "can these models run together here? One finding a line; exit code 1 if one of them forbids it",
        _doctor,
        sections=_WORKERS,
        own={"--role": ("ROLE", "this is the host of this worker alone: target or draft"), **_JSON},
    ),
    "inspect": Command(
        "outrider inspect FILE.gguf [--json]",
        "what a model file is, and which types of speculation it can serve",
        _inspect,
        own=_JSON,
        n_names=(1, 1),
    ),
    "keys": Command(
        "outrider keys DIR NAME...",
        "make CURVE keys for these names, for connections over tcp",
        _keys,
        n_names=(2, 1000),
    ),
}

if __name__ == "__main__":
    sys.exit(main())
