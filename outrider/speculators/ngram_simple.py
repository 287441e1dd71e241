"""ngram-simple: what followed the newest earlier place where the last tokens stood, as llama.cpp drafts it.

Quirks that belong to it: the draft ends where the text ends, and one shorter than the looked-up n-gram is thrown away
(so a match too near kills the draft instead of giving way to an older one, and a short period never drafts); index 0 is
never matched; min_hits is ignored.
"""

from __future__ import annotations

from outrider.speculators.base import DraftParams, LookupSpeculator
from outrider.speculators.search import find_newest
from outrider.speculators.types import NgramParams


class NgramSimple(LookupSpeculator):
    """Keeps nothing between calls."""

    type = "ngram-simple"

    def __init__(self, params: NgramParams) -> None:
        self.n = params.size_n
        self.n_max = params.size_m

    def propose(self, request: DraftParams) -> list[int]:
        n, length = self.n, len(request.prompt)
        if length <= n + self.n_max + 1:
            return []
        tokens = request.prompt.tokens
        pattern = request.prompt.tail(max(n, 1), request.id_last)
        match = find_newest(tokens, pattern, 1, length - max(n, 0) - 1)
        n_draft = min(self.n_max, length - match - n)
        if match < 1 or n_draft < n:
            return []
        draft: list[int] = tokens[match + n : match + n + n_draft].tolist()
        return draft
