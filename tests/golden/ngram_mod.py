"""Recordings of topic ngram_mod: scripted token streams."""

from tests.golden.replay import check

__all__ = ["check"]
