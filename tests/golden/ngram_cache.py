"""Recordings of topic ngram_cache: scripted token streams."""

from tests.golden.replay import check

__all__ = ["check"]
