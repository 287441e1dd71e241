"""A flood of one kind of warning is one line, and the next line tells how many there were."""

from __future__ import annotations

import logging

import pytest

from outrider.wire.limited_log import LimitedLog


def test_one_line_per_kind_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="outrider.wire")
    now = 0.0
    log = LimitedLog(interval_s=10.0, clock=lambda: now)
    for now in (0.0, 1.0, 9.9):
        log.warn("a", f"a at {now}")
        log.warn("b", f"b at {now}")
    now = 10.0
    log.warn("a", "a at 10")
    now = 30.0
    log.warn("a", "a at 30")
    assert [record.getMessage() for record in caplog.records] == [
        "a at 0.0",
        "b at 0.0",
        "a at 10 (2 more of these before)",
        "a at 30",
    ]
