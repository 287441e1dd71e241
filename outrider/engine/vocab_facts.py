"""What a vocabulary is compared by, computed in one way for every engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

from outrider.types import VOCAB_BLOCK_FIRST, VOCAB_BLOCK_SIZE, VocabFacts

VocabType: TypeAlias = Literal["spm", "bpe", "wpm", "ugm", "rwkv", "plamo2", "none"]


def vocab_facts(
    *, type: VocabType, add_bos: bool, bos: int, add_eos: bool, eos: int, texts: Sequence[bytes]
) -> VocabFacts:
    """Facts of a vocabulary with the raw token texts `texts`, one per id, none with a NUL byte.

    bos, eos: -1 where there is no such token.
    """
    return VocabFacts(
        type=type,
        n_vocab=len(texts),
        add_bos=add_bos,
        bos=bos,
        add_eos=add_eos,
        eos=eos,
        block_hashes=[
            block_hash(texts[first : first + VOCAB_BLOCK_SIZE])
            for first in range(VOCAB_BLOCK_FIRST, len(texts), VOCAB_BLOCK_SIZE)
        ],
    )


def block_hash(texts: Sequence[bytes]) -> int:
    """64-bit BLAKE2b of the texts, each behind its length (4 bytes, little-endian)."""
    joined = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")
