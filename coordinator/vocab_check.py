"""Are the two vocabularies the same? Facts first, then hashes of blocks, then the texts of the blocks that differ.

The texts are asked of the workers: the coordinator opens no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.vocab import block_ids, check_facts, compare_texts, differing_blocks
from outrider.errors import VocabMismatchError
from outrider.types import ModelFacts, WorkerRole
from outrider.wire.messages import VocabBlock


class VocabCheck:
    """The state of one comparison. A worker that comes anew starts it anew (`forget`)."""

    def __init__(self) -> None:
        self._texts: dict[tuple[WorkerRole, int], Sequence[bytes]] = {}
        self._asked: set[tuple[WorkerRole, int]] = set()

    def forget(self, role: WorkerRole) -> None:
        self._texts = {key: texts for key, texts in self._texts.items() if key[0] != role}
        self._asked = {key for key in self._asked if key[0] != role}

    def took(self, role: WorkerRole, block: VocabBlock) -> None:
        """A worker sent the texts of a block."""
        self._texts[role, block.block] = block.texts

    def wanted(self, target: ModelFacts, draft: ModelFacts) -> list[tuple[WorkerRole, int]] | None:
        """Blocks to ask for next (none while those asked for are on their way); None: the vocabularies are compatible.

        Raises VocabMismatchError naming the check that failed and both values.
        """
        failed = check_facts(target.vocab, draft.vocab)
        for block in [] if failed else differing_blocks(target.vocab, draft.vocab):
            pair: list[tuple[WorkerRole, int]] = [("target", block), ("draft", block)]
            if not self._texts.keys() >= set(pair):
                new = [key for key in pair if key not in self._asked]
                self._asked.update(new)
                return new
            ours, theirs = (self._texts[key] for key in pair)
            failed = compare_texts(block_ids(target.vocab, block).start, ours, theirs)
            if failed:
                break
        if failed:
            raise VocabMismatchError(failed.message)
        return None
