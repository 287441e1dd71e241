"""Recordings of topic ngram_map_k4v: scripted token streams."""

from tests.golden.replay import check

__all__ = ["check"]
