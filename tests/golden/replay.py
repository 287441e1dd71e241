"""Playing scripted token streams through a chain of speculators, in the two loops that the recordings were made with."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.speculators import lookup_file
from outrider.speculators.base import DraftParams
from outrider.speculators.chain import Chain
from outrider.speculators.factory import make_chain
from outrider.speculators.token_array import TokenArray
from outrider.speculators.types import (
    ModelParams,
    NgramCacheParams,
    NgramModParams,
    NgramParams,
    SpeculatorParams,
    longest_draft,
)
from tests.golden.runner import first_differences
from tests.golden.state import chain_state, chain_stats


def speculator_params(given: dict[str, Any], static: str = "", dynamic: str = "") -> SpeculatorParams:
    """The parameters of a recording; the table of ngram-mod is shared by its sequences, as it was there."""
    return SpeculatorParams(
        ngram_simple=NgramParams(**given.get("ngram_simple", {})),
        ngram_map_k=NgramParams(**given.get("ngram_map_k", {})),
        ngram_map_k4v=NgramParams(**given.get("ngram_map_k4v", {})),
        ngram_mod=NgramModParams(**given.get("ngram_mod", {}), shared_pool=True),
        ngram_cache=NgramCacheParams(lookup_static=static, lookup_dynamic=dynamic),
        draft=ModelParams(**given.get("draft", {})),
    )


def check(path: Path, data: dict[str, Any]) -> list[str]:
    """Rounds, counters, end state and longest drafts of one recording."""
    parameters = data["header"]["parameters"]
    with tempfile.TemporaryDirectory() as folder:
        files = [_lookup_file(folder, data, name) for name in ("static_entries", "dynamic_entries")]
        params = speculator_params(parameters, *files)
        chain = make_chain(parameters["types"], params, n_seq=parameters["n_seq"])
    rounds = Replay(chain, parameters, data["seqs"]).run()
    return [
        *first_differences("rounds", data["rounds"], rounds),
        *first_differences("stats", data["stats"], chain_stats(chain)),
        *first_differences("state", data["state"], chain_state(chain)),
        *first_differences("n_max_spec", data["n_max_spec"], chain.n_max),
        *first_differences("n_max_params", data["n_max_params"], longest_draft(parameters["types"], params)),
    ]


def _lookup_file(folder: str, data: dict[str, Any], name: str) -> str:
    if name not in data:
        return ""
    path = f"{folder}/{name}"
    entries = [([token for token in ngram if token != -1], dict(pairs)) for ngram, pairs in data[name]]
    lookup_file.write(path, entries)
    return path


@dataclass
class Sequence_:
    """One sequence of a script: its turns, and the live one."""

    seq: int
    start: int
    turns: Sequence[dict[str, Any]]
    turn: int = -1
    stream: list[int] = field(default_factory=list)
    pos: int = 0
    n_generated: int = 0
    history: TokenArray = field(default_factory=TokenArray)
    live: bool = False


class Replay:
    """`run` gives the rows [seq, turn, n_past, id_last, n_max, draft, accepted, impl] of all rounds."""

    def __init__(self, chain: Chain, parameters: dict[str, Any], seqs: Sequence[dict[str, Any]]) -> None:
        self.chain = chain
        self.is_server = parameters["loop"] == "server"
        self.n_ctx: int = parameters["n_ctx"]
        self.n_predict: int = parameters["n_predict"]
        self.sequences = [Sequence_(i, seq["start"], seq["turns"]) for i, seq in enumerate(seqs)]
        self.rounds: list[list[Any]] = []

    def run(self) -> list[list[Any]]:
        step = 0
        while any(s.live or s.turn + 1 < len(s.turns) for s in self.sequences):
            for sequence in self.sequences:
                if not sequence.live and sequence.start <= step and sequence.turn + 1 < len(sequence.turns):
                    self._begin(sequence)
            self._round([sequence for sequence in self.sequences if sequence.live])
            step += 1
        return self.rounds

    def _begin(self, s: Sequence_) -> None:
        s.turn += 1
        prompt = prompt_tokens(s.turns[s.turn])
        s.stream = prompt + s.turns[s.turn]["target"]
        s.pos = len(prompt) - (not self.is_server)
        s.n_generated = int(self.is_server)
        s.history = TokenArray(s.stream[: s.pos])
        s.live = s.pos + 1 < len(s.stream)
        self.chain.begin(s.seq, s.history)

    def _budget(self, s: Sequence_) -> int | None:
        """The limit that the loop gave to a draft; None: it did not ask."""
        n_max = self.n_ctx - s.pos - 2
        left = self.n_predict - s.n_generated
        if not self.is_server:
            return max(min(n_max, left - 1) if self.n_predict >= 0 else n_max, 0)
        if self.n_predict >= 0 and left > 0:
            n_max = min(n_max, left - 1)
        return n_max if n_max > 0 else None

    def _round(self, live: list[Sequence_]) -> None:
        budgets = [self._budget(s) for s in live]
        requests = [
            DraftParams(s.seq, s.stream[s.pos], s.pos, s.history, -1 if n_max is None else n_max)
            for s, n_max in zip(live, budgets, strict=True)
        ]
        self.chain.draft([request for request, n_max in zip(requests, budgets, strict=True) if n_max is not None])
        for s, request, n_max in zip(live, requests, budgets, strict=True):
            self._verify(s, request, n_max)

    def _verify(self, s: Sequence_, request: DraftParams, n_max: int | None) -> None:
        draft = request.result
        coming = s.stream[s.pos + 1 :]
        accepted = next((i for i, token in enumerate(draft) if i >= len(coming) or token != coming[i]), len(draft))
        impl = self.chain.last_type(s.seq) if draft else ""
        self.rounds.append([s.seq, s.turn, s.pos, s.stream[s.pos], n_max, draft, accepted, impl])
        if draft or not self.is_server:
            self.chain.accept(s.seq, accepted)
        n_new = min(accepted + 1, len(coming))
        s.history.extend(s.stream[s.pos : s.pos + n_new])
        s.pos += n_new
        s.n_generated += n_new
        s.live = s.pos + 1 < len(s.stream) and not self._exhausted(s.n_generated)

    def _exhausted(self, n_generated: int) -> bool:
        if self.n_predict < 0:
            return False
        return n_generated >= self.n_predict if self.is_server else n_generated > self.n_predict


def prompt_tokens(turn: dict[str, Any]) -> list[int]:
    """The prompt of a turn; a long one is given by a formula."""
    formula = turn.get("prompt_formula")
    if formula is None:
        return list(turn["prompt"])
    return [_scramble(i * formula["mult"] & 0xFFFFFFFF) % formula["mod"] for i in range(formula["n"])]


def _scramble(x: int) -> int:
    x ^= x >> 15
    x = x * 2246822519 & 0xFFFFFFFF
    return x ^ x >> 13
