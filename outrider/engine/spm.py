"""The merge rule of SentencePiece vocabularies as llama.cpp applies it.

The `tokenizers` library has no model with this rule: any two neighbours whose joined text is a token may merge, the
joined token's *score* says in which order (BPE ranks pairs instead, and equal scores are settled by position), and
characters that are no token take part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from outrider.errors import RequestError

#: Merging takes some microseconds and hundreds of bytes a character, and everybody waits for it.
MAX_CHARS = 1 << 20
BLANK = "▁"  # stands for a space in SentencePiece texts


def merge(text: str, ids: Mapping[str, int], scores: Sequence[float]) -> list[str]:
    """Cut `text` into the parts that are left when no merge is possible any more; a part is a token or one character."""
    parts = list(text)  # "" where a part was merged into the one to its left
    before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))

    def candidate(left: int, right: int) -> tuple[float, int, int, int] | None:
        joined = parts[left] + parts[right]
        token = ids.get(joined)
        return None if token is None else (-scores[token], left, right, len(joined))

    queue = [entry for i in range(len(parts) - 1) if (entry := candidate(i, i + 1))]
    heapify(queue)
    while queue:
        _, left, right, length = heappop(queue)
        if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != length:
            continue  # a part has grown or gone since
        parts[left] += parts[right]
        parts[right] = ""
        next_ = after[left] = after[right]
        if next_ < len(parts):
            before[next_] = left
            if entry := candidate(left, next_):
                heappush(queue, entry)
        if before[left] >= 0 and (entry := candidate(before[left], left)):
            heappush(queue, entry)
    return [part for part in parts if part]


def spm_encoder(ids: Mapping[str, int], scores: Sequence[float]) -> Callable[[str], list[int]]:
    """Text without special tokens -> ids; a character that is no token becomes its bytes' tokens.

    The encoder raises RequestError at a byte for which the vocabulary has no token.
    """

    def byte_token(byte: int) -> int:
        for text in (f"<0x{byte:02X}>", chr(byte)):
            if text in ids and (byte < 0x80 or text[0] == "<"):
                return ids[text]
        raise RequestError(f"this model's vocabulary has no token for the byte 0x{byte:02x} of the text; leave it out")

    def encode(text: str) -> list[int]:
        if len(text) > MAX_CHARS:
            raise RequestError(f"a text of {len(text)} characters is too long for this tokenizer; at most {MAX_CHARS}")
        tokens: list[int] = []
        for part in merge(text.replace(" ", BLANK), ids, scores):
            if part in ids:
                tokens.append(ids[part])
            else:
                tokens += map(byte_token, part.encode())
        return tokens

    return encode
