"""Counters and inner state of a chain in the form of the recordings."""

from __future__ import annotations

from typing import Any

from outrider.speculators.base import Speculator
from outrider.speculators.chain import Chain, Member
from outrider.speculators.ngram_cache import NgramCache
from outrider.speculators.ngram_map import Key, NgramMap
from outrider.speculators.ngram_mod import POOL_SIZE, NgramMod


def chain_stats(chain: Chain) -> list[dict[str, Any]]:
    return [_stats(member) for member in chain.members]


def _stats(member: Member) -> dict[str, Any]:
    c = member.counters
    return {
        "n_acc_drafts": c.n_acc_drafts,
        "n_acc_tokens": c.n_acc_tokens,
        "n_acc_tokens_per_pos": c.n_acc_tokens_per_pos,
        "n_call_accept": c.n_call_accept,
        "n_call_begin": c.n_call_begin,
        "n_call_draft": c.n_call_draft,
        "n_gen_drafts": c.n_gen_drafts,
        "n_gen_tokens": c.n_gen_tokens,
        "n_max": member.n_max,
        "type": member.type,
    }


def chain_state(chain: Chain) -> list[list[Any]]:
    return [_state(member.speculator, chain.n_seq) for member in chain.members]


def _state(speculator: Speculator | None, n_seq: int) -> list[Any]:
    match speculator:
        case NgramMap():
            return [_map_state(speculator, seq) for seq in range(n_seq)]
        case NgramMod():
            fields = ("i_last", "n_draft_last", "n_low")
            states = [{name: getattr(state, name) for name in fields} for state in speculator.states]
            return [*states, {"size": POOL_SIZE, "used": speculator.pools[0].used}]
        case NgramCache():
            return [_cache_state(speculator, seq) for seq in range(n_seq)]
    return []


def _map_state(speculator: NgramMap, seq: int) -> dict[str, Any]:
    state = speculator.state(seq)
    return {
        "idx_last_check": state.idx_last_check,
        "key_map_last_idx": state.table.last_idx,
        "key_map_used": int((state.table.slots != 0).sum()),
        "keys": [_key(key, 1 if speculator.type == "ngram-map-k" else len(key.values)) for key in state.keys],
        "size_last_begin": state.size_last_begin,
    }


def _key(key: Key, n_values: int) -> list[Any]:
    values = [[value.value_idx, value.num, value.n_accepted] for value in key.values[:n_values]]
    return [key.key_idx, key.stat_idx, key.num, values]


def _cache_state(speculator: NgramCache, seq: int) -> dict[str, int]:
    state = speculator.states[seq]
    return {
        "cache_size": state.size,
        "context_count_total": state.counts.total(),
        "n_context_ngrams": state.counts.n_ngrams(),
        "n_dynamic_ngrams": len(speculator.dynamic or ()),
        "n_static_ngrams": len(speculator.static or ()),
    }
