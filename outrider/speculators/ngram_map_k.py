"""ngram-map-k: drafts what followed the found place of the last n tokens. min_hits is ignored, as in llama.cpp."""

from __future__ import annotations

from outrider.speculators.ngram_map import Key, NgramMap
from outrider.speculators.search import Tokens


class NgramMapK(NgramMap):
    type = "ngram-map-k"

    def _choose(self, key: Key, tokens: Tokens, key_tokens: Tokens, match: int) -> int | None:
        return 0
