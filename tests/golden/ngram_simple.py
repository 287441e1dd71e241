"""Recordings of topic ngram_simple: scripted token streams."""

from tests.golden.replay import check

__all__ = ["check"]
