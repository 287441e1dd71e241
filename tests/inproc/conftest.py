"""Fixtures of tests that run both ends in one process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire_harness import nothing_left


@pytest.fixture
def no_leaks(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The test fails if it leaves a thread, a descriptor or a private folder behind."""
    tmp_path_factory.getbasetemp()  # pytest's own folder is not to lie in ours
    # A temporary folder of its own, at a path that is short enough for sockets; pytest's are not.
    with tempfile.TemporaryDirectory(prefix="ow-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with nothing_left():
            yield
        assert not list(Path(folder).iterdir())
        monkeypatch.undo()


@pytest.fixture
def socket_folder(no_leaks: None) -> Iterator[Path]:
    """A private folder for sockets that a test names itself."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)
