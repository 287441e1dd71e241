"""Options of engines, the choice of one, the native log and the metadata check: all that needs no native library."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from outrider.engine import factory
from outrider.engine.factory import create_engine, resolve_kind
from outrider.engine.gguf_header import Header, TensorInfo
from outrider.engine.llama_check import check_metadata, short_rope_limit
from outrider.engine.llama_log import NativeLog
from outrider.engine.options import EngineOptions
from outrider.engine.scripted import ScriptedEngine
from outrider.errors import ConfigError, ModelFileError

OUT_OF_RANGE = {
    "n_ctx": (-1, 2**20 + 1),
    "n_batch": (0, 2**31),
    "n_ubatch": (0, -5),
    "n_seq": (0, 257),
    "n_threads": (0, 100_000),
    "n_threads_batch": (-1,),
    "n_gpu_layers": (-1, 2**31),
    "n_rs_seq": (-1, 2**32),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]
)
def test_numbers_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} = {value} is not in \d+\.\.\d+$"):
        EngineOptions(**{name: value})


@pytest.mark.parametrize("name", ["cache_type_k", "cache_type_v"])
def test_unknown_cache_types_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} = 'q3' is unknown; use one of f32, f16, bf16, q8_0, q4_0, q4_1"):
        EngineOptions(**{name: "q3"})


def test_unknown_flash_attention() -> None:
    with pytest.raises(ConfigError, match="flash_attn = 'yes' is unknown; use one of auto, off, on"):
        EngineOptions(flash_attn="yes")


def test_quantised_values_need_flash_attention() -> None:
    with pytest.raises(ConfigError, match="cache_type_v = 'q8_0' needs flash attention"):
        EngineOptions(cache_type_v="q8_0", flash_attn="off")
    EngineOptions(cache_type_k="q8_0", flash_attn="off")
    EngineOptions(cache_type_v="q8_0")


@pytest.mark.parametrize("kind", ["numpy", "scripted", "simulated"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_gpu_layers", 3),
        ("n_gpu_layers", 0),
        ("devices", "none"),
        ("cache_type_k", "q8_0"),
        ("cache_type_v", "f32"),
        ("flash_attn", "on"),
        ("mlock", True),
        ("use_mmap", False),
        ("n_ubatch", 64),
        ("n_threads_batch", 2),
        ("n_rs_seq", 4),
    ],
)
def test_options_that_an_engine_lacks_are_refused(kind: str, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = {value!r}: the {kind} engine has no such option"):
        create_engine(kind, "scripted:", EngineOptions(**{name: value}))  # type: ignore[arg-type]


def test_the_scripted_engine_takes_what_it_has() -> None:
    engine = create_engine("scripted", "scripted:seed=1", EngineOptions(n_ctx=99, n_batch=7, n_seq=3))
    assert isinstance(engine, ScriptedEngine)
    assert (engine.n_ctx, engine.n_batch, engine.n_seq) == (99, 7, 3)


def test_unknown_engine() -> None:
    with pytest.raises(ConfigError, match="engine 'torch' is unknown; use one of auto, llama, numpy, scripted"):
        create_engine("torch", "model.gguf")  # type: ignore[arg-type]


@pytest.mark.parametrize(("version", "kind"), [("0.3.36", "llama"), (None, "numpy")])
def test_auto_is_llama_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, version: str | None, kind: str) -> None:
    monkeypatch.setattr(factory, "llama_version", lambda: version)
    assert resolve_kind("auto") == kind
    assert resolve_kind("numpy") == "numpy"


def test_llama_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'outrider\[llama\]'"):
        create_engine("llama", "model.gguf")


def test_llama_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "llama_version", lambda: "0.3.36")
    monkeypatch.setitem(sys.modules, "outrider.engine.llama_engine", None)
    with pytest.raises(ConfigError, match="llama-cpp-python cannot be loaded"):
        create_engine("llama", "model.gguf")


def test_the_factory_loads_no_engine() -> None:
    code = "import sys, outrider.engine.factory as f; f.llama_version(); assert not {'llama_cpp', 'gguf'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> NativeLog:
    caplog.set_level(logging.DEBUG, logger="test.native")
    return NativeLog(logging.getLogger("test.native"))


def test_fragments_become_lines(log: NativeLog, caplog: pytest.LogCaptureFixture) -> None:
    log.feed(2, "one\ntwo ")
    log.feed(5, "goes")
    log.feed(5, " on\n")
    log.feed(2, "....\n")
    log.feed(3, "careful\n")
    log.feed(2, "no line end")
    log.feed(4, "wrong\n")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.DEBUG, "one"),
        (logging.DEBUG, "two goes on"),
        (logging.WARNING, "careful"),
        (logging.DEBUG, "no line end"),
        (logging.ERROR, "wrong"),
    ]


def test_the_first_error_is_the_cause(log: NativeLog) -> None:
    assert log.cause() == "llama.cpp gave no reason"
    log.feed(4, "of long ago\n")
    log.forget()
    log.feed(2, "loading\n")
    assert log.cause() == "loading"
    log.feed(4, "tensor x is missing\n")
    log.feed(4, "failed to load model\n")
    assert log.cause() == "tensor x is missing"


def test_the_log_is_bounded(log: NativeLog) -> None:
    log.feed(4, "error\n")
    for i in range(1000):
        log.feed(2, f"line {i}\n")
    assert log.cause() == "line 999"


def header(*blocks: int, **changes: object) -> Header:
    metadata = {"general.architecture": "llama", "llama.block_count": 2}
    metadata |= {name if "." in name else f"llama.{name}": value for name, value in changes.items()}
    names = [f"blk.{i}.attn_q.weight" for i in blocks or (0, 1)]
    tensors = {name: TensorInfo(name, (1,), 0, "F32", 4, 0) for name in ["token_embd.weight", *names]}
    return Header(Path("m.gguf"), 3, 0, {k: v for k, v in metadata.items() if v is not None}, {}, tensors)


GOOD = [
    header(),
    header(0, **{"split.count": 3}),
    header(**{"llama.expert_count": 8, "llama.expert_used_count": [2, 4]}),
    header(
        **{
            "llama.expert_count": 8,
            "llama.expert_used_count": 2,
            "llama.expert_group_count": 4,
            "llama.expert_group_used_count": 1,
        }
    ),
    header(**{"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.attention.sliding_window": 4096}),
    header(**{"llama.block_count": None}),
]
BAD = {
    "block_count is 0, not in 1..512": header(**{"llama.block_count": 0}),
    "block_count is 2147483647, not in 1..512": header(**{"llama.block_count": 2**31 - 1}),
    "block_count is '2', not a whole number": header(**{"llama.block_count": "2"}),
    "block_count is 2, but there are tensors of block 2": header(0, 1, 2),
    "block_count is 3, but there is no tensor of block 1": header(0, 2, **{"llama.block_count": 3}),
    "nextn_predict_layers is 3, not in 0..2": header(**{"llama.nextn_predict_layers": 3}),
    "expert_count is 4096, not in 0..1024": header(**{"llama.expert_count": 4096}),
    "expert_used_count is 9, not in 1..8": header(**{"llama.expert_count": 8, "llama.expert_used_count": [2, 9]}),
    "expert_used_count is 0, not in 1..8": header(**{"llama.expert_count": 8}),
    "expert_used_count is 2, not in 0..0": header(**{"llama.expert_used_count": 2}),
    "expert_group_count is 8, not in 0..7": header(
        **{"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 8}
    ),
    "expert_count is 8, no multiple of llama.expert_group_count": header(
        **{"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 3}
    ),
    "expert_group_used_count is 0, not in 1..3": header(
        **{"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 4}
    ),
    "general.architecture is missing": header(**{"general.architecture": None}),
    "rope.scaling.type is 'su', not one of none": header(**{"llama.rope.scaling.type": "su"}),
    "layer_norm_rms_epsilon is -1.0": header(**{"llama.attention.layer_norm_rms_epsilon": -1.0}),
    "layer_norm_epsilon is nan": header(**{"llama.attention.layer_norm_epsilon": float("nan")}),
    "sliding_window is 2147483647, not in 0": header(**{"llama.attention.sliding_window": 2**31 - 1}),
}


@pytest.mark.parametrize("good", GOOD)
def test_metadata_that_llama_cpp_loads(good: Header) -> None:
    check_metadata(good)


@pytest.mark.parametrize("message", BAD)
def test_metadata_on_which_llama_cpp_aborts(message: str) -> None:
    with pytest.raises(ModelFileError, match=r"^m\.gguf: ") as refused:
        check_metadata(BAD[message])
    assert message in str(refused.value)


def test_where_long_contexts_have_factors_of_their_own() -> None:
    header = SimpleNamespace(tensors={}, metadata={"general.architecture": "phi3"})
    assert short_rope_limit(header, 131072) == 0  # type: ignore[arg-type]
    header.tensors["rope_factors_long.weight"] = None
    assert short_rope_limit(header, 131072) == 131072  # type: ignore[arg-type]
    header.metadata["phi3.rope.scaling.original_context_length"] = 4096
    assert short_rope_limit(header, 131072) == 4096  # type: ignore[arg-type]
