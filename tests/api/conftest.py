from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra `server` is not installed")
pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

from tests.api.world import World, serving


@pytest.fixture(scope="module")
def server() -> Iterator[World]:
    """One server for tests that leave it as it was."""
    with serving("-np", "2", "--ctx-size", "512") as world:
        yield world
