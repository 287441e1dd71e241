"""The loop of llama.cpp's simple example with real models: greedy target, a chain of speculators, one or more sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.engine.base import Engine, Span
from outrider.speculators.base import DraftParams
from outrider.speculators.chain import Chain
from outrider.speculators.token_array import TokenArray
from tests.golden.model_speculator import Draws, ModelSpeculator


@dataclass
class Round:
    """One sequence in one step. `margins[i]` is the gap between the two best logits where ids[i] was chosen; `draws`
    are the draft model's, each its ten best."""

    step: int
    seq: int
    n_past: int
    id_last: int
    n_max: int
    draft: list[int]
    impl: str
    ids: list[int]
    margins: list[float]
    n_past_after: int
    draws: Draws


@dataclass
class _Sequence:
    seq: int
    history: TokenArray
    id_last: int
    output: list[int] = field(default_factory=list)
    live: bool = True


class ModelLoop:
    def __init__(self, target: Engine, chain: Chain, model: ModelSpeculator, n_ctx: int, n_predict: int) -> None:
        self.target, self.chain, self.model = target, chain, model
        self.n_ctx, self.n_predict = n_ctx, n_predict
        self.rounds: list[Round] = []

    def run(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The output of each sequence, up to its end-of-generation token."""
        sequences = [self._begin(seq, prompt) for seq, prompt in enumerate(prompts)]
        step = 0
        while live := [s for s in sequences if s.live]:
            self._step(step, live)
            step += 1
        return [s.output for s in sequences]

    def _begin(self, seq: int, prompt: Sequence[int]) -> _Sequence:
        sequence = _Sequence(seq, TokenArray(prompt[:-1]), prompt[-1])
        for start in range(0, len(prompt) - 1, self.target.n_batch):
            chunk = prompt[start : min(start + self.target.n_batch, len(prompt) - 1)]
            self.target.decode([Span(seq, start, chunk)])
        self.chain.begin(seq, sequence.history)
        return sequence

    def _budget(self, s: _Sequence) -> int:
        return max(min(self.n_ctx - len(s.history) - 2, self.n_predict - len(s.output) - 1), 0)

    def _step(self, step: int, live: list[_Sequence]) -> None:
        requests = [DraftParams(s.seq, s.id_last, len(s.history), s.history, self._budget(s)) for s in live]
        self.model.draws.clear()
        self.chain.draft(requests)
        for s, request in zip(live, requests, strict=True):
            self._verify(step, s, request)

    def _verify(self, step: int, s: _Sequence, request: DraftParams) -> None:
        draft, n_past = request.result, len(s.history)
        batch = [s.id_last, *draft]
        logits = self.target.decode([Span(s.seq, n_past, batch, len(batch))]).logits
        two_best = np.sort(np.partition(logits, -2, axis=1)[:, -2:], axis=1)
        ids = self._accepted(draft, logits.argmax(axis=1).tolist())
        margins = (two_best[:, 1] - two_best[:, 0])[: len(ids)].tolist()
        self.chain.process(s.seq, n_past, batch)
        self.chain.accept(s.seq, len(ids) - 1)
        impl = (self.chain.last_type(s.seq) or "") if draft else ""
        row = (step, s.seq, n_past, s.id_last, request.n_max, draft, impl, ids, margins, n_past + len(ids))
        self.rounds.append(Round(*row, self.model.draws.get(s.seq, [])))
        s.history.extend([s.id_last, *ids[:-1]])
        s.id_last = ids[-1]
        self.target.truncate(s.seq, len(s.history))
        self._deliver(s, ids)

    def _accepted(self, draft: list[int], samples: list[int]) -> list[int]:
        """The target's samples while they equal the draft. An end token in the middle ends it, though it may match."""
        ids: list[int] = []
        for i, token in enumerate(samples):
            ids.append(token)
            is_inner_end = i + 1 < len(draft) and self.target.tokenizer.is_eog(token)
            if i == len(draft) or token != draft[i] or is_inner_end:
                break
        return ids

    def _deliver(self, s: _Sequence, ids: list[int]) -> None:
        for token in ids:
            s.output.append(token)
            if self.target.tokenizer.is_eog(token):
                s.live = False
                return
        s.live = len(s.output) <= self.n_predict and self.n_ctx - len(s.history) - 2 > 0
