"""From a row of logits to a token: a pure function of settings, row, history and position.

Order as in llama.cpp's default chain: [mask of a grammar,] logit bias, penalties, top_k, typical_p, top_p, min_p,
temperature; formulas in `penalties.py` and `truncation.py`. The draw is Gumbel's (`noise.py`) instead of llama.cpp's
generator, so probabilities are the same and tokens differ. Nothing is remembered between calls: whoever asks for the
same position of the same text gets the same token, however often, in whatever batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outrider.decoding.noise import gumbel_noise
from outrider.decoding.penalties import NOTHING, Window, apply_penalties, window_size
from outrider.decoding.truncation import above, min_p_floor, nucleus, softmax, top, top_p_len, typical
from outrider.errors import EngineError, RequestError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from outrider.decoding.truncation import Ids, Logits, Probs
    from outrider.types import SamplingParams

    TopProbs = list[tuple[int, float]]  # token, probability
    Mask = NDArray[np.bool_]  # [n_vocab], True = allowed


class Sampler:
    """The settings of one session, prepared once; immutable.

    params: checked by its own bounds. choice: which of several answers to one prompt. eog_tokens: ids that end a text.
    never: ids that the model forbids. Raises RequestError where a logit bias names a token that the vocabulary lacks.
    """

    __slots__ = ("_argmax", "_bias_ids", "_biases", "_choice", "_eog", "_eog_ids", "_greedy", "_window_size", "params")

    def __init__(
        self,
        params: SamplingParams,
        choice: int,
        n_vocab: int,
        eog_tokens: Collection[int],
        never: Collection[int] = (),
    ) -> None:
        for bias in params.logit_bias:
            if bias.token >= n_vocab:
                raise RequestError(f"logit_bias: token {bias.token} is not in the vocabulary (n_vocab = {n_vocab})")
        self.params = params
        self._choice = choice
        self._eog = frozenset(eog_tokens)
        self._eog_ids = np.array(sorted(self._eog), np.int64)
        biases = [(bias.token, bias.bias) for bias in params.logit_bias] + [(token, -np.inf) for token in never]
        self._bias_ids = np.array([token for token, _ in biases], np.int64)
        self._biases = np.array([bias for _, bias in biases], np.float32)
        self._window_size = window_size(params)
        self._greedy = params.temp <= 0
        # typical_p alone of the truncations may drop the best token.
        self._argmax = self._greedy and params.typical_p >= 1 and not biases

    def is_eog(self, token: int) -> bool:
        """Does this token end a text?"""
        return token in self._eog

    @property
    def reads_text(self) -> bool:
        """Does a sample depend on the tokens before it, other than by their number?"""
        return self._window_size != 0

    def window(self, history: Sequence[int]) -> Window:
        """The tokens of `history` that the penalties count."""
        return Window(history, self._window_size) if self._window_size else NOTHING

    def sample(self, row: Logits, history: Sequence[int], n_generated: int, mask: Mask | None = None) -> int:
        """The token at position `len(history)`.

        row: float32 [n_vocab], unchanged; history: all tokens before that position, prompt included; n_generated: how
        many of them were generated; mask: allowed tokens. Ties in greedy mode go to the lowest id.
        Raises EngineError for a row with nan or +inf, or where no candidate is left.
        """
        return self.pick(row, self.window(history).counts, len(history), n_generated, mask)

    def pick(self, row: Logits, counts: Counter[int], position: int, n_generated: int, mask: Mask | None = None) -> int:
        """`sample` for a caller that keeps the counts of the penalties' window itself."""
        if self._argmax and mask is None and not counts:
            token = _best_token(row, position)
            if token not in self._eog or not self._forbids_eog(n_generated):
                return token  # no copy of the row
        row = self._adjusted(row, counts, position, n_generated, mask)
        if self._greedy and self.params.typical_p >= 1:
            return _best_token(row, position)
        best = row[_best_token(row, position)]
        ids, logits = self._survivors(row, best)
        if self._greedy:
            return int(ids[logits.argmax()])
        noise = gumbel_noise(self.params.seed, self._choice, position, ids)
        return int(ids[np.argmax(self._scaled(logits) + noise)])

    def candidates(
        self, row: Logits, history: Sequence[int], n_generated: int, mask: Mask | None = None
    ) -> tuple[Ids, Probs]:
        """What `sample` draws from: surviving token ids, sorted, and their probabilities. For temp > 0."""
        row = self._adjusted(row, self.window(history).counts, len(history), n_generated, mask)
        best = row[_best_token(row, len(history))]
        ids, logits = self._survivors(row, best)
        order = np.argsort(-logits, kind="stable")
        powers = np.exp(self._scaled(logits[order]))
        return ids[order], powers / powers.sum()

    def drawn_from(self, row: Logits, history: Sequence[int], n_generated: int, mask: Mask | None = None) -> TopProbs:
        """The tokens that `sample` may give and their probabilities, most probable first; greedy has one."""
        if self._greedy:
            return [(self.sample(row, history, n_generated, mask), 1.0)]
        ids, probs = self.candidates(row, history, n_generated, mask)
        return [(token, p) for token, p in zip(ids.tolist(), probs.tolist(), strict=True) if p > 0.0]

    def _adjusted(
        self, row: Logits, counts: Counter[int], position: int, n_generated: int, mask: Mask | None
    ) -> Logits:
        """The row after mask, end-of-generation rules, bias and penalties; a copy if anything is to change."""
        no_eog = self._forbids_eog(n_generated)
        if mask is None and not no_eog and not counts and not len(self._bias_ids):
            return row
        _best_token(row, position)  # a nan must not hide behind a mask
        row = row.copy()
        if mask is not None:
            np.copyto(row, np.float32(-np.inf), where=~mask)
        if no_eog:
            row[self._eog_ids] = -np.inf
        np.add.at(row, self._bias_ids, self._biases)  # a token named twice gets both
        if counts:
            apply_penalties(row, counts, self.params)
        return row

    def _forbids_eog(self, n_generated: int) -> bool:
        return self.params.ignore_eos or n_generated < self.params.min_tokens

    def _survivors(self, row: Logits, best: np.float32) -> tuple[Ids, Logits]:
        """Candidates after top_k, typical_p, top_p and min_p: ids and their adjusted logits, at least one."""
        params = self.params
        if params.top_k > 0 or params.typical_p < 1:
            ids, logits = top(row, params.top_k or len(row))
            if params.typical_p < 1:
                ids, logits = typical(ids, logits, params.typical_p)
            if params.top_p < 1:
                n_kept = top_p_len(softmax(logits), params.top_p)
                ids, logits = ids[:n_kept], logits[:n_kept]
        elif params.top_p < 1:
            ids, logits = nucleus(row, params.top_p)
        else:
            return above(row, min_p_floor(best, params.min_p) if params.min_p > 0 else np.float32(-np.inf))
        if params.min_p > 0:
            kept = logits >= min_p_floor(logits.max(), params.min_p)
            ids, logits = ids[kept], logits[kept]
        return ids, logits

    def _scaled(self, logits: Logits) -> NDArray[np.float64]:
        """(logits - best) / temperature, in float64; the best is 0, so that no temperature is too low."""
        with np.errstate(over="ignore"):
            scaled: NDArray[np.float64] = (logits.astype(np.float64) - float(logits.max())) / self.params.temp
        return scaled


def _best_token(row: Logits, position: int) -> int:
    """Id of the largest logit, the lowest of equals. argmax stops at a nan, so its value tells the whole row."""
    token = int(row.argmax())
    best = row.item(token)
    if -math.inf < best < math.inf:
        return token
    if best == -math.inf:
        raise EngineError(
            f"position {position}: no candidate token is left; all have the logit -inf or are excluded "
            "(grammar, ignore_eos, min_tokens)"
        )
    raise EngineError(f"position {position}: the logits hold {best}; the model file or its computation is faulty")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the target's own probabilities at one position, before bias, penalties and temperature.

    logprob: of the committed token; top: the best (token, logprob) pairs, best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(row: Logits, token: int, n_top: int) -> TokenLogprobs:
    """Log-probabilities of `token` and of the `n_top` ≥ 0 best tokens. row: float32 [n_vocab], no nan, no +inf."""
    best = row.max()
    log_total = float(best) + float(np.log(np.exp(row - best).sum(dtype=np.float64)))
    ids, logits = top(row, n_top) if n_top else above(row, np.float32(np.inf))
    pairs = zip(ids.tolist(), logits.tolist(), strict=True)
    return TokenLogprobs(float(row[token]) - log_total, tuple((i, logit - log_total) for i, logit in pairs))
