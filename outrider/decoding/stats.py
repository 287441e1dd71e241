"""Counters of speculation, per speculator and per request. Names are llama.cpp's where the meaning is.

Statistics are values that add up: an event (`begun`, `drafted`, `verified`) is a `SpecStats` of its own, a total is the
sum of its events, and totals of requests, sessions or processes are summed the same way, in any order.

    made      drafted tokens, those included that never left the speculator (shorter than n_min) or were overtaken
    gen       of these, offered to the target
    tested    of these, rows that the target really evaluated (after budgets, grammars, and the loss of stale drafts)
    acc       of these, equal to the target's sample
    committed of these, in the delivered text (a stop string or the budget may cut accepted ones)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpecStats:
    """What one speculator did. Times in µs. `*_per_pos[i]` counts tokens at position i of their draft, so that
    `n_tested_tokens_per_pos[0]` is the number of rounds with a draft, failures included."""

    n_call_begin: int = 0
    n_call_draft: int = 0  # asked for a draft
    n_call_accept: int = 0  # told the outcome of a round: the rounds of this speculator
    n_made_tokens: int = 0
    n_gen_drafts: int = 0  # drafts offered, not empty
    n_gen_tokens: int = 0
    n_tested_tokens: int = 0
    n_tested_tokens_per_pos: Counts = ()
    n_acc_drafts: int = 0  # drafts of which at least one token was accepted
    n_acc_tokens: int = 0
    n_acc_tokens_per_pos: Counts = ()
    n_committed_tokens: int = 0
    t_begin_us: int = 0
    t_draft_us: int = 0
    t_accept_us: int = 0

    def __add__(self, other: SpecStats) -> SpecStats:
        return SpecStats(*(_add(getattr(self, name), getattr(other, name)) for name in _NAMES))

    @property
    def mean_acceptance_len(self) -> float:
        """Tokens committed per round, were nothing cut: 1 + accepted / rounds. 1.0 without rounds."""
        return 1 + _ratio(self.n_acc_tokens, self.n_call_accept)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / tested tokens; 0.0 where nothing was tested."""
        return _ratio(self.n_acc_tokens, self.n_tested_tokens)

    def summary(self) -> dict[str, Any]:
        """All counters and what is derived of them, ready for JSON."""
        counters = {name: _plain(getattr(self, name)) for name in _NAMES}
        per_pos = zip_longest(self.n_acc_tokens_per_pos, self.n_tested_tokens_per_pos, fillvalue=0)
        return counters | {
            "mean_acceptance_len": self.mean_acceptance_len,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_rate_per_pos": [_ratio(acc, tested) for acc, tested in per_pos],
            "tested_tokens_per_round": _ratio(self.n_tested_tokens, self.n_call_accept),
        }


_NAMES = tuple(f.name for f in fields(SpecStats))


def begun(us: int = 0) -> SpecStats:
    """The speculator was told of a new text."""
    return SpecStats(n_call_begin=1, t_begin_us=us)


def drafted(n_made: int, n_offered: int, us: int = 0) -> SpecStats:
    """The speculator was asked: it made `n_made` tokens and offered `n_offered` of them."""
    assert 0 <= n_offered <= n_made
    return SpecStats(
        n_call_draft=1,
        n_made_tokens=n_made,
        n_gen_drafts=int(n_offered > 0),
        n_gen_tokens=n_offered,
        t_draft_us=us,
    )


def verified(n_tested: int, n_accepted: int, n_committed: int, us: int = 0) -> SpecStats:
    """A round of this speculator's draft ended. `n_committed` counts accepted draft tokens in the text, not the token
    that the target added. A round without a draft is `verified(0, 0, 0)` where the speculator is told of it."""
    assert 0 <= n_committed <= n_accepted <= n_tested
    return SpecStats(
        n_call_accept=1,
        n_tested_tokens=n_tested,
        n_tested_tokens_per_pos=(1,) * n_tested,
        n_acc_drafts=int(n_accepted > 0),
        n_acc_tokens=n_accepted,
        n_acc_tokens_per_pos=(1,) * n_accepted,
        n_committed_tokens=n_committed,
        t_accept_us=us,
    )


_NONE: Mapping[str, SpecStats] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What one request (or many, added) did: rounds, tokens delivered, and each speculator's part by its name."""

    n_rounds: int = 0  # verifications, with or without a draft
    n_tokens: int = 0  # tokens committed and delivered
    speculators: Mapping[str, SpecStats] = field(default_factory=lambda: _NONE)

    def __add__(self, other: RequestStats) -> RequestStats:
        names = self.speculators.keys() | other.speculators.keys()
        zero = SpecStats()
        merged = {n: self.speculators.get(n, zero) + other.speculators.get(n, zero) for n in sorted(names)}
        return RequestStats(self.n_rounds + other.n_rounds, self.n_tokens + other.n_tokens, MappingProxyType(merged))

    @property
    def total(self) -> SpecStats:
        """The sum over all speculators."""
        return sum(self.speculators.values(), SpecStats())

    def summary(self) -> dict[str, Any]:
        """Counters of the whole request and of each speculator, ready for JSON."""
        total = self.total
        return {
            "rounds": self.n_rounds,
            "tokens": self.n_tokens,
            "draft_n": total.n_tested_tokens,
            "draft_n_accepted": total.n_acc_tokens,
            "draft_n_committed": total.n_committed_tokens,
            "draft_n_per_pos": list(total.n_tested_tokens_per_pos),
            "draft_n_accepted_per_pos": list(total.n_acc_tokens_per_pos),
            "tokens_per_round": _ratio(self.n_tokens, self.n_rounds),
            "speculators": {name: stats.summary() for name, stats in self.speculators.items()},
        }


def of_speculator(name: str, stats: SpecStats) -> RequestStats:
    """The part of a request that speculator `name` did."""
    return RequestStats(speculators=MappingProxyType({name: stats}))


def round_done(n_tokens: int) -> RequestStats:
    """One verification that delivered `n_tokens`."""
    return RequestStats(n_rounds=1, n_tokens=n_tokens)


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))
    return a + b


def _plain(value: int | Counts) -> int | list[int]:
    return list(value) if isinstance(value, tuple) else value


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
