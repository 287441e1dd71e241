"""Every test here gets a `cli`, and must leave no process and no file behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.process.cli import Cli, poll_for


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.process)
            if sys.platform != "linux":
                item.add_marker(pytest.mark.skip(reason="looks at processes through /proc, which only Linux has"))


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    folder = tmp_path / "t"
    folder.mkdir()
    cli = Cli(folder, uuid4().hex)
    yield cli
    poll_for(lambda: not cli.processes(), 3.0)
    assert list(folder.iterdir()) == []
