"""The kinds of speculation by name, their order of priority, and their parameters. Names and defaults are llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: All names in llama.cpp's order, ours behind them.
TYPE_NAMES = (
    "none",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "ngram-suffix",
)

#: Types that look their drafts up in the text: no model, no worker.
LOOKUP_TYPES = ("ngram-suffix", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")

#: Types that draft with a model. Only the first can run yet.
DRAFT_SIMPLE = "draft-simple"
MODEL_TYPES = (DRAFT_SIMPLE, "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")

#: Who is asked first. The order in which a user lists the types, and repeats, do not matter.
PRIORITY = LOOKUP_TYPES + MODEL_TYPES

RUNNABLE = frozenset(LOOKUP_TYPES) | {DRAFT_SIMPLE}

#: ngram-cache drafts up to so many tokens, whatever the options say.
CACHE_DRAFT_LEN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramParams:
    """Of ngram-simple and the two map types. size_n: tokens looked up; size_m: tokens drafted; min_hits: lookups of a
    key before it drafts (read by ngram-map-k4v alone)."""

    size_n: int = 12
    size_m: int = 48
    min_hits: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramModParams:
    """n_match: tokens hashed; n_min: shorter drafts are dropped; n_max: longest draft. shared_pool: one table for all
    sequences and sessions, as in llama.cpp, instead of one for each sequence."""

    n_match: int = 24
    n_min: int = 48
    n_max: int = 64
    shared_pool: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramCacheParams:
    """Paths of lookup files; empty: none."""

    lookup_static: str = ""
    lookup_dynamic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSuffixParams:
    """n_min: tokens that must match before anything is drafted; n_max: longest draft."""

    n_min: int = 2
    n_max: int = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """Of draft-simple."""

    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorParams:
    """Each speculator reads its own part and no other."""

    ngram_simple: NgramParams = field(default_factory=NgramParams)
    ngram_map_k: NgramParams = field(default_factory=NgramParams)
    ngram_map_k4v: NgramParams = field(default_factory=NgramParams)
    ngram_mod: NgramModParams = field(default_factory=NgramModParams)
    ngram_cache: NgramCacheParams = field(default_factory=NgramCacheParams)
    ngram_suffix: NgramSuffixParams = field(default_factory=NgramSuffixParams)
    draft: ModelParams = field(default_factory=ModelParams)


def by_priority(types: Iterable[str]) -> list[str]:
    """The given types, each once, in the order in which they are asked; "none" is nobody."""
    wanted = set(types)
    return [name for name in PRIORITY if name in wanted]


def longest_draft(types: Sequence[str], params: SpeculatorParams) -> int:
    """The longest draft that these types may make: what buffers must be sized for."""
    return max((max(0, _longest(name, params)) for name in types), default=0)


def _longest(name: str, params: SpeculatorParams) -> int:
    match name:
        case "none":
            return 0
        case "ngram-simple":
            return params.ngram_simple.size_m
        case "ngram-map-k":
            return params.ngram_map_k.size_m
        case "ngram-map-k4v":
            return params.ngram_map_k4v.size_m
        case "ngram-mod":
            return params.ngram_mod.n_max
        case "ngram-cache":
            return CACHE_DRAFT_LEN
        case "ngram-suffix":
            return params.ngram_suffix.n_max
        case _:
            return params.draft.n_max
