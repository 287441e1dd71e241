"""What the doctor finds, from made-up facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.commands import findings as found
from coordinator.commands.findings import CACHE_BYTES, Finding, Role
from coordinator.commands.machine import available_bytes
from coordinator.commands.units import bytes_text, count_text
from outrider.config import Config, load
from outrider.engine.options import CACHE_TYPES
from tests.unit.config_samples import setting

NO_LLAMA = {"version": None, "devices": []}
GPU = {"version": "1", "devices": [["CUDA0", 8 << 30]]}


def config(**values: str) -> Config:
    keys = {"target.model": "t", "draft.model": "d"} | {name.replace("__", "."): text for name, text in values.items()}
    return load([setting(key, text) for key, text in keys.items()], environ={}).config


def role(engine: str = "llama", name: str = "target", facts: dict[str, Any] | None = None, **values: Any) -> Role:
    worker = msgspec.structs.replace(config().target, ctx_size=100, **values)
    some = {"path": "t", "name": "T", "architecture": "llama", "n_bytes": 1000, "n_params": 500, "n_ctx_train": 200}
    more = {"weights": {"Q4_0": (2, 900)}, "kv_values": 10, "numpy": "", "llama": ""}
    return Role(name, worker, engine, {**some, **more, **(facts or {})})


def levels(results: Any) -> list[str]:
    return [finding.level for finding in results]


def test_speculation_that_is_off_says_why() -> None:
    assert found.speculation(config()).text == "on: ngram-suffix, draft-simple, schedule auto"
    off = found.speculation(config(speculative__types="none"))
    assert (off.level, off.text) == ("warn", "off: --spec-type none")


def test_engines() -> None:
    assert found.engine(role("numpy"), NO_LLAMA).level == "ok"
    assert "not installed" in found.engine(role("numpy"), NO_LLAMA).text
    assert found.engine(role("llama"), NO_LLAMA).level == "fail"
    assert found.engine(role("llama"), {"error": "it died"}) == Finding("fail", "target engine", "it died")
    assert "CUDA0 (8 GiB free)" in found.engine(role("llama"), GPU).text


def test_models() -> None:
    assert found.model(role()).level == "ok"
    assert found.model(role(facts={"error": "x: is empty"})).text == "x: is empty"
    refused = found.model(role("numpy", facts={"numpy": "no such thing"}))
    assert (refused.level, refused.text) == ("fail", "t: no such thing")


@pytest.mark.parametrize(
    ("engine", "asked", "level"),
    [("llama", 200, "ok"), ("llama", 201, "warn"), ("numpy", 201, "fail"), ("numpy", 0, "ok")],
)
def test_contexts(engine: str, asked: int, level: str) -> None:
    worker = msgspec.structs.replace(role().worker, ctx_size=asked)
    assert levels(found.context(Role("target", worker, engine, role().facts))) == [level]


def test_vocabularies() -> None:
    assert levels(found.vocabulary(None)) == []
    assert levels(found.vocabulary({"refusal": "", "unknown": ""})) == ["ok"]
    assert levels(found.vocabulary({"refusal": "size", "unknown": ""})) == ["fail"]
    assert levels(found.vocabulary({"refusal": "", "unknown": "wpm"})) == ["warn"]


def test_memory_is_weights_and_caches() -> None:
    assert found.memory_bytes(role(), 1) == (900, 10 * 100 * 2)
    assert found.memory_bytes(role(), 3) == (900, 3 * 10 * 100 * 2)
    assert found.memory_bytes(role(cache_type_k="q8_0", cache_type_v="f32"), 1) == (900, int(500 * 34 / 32 + 500 * 4))
    assert found.memory_bytes(role("numpy"), 1) == (2000, 4000)
    assert found.memory_bytes(role(facts={"error": "x"}), 1) == (0, 0)
    assert CACHE_BYTES.keys() == CACHE_TYPES.keys()


@pytest.mark.parametrize(("available", "level"), [(5800, "ok"), (5799, "fail"), (None, "warn")])
def test_memory_of_both_workers_must_fit(available: int | None, level: str) -> None:
    both = [role(), role(name="draft")]
    *each, total = found.memory(both, 1, available, NO_LLAMA)
    assert levels(each) == ["ok", "ok"]
    assert total.level == level


def test_what_is_on_a_gpu_takes_no_main_memory() -> None:
    assert levels(found.memory([role()], 1, 1, GPU)) == ["ok"]
    assert levels(found.memory([role(n_gpu_layers=0)], 1, 1, GPU)) == ["ok", "fail"]
    assert levels(found.memory([role(devices=["none"])], 1, 1, GPU)) == ["ok", "fail"]


def test_processors() -> None:
    def check(target: list[int], draft: list[int], usable: list[int]) -> list[str]:
        return levels(found.processors([role(cpus=target), role(name="draft", cpus=draft)], usable))

    assert check([0], [1], [0, 1]) == ["ok", "ok", "ok"]
    assert check([0], [0], [0, 1]) == ["ok", "ok", "ok", "warn"]
    assert check([0], [5], [0, 1]) == ["ok", "ok", "fail"]
    assert check([], [], [0, 1]) == ["ok", "warn"]
    (first, *_) = found.processors([role()], [0, 1, 2, 5, 7, 8])
    assert first.text == "6 usable: 0-2,5,7-8"


def test_workers_of_other_hosts_are_named() -> None:
    tcp = {"coordinator__listen": "tcp://127.0.0.1:1", "coordinator__keys": "k", "coordinator__allow": "draft"}
    (finding,) = found.elsewhere(config(draft__launch="false", **tcp))
    assert (finding.level, finding.check) == ("warn", "draft")


def test_available_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:       3 kB\n")
    assert available_bytes(meminfo) == 3072


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1023 << 10, "1023 KiB"), (1 << 41, "2 TiB")],
)
def test_bytes_as_people_read_them(n: int, text: str) -> None:
    assert bytes_text(n) == text


@pytest.mark.parametrize(
    ("n", "text"), [(999, "999"), (1500, "1.5 thousand"), (135e6, "135 million"), (7.6e9, "7.6 billion")]
)
def test_counts_as_people_read_them(n: float, text: str) -> None:
    assert count_text(n) == text
