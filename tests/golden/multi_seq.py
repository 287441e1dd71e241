"""Recordings of topic multi_seq: scripted token streams."""

from tests.golden.replay import check

__all__ = ["check"]
