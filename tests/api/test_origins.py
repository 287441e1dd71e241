"""Whose pages may read answers."""

from __future__ import annotations

import pytest

from coordinator.api.app import is_allowed


@pytest.mark.parametrize("origin", ["http://localhost", "http://127.0.0.1:3000", "https://[::1]:3000"])
def test_localhost_is_this_machine_on_any_port(origin: str) -> None:
    assert is_allowed(origin, ["localhost"])


@pytest.mark.parametrize("origin", ["http://evil.com", "http://notlocalhost", "http://localhost.evil.com", "null"])
def test_and_nothing_else(origin: str) -> None:
    assert not is_allowed(origin, ["localhost"])
    assert not is_allowed(origin, [])
    assert is_allowed(origin, ["*"])
