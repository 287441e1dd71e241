"""A model file that cannot be used ends `run` with one line and exit code 3, whichever worker reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gguf_bytes import ARCH, gguf, key, tensor
from tests.process.cli import Cli
from tests.tiny_gguf import Tiny, write_random

FILES = {
    "nothing": None,
    "folder": "folder",
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "keys": gguf(n_keys=2**63 - 1),
    "architecture": gguf([key(ARCH, "string", "zzz")], [tensor("t", [4])], bytes(64)),
    "cut": "cut",
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "good.gguf"
    write_random(path, Tiny(), seed=1)
    return path


def make(folder: Path, what: bytes | str | None, good: Path) -> Path:
    path = folder / "model.gguf"
    if what == "folder":
        path.mkdir()
    elif what == "cut":
        data = good.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    elif isinstance(what, bytes):
        path.write_bytes(what)
    return path


# Each start of two workers takes a second: here one file of each kind, all others in the tests of the header.
@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("nothing", "draft"),
        ("folder", "target"),
        ("html", "draft"),
        ("keys", "target"),
        ("architecture", "draft"),
        ("cut", "target"),
    ],
)
def test_one_line_and_exit_code_3(cli: Cli, tmp_path: Path, good: Path, name: str, role: str) -> None:
    bad = make(tmp_path, FILES[name], good)
    models = (bad, good) if role == "target" else (good, bad)
    flags = ["--engine", "numpy", "-m", str(models[0]), "-md", str(models[1]), "-p", "x", "-n", "1", "-c", "64"]
    done = cli.run("run", *flags, timeout_s=15)
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"outrider: error: {bad}")
    assert done.stdout == ""
