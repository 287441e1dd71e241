"""`inspect`, `doctor` and `keys`: files are read in a process of its own, whatever they do to it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from coordinator import cli
from coordinator.commands import reading
from outrider.errors import EngineError, ModelFileError
from tests.gguf_bytes import ARCH, gguf, key
from tests.tiny_gguf import Tiny, write_random

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_random(path, Tiny(), seed=1)
    return path


def findings(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code = cli.main(["doctor", "--json", *argv])
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] == (code == 0)
    return code, {finding["check"]: finding for finding in answer["findings"]}


# --- inspect ------------------------------------------------------------------------------------------------------


def test_inspect_tells_what_a_model_is(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(model), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["architecture"], facts["n_layers"], facts["n_embd"], facts["n_vocab"]) == ("llama", 2, 50, 325)
    assert facts["kv_values"] == 2 * 2 * 2 * 18  # keys and values, layers, heads, their width
    assert facts["speculates"] == ["draft-simple"]
    assert facts["numpy"] == facts["llama"] == ""
    assert cli.main(["inspect", str(model)]) == 0
    assert "architecture llama" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "is empty"), (b"<html>", "HTML"), (b"\0" * 64, "zero bytes"), (gguf(n_keys=2**63), "key count")],
    ids=["empty", "html", "zeros", "count"],
)
def test_inspect_of_a_bad_file_is_one_line(
    data: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    assert cli.main(["inspect", str(path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert str(path) in err
    assert err.count("\n") == 1


def test_what_an_engine_would_refuse_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mamba.gguf"
    path.write_bytes(gguf([key(ARCH, "string", "mamba"), key("mamba.block_count", "uint32", 1)]))
    assert cli.main(["inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "'mamba' is not one of" in facts["numpy"]
    assert facts["kv_values"] is None
    assert facts["speculates"] == []


# --- the process that reads ---------------------------------------------------------------------------------------


def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setattr(reading.sys, "executable", str(path))


def test_a_reader_that_aborts_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter(tmp_path, monkeypatch, "echo GGML_ASSERT failed >&2; kill -ABRT $$")
    with pytest.raises(ModelFileError, match=r"x\.gguf: .* killed by SIGABRT: GGML_ASSERT failed"):
        reading.read_files(["x.gguf"])
    with pytest.raises(EngineError, match="llama"):
        reading.load_llama()


def test_a_reader_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter(tmp_path, monkeypatch, "exec sleep 600")
    with pytest.raises(ModelFileError, match=r"took more than 0\.2 s"):
        reading.read_files(["x.gguf"], timeout_s=0.2)


def test_inspect_survives_an_abort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interpreter(tmp_path, monkeypatch, "kill -SEGV $$")
    assert cli.main(["inspect", "x.gguf"]) == 3
    assert "SIGSEGV" in capsys.readouterr().err


# --- doctor -------------------------------------------------------------------------------------------------------


def test_a_healthy_pair(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(capsys, "-m", str(model), "-md", str(model), "--engine", "numpy", "-c", "256")
    assert code == 0
    assert found["speculation"]["text"] == "on: ngram-suffix, draft-simple, schedule auto"
    assert found["vocabulary"]["level"] == "ok"
    assert found["target context"]["text"] == "256 positions, the model was trained for 512"
    assert {"target engine", "target model", "draft model", "memory", "processors", "libzmq"} <= found.keys()


def test_each_of_two_hosts_looks_at_its_own_worker(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, elsewhere = str(model), "/only/on/the/other/host.gguf"
    code, found = findings(capsys, "-m", elsewhere, "-md", here, "--engine", "numpy", "-c", "256", "--role", "draft")
    assert code == 0
    assert {"draft engine", "draft model"} <= found.keys()
    assert found["target"]["text"] == "starts on its own host: not checked here"
    code, found = findings(capsys, "-m", elsewhere, "-md", here, "--engine", "numpy", "-c", "256", "--role", "target")
    assert code == 1
    assert elsewhere in found["target model"]["text"]
    assert found["draft"]["text"] == "starts on its own host: not checked here"


def test_a_draft_of_another_vocabulary(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.gguf"
    write_random(other, Tiny(n_vocab=325 + 129), seed=1)
    code, found = findings(capsys, "-m", str(model), "-md", str(other), "--engine", "numpy", "-c", "256")
    assert code == 1
    assert "vocabulary check 'size' failed: target has 325 tokens" in found["vocabulary"]["text"]


@pytest.mark.parametrize(("make", "words"), [(False, "No such file"), (True, "no GGUF file")])
def test_a_draft_that_cannot_be_read(
    make: bool, words: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tmp_path / "draft.gguf"
    if make:
        draft.write_text("just a text")
    code, found = findings(capsys, "-m", str(model), "-md", str(draft), "--engine", "numpy", "-c", "256")
    assert code == 1
    assert words in found["draft model"]["text"]
    assert str(draft) in found["draft model"]["text"]
    assert found["target model"]["level"] == "ok"


def test_up_check_starts_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[target]\nmodel = "{model}"\nengine = "numpy"\nctx_size = 9999\n')
    assert cli.main(["up", str(config), "--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("fail ")] == [
        "fail  target context  9999 positions, the model was trained for 512: give -c 512 or less"
    ]


# --- keys ---------------------------------------------------------------------------------------------------------


def test_keys_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert cli.main(["keys", str(folder), "coordinator", "draft"]) == 0
    made = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert len(made) == 4
    assert all(path.parent == folder for path in made)
    secret = folder / "draft.key_secret"
    assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600
    assert cli.main(["keys", str(folder), "draft"]) == 2
    assert "exists already" in capsys.readouterr().err
