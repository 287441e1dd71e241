"""What a round does: whether a draft is asked for, and how long it may be. Pure.

`lockstep` is llama.cpp's order and the oracle of every other schedule: draft, verify, draft, verify.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.speculators.types import DRAFT_SIMPLE
from outrider.types import DraftSampling


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """The limits of a request's drafts.

    `types` names its speculators; empty means plain decoding, and `off_reason` says why where that needs a reason.
    """

    types: Sequence[str] = ()
    off_reason: str | None = None
    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    draft_sampling: DraftSampling = "greedy"
    synth_rates: Sequence[float] = ()  # not empty: the text is INVALID, drafts are accepted at random

    @property
    def uses_draft(self) -> bool:
        """May the draft worker be asked at all?"""
        return DRAFT_SIMPLE in self.types and self.n_max > 0


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """`n_max` tokens are asked of the draft worker; 0 means that the target decodes alone."""

    n_max: int


class Schedule(Protocol):
    name: str

    def plan(self, settings: SpeculationSettings, budget: int) -> RoundPlan:
        """The next round, where at most `budget` tokens can be drafted."""
        ...


class Lockstep:
    """One side works, the other waits."""

    name = "lockstep"

    def plan(self, settings: SpeculationSettings, budget: int) -> RoundPlan:
        n_max = min(settings.n_max, budget)
        # A draft that must turn out too short is not worth its time.
        return RoundPlan(n_max if n_max >= settings.n_min else 0)
