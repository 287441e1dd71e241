"""Recordings of topic chained: scripted token streams."""

from tests.golden.replay import check

__all__ = ["check"]
