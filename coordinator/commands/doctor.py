"""`outrider doctor`: can these models run together, here?"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from coordinator.commands import findings as found
from coordinator.commands.findings import Facts, Finding, Role
from coordinator.commands.machine import available_bytes, usable_cpus
from coordinator.commands.reading import load_llama, read_files
from outrider.config import Config, Worker, has_draft_worker
from outrider.engine.options import FILELESS
from outrider.errors import ConfigError, OutriderError
from outrider.types import WorkerRole
from outrider.wire.transport import generate_keys


def execute(config: Config, *, as_json: bool = False) -> int:
    """Print one finding a line; 1 if one of them forbids running, else 0."""
    findings = list(examine(config))
    healthy = all(finding.level != "fail" for finding in findings)
    if as_json:
        print(json.dumps({"ok": healthy, "findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            print(f"{finding.level:<5} {finding.check:<15} {' '.join(finding.text.split())}")
    return 0 if healthy else 1


def on_host_of(role: str | None, config: Config) -> Config:
    """As the host of this worker alone has it, where one is given. Raises ConfigError for a role that nobody has."""
    if role is None:
        return config
    if role not in get_args(WorkerRole):
        raise ConfigError(f"--role {role}: say {' or '.join(get_args(WorkerRole))}")
    if role == "draft" and not has_draft_worker(config):
        raise ConfigError("--role draft: no draft model is configured; give -md or draft.model")
    target = replace(config.target, launch=role == "target")
    return replace(config, target=target, draft=replace(config.draft, launch=role == "draft"))


def examine(config: Config) -> Iterator[Finding]:
    """All findings. Nothing is raised for what is wrong with files or machine: it is a finding."""
    llama = _llama(config)
    roles, vocab = _roles(config, llama)
    yield found.speculation(config)
    yield from found.elsewhere(config)
    for role in roles:
        yield found.engine(role, llama)
        yield found.model(role)
        yield from found.context(role)
    yield from found.vocabulary(vocab)
    yield from found.memory(roles, config.coordinator.n_seq, available_bytes(), llama)
    yield from found.processors(roles, usable_cpus())
    yield curve(config)


def _llama(config: Config) -> Facts:
    """What llama.cpp's library says, if one of the workers could use it."""
    engines = {worker.engine for _, worker in _here(config)}
    if not engines & {"auto", "llama"}:
        return {"version": None, "devices": []}
    try:
        return load_llama()
    except OutriderError as error:
        return {"error": str(error)}


def _here(config: Config) -> list[tuple[str, Worker]]:
    """The workers that start on this host."""
    workers: list[tuple[str, Worker]] = [("target", config.target)]
    if has_draft_worker(config):
        workers.append(("draft", config.draft))
    return [(name, worker) for name, worker in workers if worker.launch]


def _roles(config: Config, llama: Facts) -> tuple[list[Role], Facts | None]:
    """The workers of this host with the facts of their files, and the comparison of their vocabularies."""
    auto = "numpy" if llama.get("version", "broken") is None else "llama"
    roles = [Role(name, worker, auto if worker.engine == "auto" else worker.engine) for name, worker in _here(config)]
    with_files = [role for role in roles if role.engine not in FILELESS]
    if not with_files:
        return roles, None
    paths = [role.worker.model for role in with_files]
    try:
        answer = read_files(paths)
    except OutriderError as error:
        answer = {"files": [{"error": str(error)} for _ in paths], "vocab": None}
    facts = dict(zip((role.name for role in with_files), answer["files"], strict=True))
    return [Role(role.name, role.worker, role.engine, facts.get(role.name)) for role in roles], answer["vocab"]


def curve(config: Config) -> Finding:
    """tcp needs a libzmq with CURVE: make a key and see."""
    needed = config.coordinator.listen.startswith("tcp://")
    try:
        with tempfile.TemporaryDirectory() as folder:
            generate_keys(Path(folder) / "keys", ["doctor"])
    except Exception as error:  # whatever a libzmq that lacks it raises
        return Finding("fail" if needed else "warn", "libzmq", f"no CURVE keys can be made, so no tcp: {error}")
    return Finding("ok", "libzmq", "has CURVE")
