"""Do the vocabularies of two files fit together? Answered from the files alone."""

from __future__ import annotations

import msgspec

from outrider.decoding.vocab import find_mismatch
from outrider.engine.gguf_file import open_gguf
from outrider.engine.tokenizer import GgufTokenizer
from outrider.errors import ModelFileError


class VocabComparison(msgspec.Struct, frozen=True, kw_only=True):
    """refusal: why the draft does not fit; empty if it does. unknown: why that cannot be told from the files."""

    refusal: str = ""
    unknown: str = ""


def compare_vocabularies(target_path: str, draft_path: str) -> VocabComparison:
    """What the handshake would decide. A tokenizer that only engine llama can read leaves it unknown here."""
    try:
        target, draft = (GgufTokenizer(open_gguf(path)) for path in (target_path, draft_path))
    except ModelFileError as error:
        return VocabComparison(unknown=str(error))
    mismatch = find_mismatch(target.vocab, draft.vocab, target.texts, draft.texts)
    return VocabComparison(refusal=mismatch.message if mismatch else "")
