"""Making a chain of speculators from the names that a user lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import SpeculatorError
from outrider.speculators import lookup_file
from outrider.speculators.base import Speculator
from outrider.speculators.chain import Chain, Clock, Member, no_clock
from outrider.speculators.lookup_file import LookupTable
from outrider.speculators.ngram_cache import NgramCache
from outrider.speculators.ngram_map_k import NgramMapK
from outrider.speculators.ngram_map_k4v import NgramMapK4V
from outrider.speculators.ngram_mod import HashPool, NgramMod
from outrider.speculators.ngram_simple import NgramSimple
from outrider.speculators.ngram_suffix import NgramSuffix
from outrider.speculators.types import TYPE_NAMES, NgramCacheParams, SpeculatorParams, by_priority


@dataclass(frozen=True, slots=True)
class Shared:
    """What the sessions of a process share: tables from files, which nobody changes, and the pool of ngram-mod, where
    sharing it was asked for."""

    static: LookupTable | None = None
    dynamic: LookupTable | None = None
    mod_pool: HashPool | None = None


def load_shared(types: Sequence[str], params: SpeculatorParams) -> Shared:
    """Read and allocate what these types share. Files of types that are not wanted are not touched."""
    static, dynamic = _tables(params.ngram_cache) if "ngram-cache" in types else (None, None)
    shares = "ngram-mod" in types and params.ngram_mod.shared_pool
    return Shared(static, dynamic, HashPool(params.ngram_mod.n_match) if shares else None)


def _tables(params: NgramCacheParams) -> tuple[LookupTable | None, LookupTable | None]:
    paths = params.lookup_static, params.lookup_dynamic
    static, dynamic = (lookup_file.read(path) if path else None for path in paths)
    return static, dynamic


def make_chain(
    types: Sequence[str],
    params: SpeculatorParams,
    *,
    n_seq: int = 1,
    shared: Shared | None = None,
    model: Speculator | None = None,
    model_outside: bool = False,
    clock: Clock = no_clock,
) -> Chain:
    """The chain of `types`, for `n_seq` sequences.

    draft-simple is `model`, or drafts in another process if `model_outside`; with neither it is a SpeculatorError. The
    other model types are left out (they cannot run yet; telling so is the configuration's task). So is "none".
    """
    for name in types:
        if name not in TYPE_NAMES:
            raise SpeculatorError(f"unknown type of speculation {name!r}; the types are {', '.join(TYPE_NAMES)}")
    shared = shared if shared is not None else load_shared(types, params)
    members = [_member(name, params, n_seq, shared, model, model_outside) for name in by_priority(types)]
    return Chain([member for member in members if member is not None], n_seq, clock)


def _member(
    name: str, params: SpeculatorParams, n_seq: int, shared: Shared, model: Speculator | None, model_outside: bool
) -> Member | None:
    if name == "draft-simple":
        if model is None and not model_outside:
            raise SpeculatorError("draft-simple needs a draft model; none was given")
        return Member(name, params.draft.n_max, model)
    speculator = _lookup_speculator(name, params, n_seq, shared)
    return None if speculator is None else Member(name, speculator.n_max, speculator)


def _lookup_speculator(name: str, params: SpeculatorParams, n_seq: int, shared: Shared) -> Speculator | None:
    match name:
        case "ngram-simple":
            return NgramSimple(params.ngram_simple)
        case "ngram-map-k":
            return NgramMapK(params.ngram_map_k, n_seq)
        case "ngram-map-k4v":
            return NgramMapK4V(params.ngram_map_k4v, n_seq)
        case "ngram-mod":
            return NgramMod(params.ngram_mod, n_seq, shared.mod_pool)
        case "ngram-cache":
            return NgramCache(n_seq, shared.static, shared.dynamic)
        case "ngram-suffix":
            return NgramSuffix(params.ngram_suffix, n_seq)
    return None
