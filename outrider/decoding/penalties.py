"""Repeat, frequency and presence penalties over the last tokens of the text.

Formulas and window as llama.cpp's `penalties` sampler: the window holds the last `repeat_last_n` tokens before the
position being sampled, prompt included; each distinct token in it is penalised once, in float32:

    logit <= 0: logit * repeat_penalty, else logit / repeat_penalty
    then        logit - (count * frequency_penalty + presence_penalty)
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from outrider.types import SamplingParams


class Window:
    """How often each token occurs among the last `size` tokens of a growing text; `size` < 0: among all of them.

    A local helper of one verification: made from the committed text, then pushed token by token, so that a row costs
    its new token and not the whole window. Equal to counting afresh at every row.
    """

    def __init__(self, history: Sequence[int], size: int) -> None:
        self._size = size
        self._tokens = [] if size == 0 else list(history if size < 0 else history[-size:])
        self._oldest = 0  # index in _tokens of the first token that still counts
        self.counts = Counter(self._tokens)

    def push(self, token: int) -> None:
        """The text grew by `token`."""
        if self._size == 0:
            return
        self._tokens.append(token)
        self.counts[token] += 1
        if len(self._tokens) - self._oldest > self._size > 0:
            self._drop(self._tokens[self._oldest])
            self._oldest += 1

    def _drop(self, token: int) -> None:
        self.counts[token] -= 1
        if not self.counts[token]:
            del self.counts[token]


#: The window of size 0, which never changes.
NOTHING = Window((), 0)


def window_size(params: SamplingParams) -> int:
    """Tokens that the penalties look back on: 0 = none (they are off), -1 = the whole text."""
    neutral = params.repeat_penalty == 1 and params.frequency_penalty == 0 and params.presence_penalty == 0
    return 0 if neutral else params.repeat_last_n


def apply_penalties(logits: NDArray[np.float32], counts: Counter[int], params: SamplingParams) -> None:
    """Penalise the tokens of `counts` in place. logits: float32 [n_vocab]. Ids beyond the vocabulary are skipped:
    a prompt may hold them where the logits row is narrower than the table of texts."""
    ids = np.fromiter(counts.keys(), np.int64, len(counts))
    occurrences = np.fromiter(counts.values(), np.float32, len(counts))
    known = ids < len(logits)
    ids, occurrences = ids[known], occurrences[known]
    old = logits[ids]
    repeat = np.float32(params.repeat_penalty)
    scaled = np.where(old <= 0, old * repeat, old / repeat)
    logits[ids] = scaled - (occurrences * np.float32(params.frequency_penalty) + np.float32(params.presence_penalty))
