"""The contract of the llama engine on tiny models: batches, limits, faults, files."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

import llama_cpp.llama_cpp as lib

from outrider.engine.base import Span
from outrider.engine.factory import create_engine
from outrider.engine.llama_cpp import Device, gpu_devices
from outrider.engine.llama_engine import LlamaEngine, chosen_devices, flash_attention
from outrider.engine.options import EngineOptions
from outrider.errors import CacheError, ConfigError, ContextFullError, EngineError, ModelFileError
from tests.model.llama_kit import NEAR, WRITERS, distance, extend, fresh_logits, opened, tiny_model
from tests.tiny_gguf import Tiny, random_tensors, write_tensors

TOKENS = [70 + i * 7 % 120 for i in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return tiny_model(folder, "llama")


@pytest.fixture
def engine(path: Path) -> Iterator[LlamaEngine]:
    with opened(path, n_ctx=64, n_batch=32, n_seq=3) as engine:
        yield engine


def test_facts(path: Path, engine: LlamaEngine) -> None:
    facts = engine.facts
    assert (facts.engine, facts.architecture, facts.name) == ("llama", "llama", "tiny llama")
    assert (facts.n_ctx, facts.n_batch, facts.n_seq, facts.n_vocab) == (64, 32, 3, engine.n_vocab)
    rows = 2 * Tiny().n_layer * Tiny().n_kv * Tiny().head * 4 * 64 * 3
    weights = sum(values.nbytes for values in random_tensors(Tiny()).values())
    assert weights + rows <= facts.memory_bytes < weights + 1.2 * rows
    assert not facts.has_chat_template


def test_the_context_of_the_model(path: Path) -> None:
    with opened(path, n_ctx=0) as engine:
        assert engine.n_ctx == Tiny().n_ctx


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_are_the_same_in_every_batch(folder: Path, kind: str) -> None:
    with opened(tiny_model(folder, kind)) as engine:
        wanted = fresh_logits(engine, TOKENS)
        for size in (1, 2, 5, 8):
            engine.truncate(0, 0)
            rows = [extend(engine, TOKENS[i : i + size]) for i in range(0, len(TOKENS), size)]
            assert distance(np.concatenate(rows), wanted) < NEAR


@pytest.mark.parametrize("kind", WRITERS)
def test_spans_of_unequal_length_are_merged(folder: Path, kind: str) -> None:
    """llama.cpp splits such batches and computes their rows in another order than they were given."""
    parts = [TOKENS[:1], TOKENS[5:19], TOKENS[30:33]]
    with opened(tiny_model(folder, kind), n_seq=3) as engine:
        wanted = [fresh_logits(engine, part)[-n:] for part, n in zip(parts, (1, 14, 2), strict=True)]
        engine.truncate(0, 0)
        spans = [Span(2, 0, parts[0], 1), Span(0, 0, parts[1], 14), Span(1, 0, parts[2], 2)]
        logits = engine.decode(spans).logits
        assert logits.shape == (17, engine.n_vocab)
        assert distance(logits, np.concatenate(wanted)) < NEAR
        assert [engine.length(seq) for seq in range(3)] == [14, 3, 1]


def test_logits_are_a_read_only_view_of_the_native_buffer(engine: LlamaEngine) -> None:
    logits = engine.decode([Span(0, 0, TOKENS[:9], 4)]).logits
    assert logits.shape == (4, engine.n_vocab)
    assert logits.dtype == np.float32
    assert not logits.flags.writeable
    assert engine._context is not None
    for row in range(4):
        native = lib.llama_get_logits_ith(engine._context.handle, 5 + row)
        assert ctypes.addressof(native.contents) == logits[row].ctypes.data


@pytest.mark.parametrize("n_rows", [1, 9])
def test_nothing_wanted_gives_no_rows(engine: LlamaEngine, n_rows: int) -> None:
    assert engine.decode([Span(0, 0, TOKENS[:n_rows])]).logits.shape == (0, engine.n_vocab)
    assert engine.decode([]).logits.shape == (0, engine.n_vocab)
    assert engine.length(0) == n_rows


@pytest.mark.parametrize("options", [{"n_ubatch": 4}, {"n_ubatch": 1}, {"n_batch": 1, "n_seq": 3}, {"n_batch": 3}])
def test_more_outputs_than_are_computed_at_a_time(path: Path, options: dict[str, int]) -> None:
    with opened(path) as engine:
        wanted = fresh_logits(engine, TOKENS)
    with opened(path, **options) as engine:
        step = min(engine.n_batch, 16)
        rows = [extend(engine, TOKENS[i : i + step]) for i in range(0, len(TOKENS), step)]
        assert distance(np.concatenate(rows), wanted) < NEAR


@pytest.mark.parametrize("options", [{"n_batch": 2}, {"n_ubatch": 1}, {"n_batch": 1, "n_seq": 3}])
def test_more_snapshots_than_rows_of_a_batch(folder: Path, options: dict[str, int]) -> None:
    with opened(tiny_model(folder, "lfm2"), n_rs_seq=5, **options) as engine:
        some = TOKENS[: min(engine.n_batch, 20)]
        assert np.isfinite(extend(engine, some)).all()
        assert engine.length(0) == len(some)


def test_the_context_is_filled_to_the_last_position(path: Path) -> None:
    """All sequences at once: what one uses is not missing for another."""
    with opened(path, n_ctx=300, n_batch=100, n_seq=3) as engine:
        for start in range(0, 300, 30):
            engine.decode([Span(seq, start, TOKENS[:30], 1) for seq in range(3)])
        for seq in range(3):
            with pytest.raises(ContextFullError, match="301 positions asked for, n_ctx is 300"):
                extend(engine, TOKENS[:1], seq=seq)
            assert engine.length(seq) == 300


WRONG_SPANS = {
    "more than n_batch": [Span(0, 3, [80] * 33)],
    "in all more than n_batch": [Span(0, 3, [80] * 20), Span(1, 0, [80] * 13)],
    "past n_ctx": [Span(0, 3, [80] * 30), Span(1, 63, [80] * 2)],
    "a gap": [Span(0, 4, [80])],
    "a row again": [Span(0, 2, [80])],
    "negative token": [Span(1, 0, [80]), Span(0, 3, [-1])],
    "token beyond the vocabulary": [Span(0, 3, [80, 325])],
    "token beyond 32 bits": [Span(0, 3, [2**32 + 80])],
    "token beyond 64 bits": [Span(0, 3, [2**64])],
    "more outputs than rows": [Span(0, 3, [80], 2)],
    "negative outputs": [Span(0, 3, [80], -1)],
    "a sequence twice": [Span(0, 3, [80]), Span(0, 4, [80])],
    "negative sequence": [Span(-1, 0, [80])],
    "sequence beyond n_seq": [Span(3, 0, [80])],
}


@pytest.mark.parametrize("spans", WRONG_SPANS.values(), ids=WRONG_SPANS.keys())
def test_wrong_spans_are_refused_and_change_nothing(engine: LlamaEngine, spans: list[Span]) -> None:
    wanted = fresh_logits(engine, TOKENS[:4])
    engine.truncate(0, 3)
    with pytest.raises(EngineError):
        engine.decode(spans)
    assert [engine.length(seq) for seq in range(3)] == [3, 0, 0]
    assert distance(extend(engine, TOKENS[3:4]), wanted[3:]) < NEAR


def test_wrong_numbers_of_rows_and_sequences(engine: LlamaEngine) -> None:
    extend(engine, TOKENS[:5])
    for length in (-1, 6, 2**32, -(2**31)):
        with pytest.raises(CacheError, match="cannot keep"):
            engine.truncate(0, length)
    for seq in (-1, 3, 2**32):
        for call in (engine.length, engine.save, lambda seq: engine.truncate(seq, 0), lambda seq: engine.copy(0, seq)):
            with pytest.raises(CacheError, match=r"is not in 0\.\.2"):
                call(seq)
    assert engine.length(0) == 5


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("code", [2, -3])
def test_a_failed_computation_leaves_no_row_behind(
    folder: Path, kind: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tiny_model(folder, kind), n_seq=2, n_rs_seq=8) as engine:
        wanted = fresh_logits(engine, TOKENS[:20])
        engine.truncate(0, 0)
        extend(engine, TOKENS[:12])
        extend(engine, TOKENS[:3], seq=1)
        with monkeypatch.context() as patch:
            decode = lib.llama_decode
            patch.setattr(lib, "llama_decode", lambda *arguments: decode(*arguments) or code)
            with pytest.raises(EngineError, match=f"llama_decode returned {code}"):
                engine.decode([Span(0, 12, TOKENS[12:20], 1), Span(1, 3, TOKENS[3:11], 1)])
        kept = 12 if engine.memory == "truncate" else 0
        assert [engine.length(0), engine.length(1)] == [kept, 3 if kept else 0]
        assert distance(extend(engine, TOKENS[kept:20])[-1:], wanted[-1:]) < NEAR


def test_no_room_is_a_full_context(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    extend(engine, TOKENS[:3])
    monkeypatch.setattr(lib, "llama_decode", lambda *arguments: 1)
    with pytest.raises(ContextFullError):
        extend(engine, TOKENS[:3])
    assert engine.length(0) == 3


def test_close_is_final_and_idempotent(path: Path) -> None:
    with opened(path) as engine:
        engine.close()
        engine.close()
        with pytest.raises(AssertionError, match="closed"):
            extend(engine, TOKENS[:1])


def test_quantised_caches(folder: Path, path: Path) -> None:
    for flash_attn in ("auto", "on"):
        options = {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": flash_attn}
        with opened(tiny_model(folder, "gemma3"), **options) as engine:
            assert np.isfinite(extend(engine, TOKENS)).all()
    with opened(tiny_model(folder, "gemma3"), cache_type_k="q4_0", flash_attn="off") as engine:
        assert np.isfinite(extend(engine, TOKENS)).all()
    for options in ({"cache_type_k": "q8_0"}, {"cache_type_v": "q4_0"}, {"cache_type_k": "q5_1", "flash_attn": "off"}):
        with pytest.raises(ConfigError, match=r"^cache_type_. = .* blocks of 32 numbers, the heads of .* have 18"):
            create_engine("llama", str(path), EngineOptions(n_ctx=64, **options))


def test_devices_that_are_not_there(path: Path) -> None:
    with opened(path, devices="none") as engine:
        assert engine.n_ctx == 512
    with pytest.raises(ConfigError, match=r"devices: 'Voodoo2' is not there; use none"):
        create_engine("llama", str(path), EngineOptions(devices="Voodoo2"))


def test_layers_for_a_gpu_that_is_not_there(path: Path) -> None:
    if gpu_devices():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"n_gpu_layers = 7: this llama\.cpp sees no GPU"):
        create_engine("llama", str(path), EngineOptions(n_gpu_layers=7))
    with opened(path, n_gpu_layers=0) as engine:
        assert engine.n_vocab == Tiny().n_vocab


GPU = Device("CUDA0", "a GPU", 1, 2, 3)


@pytest.mark.parametrize(
    ("options", "devices", "wanted"),
    [
        ({}, [], "off"),
        ({"cache_type_v": "q8_0"}, [], "on"),
        ({"flash_attn": "on"}, [], "on"),
        ({}, [GPU], "auto"),
        ({"flash_attn": "off"}, [GPU], "off"),
        ({"devices": "none"}, [GPU], "off"),
        ({"n_gpu_layers": 0}, [GPU], "off"),
        ({"devices": "CUDA0", "n_gpu_layers": 5}, [GPU], "auto"),
    ],
)
def test_flash_attention_where_it_is_worth_it(options: dict[str, Any], devices: list[Device], wanted: str) -> None:
    assert flash_attention(EngineOptions(**options), devices) == wanted


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, None),
        ({"devices": "none"}, []),
        ({"devices": "CUDA0"}, [GPU]),
        ({"devices": "none", "n_gpu_layers": 9}, []),
    ],
)
def test_devices_are_chosen_by_name(options: dict[str, Any], wanted: list[Device] | None) -> None:
    assert chosen_devices(EngineOptions(**options), [GPU]) == wanted


@pytest.mark.parametrize("names", ["cuda0", "CUDA0,CUDA1", "", "CUDA0,none"])
def test_unknown_devices_are_refused_with_the_known_ones(names: str) -> None:
    with pytest.raises(ConfigError, match="is not there; use none, CUDA0"):
        chosen_devices(EngineOptions(devices=names), [GPU])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("llama", {"n_ctx": 3}, "n_ctx = 3 is too small"),
        ("llama", {"n_ctx": 8, "n_rs_seq": 8}, "n_ctx = 8 is too small; at least 12"),
        ("gemma3", {"n_seq": 129, "n_ctx": 64}, "this model can have 128 sequences"),
        ("llama", {"checkpoint_only": True}, "checkpoint_only = True: the llama engine has no such option"),
    ],
)
def test_options_that_do_not_fit_the_model(folder: Path, kind: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_engine("llama", str(tiny_model(folder, kind)), EngineOptions(**options))


def test_native_lines_go_to_the_log(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="outrider.llama"), opened(path):
        pass
    lines = [record.getMessage() for record in caplog.records if record.name == "outrider.llama"]
    assert any(line.startswith("llama_context: n_ctx") for line in lines)
    assert not any("\n" in line for line in lines)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(Tiny())
    del tensors["blk.1.ffn_up.weight"]
    broken = write_tensors(tmp_path / "broken.gguf", Tiny(), tensors)
    with pytest.raises(ModelFileError, match=r"broken\.gguf: .*blk\.1\.ffn_up\.weight"):
        create_engine("llama", str(broken))


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_flat_logits_are_refused(tmp_path: Path, value: float) -> None:
    tensors = random_tensors(Tiny())
    tensors["output.weight"] = np.full_like(tensors["output.weight"], value)
    flat = write_tensors(tmp_path / "flat.gguf", Tiny(), tensors)
    with pytest.raises(ModelFileError, match="its logits are all equal or no numbers"):
        create_engine("llama", str(flat))


def test_files_that_are_no_models(tmp_path: Path, path: Path) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<!doctype html>")
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:9000])
    for name in ("page.gguf", "cut.gguf", "none.gguf", "."):
        with pytest.raises(ModelFileError):
            create_engine("llama", str(tmp_path / name))


def test_opening_and_closing_leaks_nothing(path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for round_ in range(60):
        with opened(path, n_seq=4) as engine:
            extend(engine, TOKENS)
        if round_ == 9:
            before = resident()
    assert resident() - before < 8 << 20
