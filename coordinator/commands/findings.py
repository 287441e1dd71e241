"""What `outrider doctor` finds, as pure functions: configuration and facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from coordinator.commands.units import bytes_text, count_text
from outrider.config import Config, Worker, has_draft_worker, why_off

#: of n_gpu_layers: what fits a GPU, where there is one
AUTO_LAYERS = -1

Level = Literal["ok", "warn", "fail"]
Facts = dict[str, Any]

#: Bytes of one cached number.
CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "q4_1": 20 / 32,
    "iq4_nl": 18 / 32,
    "q5_0": 22 / 32,
    "q5_1": 24 / 32,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `check` names what was looked at; a "fail" forbids running."""

    level: Level
    check: str
    text: str


@dataclass(frozen=True, slots=True)
class Role:
    """A worker that starts here, with the engine that "auto" stands for and the facts of its file (None: it has none)."""

    name: str
    worker: Worker
    engine: str
    facts: Facts | None = None


def speculation(config: Config) -> Finding:
    spec = config.speculative
    if reason := why_off(config):
        return Finding("warn", "speculation", f"off: {reason}")
    return Finding("ok", "speculation", f"on: {', '.join(spec.types)}, schedule {spec.schedule}")


def engine(role: Role, llama: Facts) -> Finding:
    """Is the engine there? `llama`: what loading its library gave, or {"error": …}."""
    check = f"{role.name} engine"
    if role.engine != "llama":
        why = " (auto: llama-cpp-python is not installed)" if role.worker.engine == "auto" else ""
        return Finding("ok", check, f"{role.engine}{why}")
    if "error" in llama:
        return Finding("fail", check, llama["error"])
    if llama["version"] is None:
        return Finding("fail", check, "llama: llama-cpp-python is not installed; run: pip install 'outrider[llama]'")
    devices = ", ".join(f"{name} ({bytes_text(free)} free)" for name, free in llama["devices"]) or "no GPU"
    forbids = (
        role.worker.n_gpu_layers not in (0, AUTO_LAYERS) and not llama["devices"] and role.worker.devices != ["none"]
    )
    hint = "; build it for the GPU, or leave n_gpu_layers at auto" if forbids else ""
    return Finding("fail" if forbids else "ok", check, f"llama: llama-cpp-python {llama['version']}, {devices}{hint}")


def model(role: Role) -> Finding:
    """Can the file be read, and does the engine take it?"""
    check, facts = f"{role.name} model", role.facts
    if facts is None:
        return Finding("ok", check, role.worker.model)
    if "error" in facts:
        return Finding("fail", check, facts["error"])
    if facts.get(role.engine):
        return Finding("fail", check, f"{facts['path']}: {facts[role.engine]}")
    size = f"{count_text(facts['n_params'])} parameters, {bytes_text(facts['n_bytes'])}"
    return Finding("ok", check, f"{facts['name'] or facts['path']}: {facts['architecture']}, {size}")


def context(role: Role) -> Iterator[Finding]:
    """The context asked for, against the one the model was trained for."""
    facts, asked = role.facts, role.worker.ctx_size
    if not _readable(facts) or not facts["n_ctx_train"]:
        return
    trained = facts["n_ctx_train"]
    text = f"{asked or trained} positions, the model was trained for {trained}"
    if asked <= trained:
        yield Finding("ok", f"{role.name} context", text)
    elif role.engine == "numpy":
        yield Finding("fail", f"{role.name} context", f"{text}: give -c {trained} or less")
    else:
        yield Finding("warn", f"{role.name} context", f"{text}: the text may turn bad beyond that")


def vocabulary(vocab: Facts | None) -> Iterator[Finding]:
    """`vocab`: what the comparison of the two files gave; None where there are not two."""
    if vocab is None:
        return
    if vocab["unknown"]:
        yield Finding("warn", "vocabulary", f"not compared ({vocab['unknown']}); it will be when the workers start")
    elif vocab["refusal"]:
        yield Finding("fail", "vocabulary", vocab["refusal"])
    else:
        yield Finding("ok", "vocabulary", "draft and target share it")


def memory_bytes(role: Role, n_seq: int) -> tuple[int, int]:
    """Weights and caches that a worker takes, in bytes. Engine numpy keeps both in float32."""
    facts, worker = role.facts, role.worker
    if not _readable(facts):
        return 0, 0
    positions = (worker.ctx_size or facts["n_ctx_train"]) * n_seq
    values = (facts["kv_values"] or 0) * positions / 2
    if role.engine == "numpy":
        return facts["n_params"] * 4, int(values * 8)
    width = CACHE_BYTES[worker.cache_type_k] + CACHE_BYTES[worker.cache_type_v]
    return sum(size for _, size in facts["weights"].values()), int(values * width)


def memory(roles: list[Role], n_seq: int, available: int | None, llama: Facts) -> Iterator[Finding]:
    """Needs of all workers that keep their model in main memory, against what there is."""
    total = 0
    for role in roles:
        weights, cache = memory_bytes(role, n_seq)
        on_gpu = _uses_gpu(role, llama)
        total += 0 if on_gpu else weights + cache
        where = " (on the GPU)" if on_gpu else ""
        if weights:
            text = f"{bytes_text(weights)} of weights, {bytes_text(cache)} of cache{where}"
            yield Finding("ok", f"{role.name} memory", text)
    if available is None:
        yield Finding("warn", "memory", f"{bytes_text(total)} needed; this system does not tell what is available")
    elif total:
        level: Level = "ok" if total <= available else "fail"
        yield Finding(level, "memory", f"{bytes_text(total)} needed, {bytes_text(available)} available")


def _uses_gpu(role: Role, llama: Facts) -> bool:
    worker = role.worker
    wanted = worker.n_gpu_layers != 0 and worker.devices != ["none"]
    return role.engine == "llama" and wanted and bool(llama.get("devices"))


def processors(roles: list[Role], usable: list[int]) -> Iterator[Finding]:
    """Pinned processors must exist; workers that share some hinder one another."""
    yield Finding("ok", "processors", f"{len(usable)} usable: {_ranges(usable)}")
    for role in roles:
        missing = sorted(set(role.worker.cpus) - set(usable))
        if missing:
            yield Finding("fail", f"{role.name} cpus", f"{_ranges(missing)}: not usable by this process")
        elif role.worker.cpus:
            yield Finding("ok", f"{role.name} cpus", _ranges(role.worker.cpus))
    if len(roles) == 2:
        yield from _sharing(roles[0].worker, roles[1].worker, usable)


def _sharing(target: Worker, draft: Worker, usable: list[int]) -> Iterator[Finding]:
    both = set(target.cpus) & set(draft.cpus)
    if both:
        yield Finding("warn", "processors", f"target and draft share {_ranges(sorted(both))}")
    elif (
        not target.cpus
        and not draft.cpus
        and (target.threads or len(usable)) + (draft.threads or len(usable)) > len(usable)
    ):
        yield Finding("warn", "processors", "target and draft are not pinned and have more threads than processors")


def _ranges(cpus: list[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2,5`."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


def elsewhere(config: Config) -> Iterator[Finding]:
    """Workers that start on hosts of their own are not looked at."""
    if not config.target.launch:
        yield Finding("warn", "target", "starts on its own host: not checked here")
    if has_draft_worker(config) and not config.draft.launch:
        yield Finding("warn", "draft", "starts on its own host: not checked here")


def _readable(facts: Facts | None) -> TypeGuard[Facts]:
    return facts is not None and "error" not in facts
