"""draft-simple as a member of a chain in one process, over the parts that the draft worker is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.engine.base import Engine
from outrider.engine.cached import CachedSequence
from outrider.speculators.base import DraftParams, Speculator
from outrider.speculators.model import Drafting, missing, step

Draws = list[list[tuple[int, float]]]


@dataclass
class _Drafted:
    cache: CachedSequence
    drafting: Drafting | None = None
    draws: Draws = field(default_factory=list)


class ModelSpeculator(Speculator):
    """`engine` holds the draft model, with a sequence for each of the chain's. `draws[seq]`: of its last draft."""

    type = "draft-simple"

    def __init__(self, engine: Engine, *, n_max: int = 3, n_min: int = 0, p_min: float = 0.0) -> None:
        self.engine = engine
        self.n_max, self.n_min, self.p_min = n_max, n_min, p_min
        self._sequences = [_Drafted(CachedSequence(engine, seq)) for seq in range(engine.n_seq)]
        self.draws: dict[int, Draws] = {}

    def process(self, seq: int, first_pos: int, tokens: Sequence[int], rows: object = None) -> None:
        """The rows come with the next draft, in front of it."""

    def draft(self, requests: Sequence[DraftParams]) -> None:
        wanted = [self._prepare(request) for request in requests]
        while any(missing(sequence) for sequence in wanted):
            step(self.engine, wanted, self.engine.n_batch)
        for request, sequence in zip(requests, wanted, strict=True):
            assert sequence.drafting is not None
            request.result.extend(sequence.drafting.tokens)
            self.draws[request.seq] = [list(zip(ids, probs, strict=True)) for ids, probs in sequence.drafting.draws]
            sequence.drafting = None

    def _prepare(self, request: DraftParams) -> _Drafted:
        sequence = self._sequences[request.seq]
        text = request.prompt
        sequence.cache.commit([*text.tokens[text.n_corpus :].tolist(), request.id_last], 0)
        sequence.cache.rewind()
        n_max = min(self.n_max, request.n_max) if request.n_max > 0 else self.n_max
        sequence.drafting = Drafting(n_max, self.n_min, self.p_min)
        return sequence
