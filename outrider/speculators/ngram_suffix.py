from __future__ import annotations
from outrider.speculators.base import DraftParams, LookupSpeculator
from outrider.speculators.types import NgramSuffixParams


class NgramSuffix(LookupSpeculator):
    type = "ngram-suffix"

    def __init__(self, params: NgramSuffixParams, n_seq: int = 1) -> None:
        self.n_max = params.n_max

    def propose(self, request: DraftParams) -> list[int]:
        return []
