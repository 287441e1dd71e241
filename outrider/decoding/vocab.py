"""May a draft model's tokens be offered to a target model? llama.cpp's rule, as pure functions over facts.

The checks run in llama.cpp's order and the first that fails is the answer: *type*, *bos*, *eos* (the add flags must be
equal; the ids only where the target adds them), *size* (128 apart at most), *text* (every id both have, from 5 on; the
ids before it, scores, token types, merges and pre-tokenizers are free to differ). Source: `are_compatible` in
llama.cpp's `common/speculative.cpp`.

Texts stay where the models are: block hashes say where two vocabularies may differ, and only such blocks are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.types import VOCAB_BLOCK_FIRST, VOCAB_BLOCK_SIZE, VocabFacts

#: Vocabularies may differ by so many ids at their ends.
MAX_SIZE_DIFFERENCE = 128

_ADVICE = "use a draft model made for this target's vocabulary"

#: (first id, count) -> the raw token texts; fewer at the end of a vocabulary.
Texts = Callable[[int, int], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a draft does not fit: the check that failed, what each side has, and for "text" the first differing id."""

    check: Literal["type", "bos", "eos", "size", "text"]
    target: str
    draft: str
    token_id: int | None = None

    @property
    def message(self) -> str:
        where = "" if self.token_id is None else f" at token {self.token_id}"
        what = f"vocabulary check '{self.check}' failed{where}: target has {self.target}, draft has {self.draft}"
        return f"{what}; {_ADVICE}"


def check_facts(target: VocabFacts, draft: VocabFacts) -> Mismatch | None:
    """The first of the checks type, bos, eos and size that fails.

    Two models without a vocabulary fail the first: there is nothing that could tell them apart.
    """
    if target.type != draft.type or target.type == "none":
        return Mismatch("type", _type(target), _type(draft))
    if _differs(target.add_bos, target.bos, draft.add_bos, draft.bos):
        return Mismatch("bos", _rule("BOS", target.add_bos, target.bos), _rule("BOS", draft.add_bos, draft.bos))
    if _differs(target.add_eos, target.eos, draft.add_eos, draft.eos):
        return Mismatch("eos", _rule("EOS", target.add_eos, target.eos), _rule("EOS", draft.add_eos, draft.eos))
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return Mismatch("size", f"{target.n_vocab} tokens", f"{draft.n_vocab} (at most {MAX_SIZE_DIFFERENCE} apart)")
    return None


def differing_blocks(target: VocabFacts, draft: VocabFacts) -> list[int]:
    """The blocks whose texts must be compared, in order; none: all common texts are equal.

    Where the vocabularies differ in size, the block in which the smaller one ends has different hashes even if all
    ids that both have agree, so it may turn out to be equal.
    """
    pairs = zip(target.block_hashes, draft.block_hashes, strict=False)
    return [block for block, (ours, theirs) in enumerate(pairs) if ours != theirs]


def block_ids(facts: VocabFacts, block: int) -> range:
    """The ids of a block of this vocabulary."""
    first = VOCAB_BLOCK_FIRST + VOCAB_BLOCK_SIZE * block
    return range(first, max(first, min(first + VOCAB_BLOCK_SIZE, facts.n_vocab)))


def compare_texts(first: int, target: Sequence[bytes], draft: Sequence[bytes]) -> Mismatch | None:
    """The first difference between the texts of the ids `first …`, as far as both reach."""
    for token, (ours, theirs) in enumerate(zip(target, draft, strict=False), first):
        if ours != theirs:
            return Mismatch("text", _shown(ours), _shown(theirs), token)
    return None


def find_mismatch(target: VocabFacts, draft: VocabFacts, target_texts: Texts, draft_texts: Texts) -> Mismatch | None:
    """All checks, where the texts of both models are at hand."""
    failed = check_facts(target, draft)
    blocks = [] if failed else differing_blocks(target, draft)
    for block in blocks:
        first = block_ids(target, block).start
        failed = compare_texts(first, target_texts(first, VOCAB_BLOCK_SIZE), draft_texts(first, VOCAB_BLOCK_SIZE))
        if failed:
            break
    return failed


def _differs(adds: bool, token: int, draft_adds: bool, draft_token: int) -> bool:
    return adds != draft_adds or (adds and token != draft_token)


def _type(facts: VocabFacts) -> str:
    return "no vocabulary" if facts.type == "none" else f"type {facts.type}"


def _rule(name: str, adds: bool, token: int) -> str:
    return f"{name} {'added' if adds else 'not added'}, id {token}"


def _shown(text: bytes) -> str:
    try:
        shown = repr(text.decode())
    except UnicodeDecodeError:
        shown = repr(text)
    return shown if len(shown) <= 80 else shown[:80] + "…'"
