"""What ngram-map-k and ngram-map-k4v share: finding the last n tokens in the text through a hash table, as llama.cpp
does it.

Quirks that belong to them: a bucket keeps the first n-gram that took it, so drafts go on from an old place; n-grams that
begin in the n+m+1 positions around the end of the prompt are entered in no range and never found; index 0 is never
found; a key is made at its first successful lookup, and its "hits" count lookups; the last accepted count caps all
later drafts of a key (or value), so that one failure silences it until `begin` deletes it.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from dataclasses import dataclass, field

from outrider.errors import SpeculatorError
from outrider.speculators.base import DraftParams, LookupSpeculator
from outrider.speculators.bucket_table import BucketTable
from outrider.speculators.search import Tokens, find_newest
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import NgramParams

#: No counter goes beyond this.
MAX_COUNT = 16380

#: Values kept per key.
N_VALUES = 4

#: From so many new n-grams on, `begin` prepares the table of the first draft.
_PREPARE_FROM = 1024


@dataclass(slots=True)
class Value:
    """What followed a key: `value_idx` is where (0: unused), `num` how often, `n_accepted` how much of its last draft
    was right, which is the most that it drafts again."""

    n_accepted: int
    value_idx: int = 0
    num: int = 0


@dataclass(slots=True)
class Key:
    """An n-gram that was looked up with success: where it stands, up to where its values were counted, its lookups."""

    key_idx: int
    values: list[Value]
    stat_idx: int = 0
    num: int = 0


@dataclass(slots=True)
class Prepared:
    """`table` with the prompt entered, as the first draft will find it, for the text of this stamp."""

    stamp: int
    table: BucketTable


@dataclass(slots=True)
class MapState:
    """Of one sequence. `last`: key and value of the last draft. `index`: first key of each n-gram, for one stamp."""

    table: BucketTable
    keys: list[Key] = field(default_factory=list)
    size_last_begin: int = 0
    idx_last_check: int = 0
    last: tuple[int, int] | None = None
    index: dict[bytes, int] = field(default_factory=dict)
    index_stamp: int = 0
    prepared: Prepared | None = None


class NgramMap(LookupSpeculator):
    def __init__(self, params: NgramParams, n_seq: int = 1) -> None:
        if params.size_n < 1:
            raise SpeculatorError(f"{self.type}: size_n = {params.size_n}; it must be at least 1")
        self.n = params.size_n
        self.n_max = params.size_m
        self.min_hits = params.min_hits
        self._states = [MapState(BucketTable(self.n)) for _ in range(n_seq)]

    def state(self, seq: int) -> MapState:
        if not 0 <= seq < len(self._states):
            raise SpeculatorError(f"{self.type}: no sequence {seq}; there are {len(self._states)}")
        return self._states[seq]

    def get_state(self, seq: int) -> object:
        return self._copy(self.state(seq))

    def set_state(self, seq: int, state: object) -> None:
        assert isinstance(state, MapState)
        self.state(seq)
        self._states[seq] = self._copy(state)

    @staticmethod
    def _copy(state: MapState) -> MapState:
        return deepcopy(state, {id(state.prepared): None})

    # --- begin ---------------------------------------------------------------------------------------------------

    def begin(self, seq: int, prompt: TokenArray) -> None:
        """What stands at or after the cut is forgotten if the text became shorter; else everything survives."""
        state, size = self.state(seq), len(prompt)
        if size < state.idx_last_check:
            cut = state.size_last_begin
            if cut > size:
                cut = max(size - self.n - self.n_max, 0)
            state.table.cut(cut)
            state.keys = [key for key in state.keys if key.key_idx < cut and self._survives(key, cut)]
        state.idx_last_check = state.size_last_begin = size
        state.index_stamp = 0
        state.prepared = self._prepare(state, prompt)

    def _survives(self, key: Key, cut: int) -> bool:
        """Drop what was learnt of `key` behind the cut; is it still of use?"""
        return True

    def _prompt_range(self, state: MapState) -> tuple[int, int]:
        """First and last index of the prompt's n-grams that are not entered yet."""
        return state.table.last_idx + 1, state.size_last_begin - self.n - self.n_max - 1

    def _prepare(self, state: MapState, prompt: TokenArray) -> Prepared | None:
        first, last = self._prompt_range(state)
        if last - first < _PREPARE_FROM:
            return None
        return Prepared(prompt.stamp, state.table.filled(prompt.tokens, first, last))

    # --- draft ---------------------------------------------------------------------------------------------------

    def propose(self, request: DraftParams) -> list[int]:
        state, text = self.state(request.seq), request.prompt
        state.last = None
        length = len(text)
        if length < 2 * self.n + self.n_max:
            return []
        if max(state.idx_last_check, state.size_last_begin) > length:
            raise SpeculatorError(
                f"{self.type}: sequence {request.seq} became shorter without begin: "
                f"{max(state.idx_last_check, state.size_last_begin)} tokens before, {length} now"
            )
        state.idx_last_check = length
        key = text.tail(self.n, request.id_last)
        match = self._find(state, text.tokens, key)
        self._enter(state, text)
        if match <= 0:
            return []
        offset = self._key_offset(state, text, key.tobytes(), match)
        entry = state.keys[offset]
        entry.num = min(entry.num + 1, MAX_COUNT)
        value = self._choose(entry, text.tokens, key, match)
        if value is None:
            return []
        state.last = offset, value
        n_draft = min(self.n_max, entry.values[value].n_accepted)
        draft: list[int] = text.tokens[match + self.n : match + self.n + n_draft].tolist()
        return draft

    @abstractmethod
    def _choose(self, key: Key, tokens: Tokens, key_tokens: Tokens, match: int) -> int | None:
        """Which value of `key`, found at `match`, answers for the draft; None: there is to be no draft."""

    def _find(self, state: MapState, tokens: Tokens, key: Tokens) -> int:
        """Where `key` stands: by the table, else by search of what is not in it yet. -1: nowhere."""
        last = tokens.size - self.n - self.n_max - 1
        index = state.table.lookup(key)
        if 0 < index < last and tokens[index : index + self.n].tobytes() == key.tobytes():
            return index
        first, last_of_prompt = self._prompt_range(state)
        match = find_newest(tokens, key, first, last_of_prompt)
        if match < 0:
            match = find_newest(tokens, key, max(first, state.size_last_begin + 1), last)
        return match

    def _enter(self, state: MapState, text: TokenArray) -> None:
        """Enter the n-grams that `_find` had to search."""
        last = len(text) - self.n - self.n_max - 1
        first, last_of_prompt = self._prompt_range(state)
        if state.prepared is not None and state.prepared.stamp == text.stamp:
            state.table = state.prepared.table
        else:
            state.table.fill(text.tokens, first, last_of_prompt)
        state.prepared = None
        state.table.fill(text.tokens, max(first, state.size_last_begin + 1), last)
        state.table.last_idx = max(last, state.table.last_idx)

    def _key_offset(self, state: MapState, text: TokenArray, key: bytes, match: int) -> int:
        """The first key whose place in the text reads `key`; a new one if there is none."""
        if state.index_stamp != text.stamp:
            state.index, state.index_stamp = self._index(state.keys, text.tokens), text.stamp
        offset = state.index.setdefault(key, len(state.keys))
        if offset == len(state.keys):
            values = [Value(n_accepted=self.n_max) for _ in range(N_VALUES)]
            state.keys.append(Key(key_idx=match, values=values))
        return offset

    def _index(self, keys: list[Key], tokens: Tokens) -> dict[bytes, int]:
        index: dict[bytes, int] = {}
        for offset, key in enumerate(keys):
            index.setdefault(tokens[key.key_idx : key.key_idx + self.n].tobytes(), offset)
        return index

    # --- accept --------------------------------------------------------------------------------------------------

    def accept(self, seq: int, n_accepted: int, by_other: bool) -> None:
        """Books the count on the key (and value) of the last draft, also if `begin` moved other keys into its place."""
        state = self.state(seq)
        if by_other or state.last is None:
            return
        offset, value = state.last
        if offset < len(state.keys):
            state.keys[offset].values[value].n_accepted = n_accepted
