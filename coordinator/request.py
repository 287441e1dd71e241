"""What a session is started with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.schedule import SpeculationSettings
from coordinator.text import TextStream
from outrider.types import Grammar, SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for, with everything resolved. `prompt` is not empty and shorter than the target's n_ctx."""

    session: int
    prompt: Sequence[int]
    sampling: SamplingParams
    n_predict: int  # -1: until the text ends or the context is full
    prediction: Sequence[int] = ()  # what the answer may repeat in parts: searched by speculators without a model
    stops: Sequence[str] = ()
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    choice: int = 0
    row_hashes: bool = False
    cache_prompt: bool = True  # rows of an earlier request may serve this one
    grammar: Grammar | None = None
    report_progress: bool = False  # Emit how far the prompt is read
    report_probs: bool = False  # the draft tells how probable it found its tokens, also where no schedule reads that
    text_goes_on: bool = False  # a full context is not the end of the text (`coordinator/shift.py`)
    text: TextStream | None = None  # what it goes on with
