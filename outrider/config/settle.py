"""What the keys mean together: the last step from merged settings to a configuration that can be run.

Each rule is one small function. A rule that fails raises ConfigError; one that only finds something senseless yields a
warning. Nothing that was asked for is dropped without one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address

import msgspec

from outrider.config.convert import engine_options
from outrider.config.grammar_files import read_grammar_files
from outrider.config.merge import DEFAULT, LEVELS, Merged, Origin, get
from outrider.config.options import BY_KEY
from outrider.config.schema import Config, Generation, Worker
from outrider.engine.options import FILELESS
from outrider.errors import ConfigError
from outrider.speculators.types import LOOKUP_TYPES, RUNNABLE
from outrider.wire.messages import MAX_DRAFT

#: Worker keys that only the engine llama reads.
_LLAMA_ONLY = ("n_gpu_layers", "devices", "cache_type_k", "cache_type_v", "flash_attn")
_NOT_READ = {"numpy": _LLAMA_ONLY, **dict.fromkeys(FILELESS, (*_LLAMA_ONLY, "threads"))}

#: Worker keys that say what a machine has.
_OF_THE_HOST = ("engine", "devices", "threads")

#: Keys of [generation] that are limits and defaults of a server's requests.
_SERVER_GENERATION = ("n_predict", "stop")

_PROMPTS = ("generation.prompt", "generation.file", "generation.prompt_tokens")
_GRAMMARS = (
    "generation.grammar",
    "generation.grammar_file",
    "generation.json_schema",
    "generation.json_schema_file",
)

Rule = Callable[[Merged], Iterator[str]]


def settle(merged: Merged) -> Merged:
    """The same with the types of speculation decided and every rule applied; `warnings` has grown by theirs."""
    remote = bool(merged.config.client.connect)
    merged = _choose_one(_choose_one(merged, "prompt", _PROMPTS), "grammar", _GRAMMARS)
    merged = read_grammar_files(merged)
    merged = merged if remote else _choose_types(_drop_followed(merged))
    warnings = [warning for rule in (CLIENT_RULES if remote else RULES) for warning in rule(merged)]
    return replace(merged, warnings=[*merged.warnings, *warnings])


def _choose_one(merged: Merged, what: str, keys: Sequence[str]) -> Merged:
    """Of keys that exclude one another, one of a stronger source replaces those of weaker ones. Raises ConfigError for
    two in one source."""
    given = {key: LEVELS.index(merged.origins[key].level) for key in keys if get(merged.config, key) not in (None, "")}
    strongest = [key for key in given if given[key] == max(given.values())]
    if len(strongest) > 1:
        raise ConfigError(f"one {what} at a time: {strongest[0]} and {strongest[1]} are both given")
    generation, origins = merged.config.generation, dict(merged.origins)
    for key in given.keys() - set(strongest):
        generation = msgspec.structs.replace(generation, **{key.partition(".")[2]: BY_KEY[key].default})
        origins[key] = DEFAULT
    return replace(merged, config=msgspec.structs.replace(merged.config, generation=generation), origins=origins)


def _drop_followed(merged: Merged) -> Merged:
    """A draft does not follow the target in what its own engine does not have, nor on another host in what the host has."""
    draft, origins = merged.config.draft, dict(merged.origins)
    names = {*_NOT_READ.get(draft.engine, ()), *(() if draft.launch else _OF_THE_HOST)}
    keys = [f"draft.{name}" for name in sorted(names) if origins[f"draft.{name}"].level == "follows"]
    draft = msgspec.structs.replace(draft, **{key.partition(".")[2]: BY_KEY[key].default for key in keys})
    origins.update(dict.fromkeys(keys, DEFAULT))
    return replace(merged, config=msgspec.structs.replace(merged.config, draft=draft), origins=origins)


def has_draft_worker(config: Config) -> bool:
    """Is a draft worker configured, here or on another host?"""
    return bool(config.draft.model) or not config.draft.launch


def require_target(config: Config) -> None:
    """Raise ConfigError unless there is a target worker to start or to wait for."""
    if not config.target.model and config.target.launch:
        raise ConfigError("a target model is needed: -m FILE.gguf (target.model)")


def require_request(config: Config) -> None:
    """Raise ConfigError unless there is a target, or a coordinator that has one."""
    if not config.client.connect:
        require_target(config)


def require_server(config: Config) -> None:
    """Raise ConfigError unless there is a target, and for settings of single requests that a server cannot have."""
    require_target(config)
    default = Generation()
    for name in Generation.__struct_fields__:
        if of_one_request(f"generation.{name}") and getattr(config.generation, name) != getattr(default, name):
            raise ConfigError(f"generation.{name} belongs to one request; a server takes none")


def of_one_request(key: str) -> bool:
    """Is this a setting of a single request, which a server has no use for?"""
    section, _, name = key.rpartition(".")
    return section == "generation" and name not in _SERVER_GENERATION


def why_off(config: Config) -> str | None:
    """The reason for which nothing will be drafted, or None where something will."""
    spec = config.speculative
    if not spec.types:
        return "--spec-type none" if has_draft_worker(config) else "no draft model and no type of speculation was given"
    if spec.types == ["draft-simple"] and spec.draft_n_max == 0:
        return "p_min is above 1" if spec.n_max else "n_max is 0"
    return None


def _choose_types(merged: Merged) -> Merged:
    """A draft model switches drafting on, unless the types were given. `auto` also looks up what the text repeats, for it
    knows what that is worth."""
    config, key = merged.config, "speculative.types"
    spec = config.speculative
    if merged.origins[key].explicit or not has_draft_worker(config):
        return merged
    looks_up = spec.schedule == "auto" and spec.draft_n_max > 0 and spec.synth_len is None and not spec.synth_rates
    speculative = msgspec.structs.replace(
        spec, types=["ngram-suffix", "draft-simple"] if looks_up else ["draft-simple"]
    )
    origins = {**merged.origins, key: Origin("follows", "draft.model")}
    return replace(merged, config=msgspec.structs.replace(config, speculative=speculative), origins=origins)


def _types_can_run(merged: Merged) -> Iterator[str]:
    types = merged.config.speculative.types
    unready = [name for name in types if name not in RUNNABLE]
    if unready:
        raise ConfigError(f"speculation type {unready[0]} cannot run yet; use draft-simple or an ngram type")
    if "draft-simple" in types and not has_draft_worker(merged.config):
        raise ConfigError("speculation type draft-simple needs a draft model: give one with -md (draft.model)")
    yield from ()


def _draft_model_is_used(merged: Merged) -> Iterator[str]:
    config = merged.config
    if has_draft_worker(config) and set(config.speculative.types) <= set(LOOKUP_TYPES):
        names = ", ".join(config.speculative.types) or "none"
        yield f"a draft model is given but NOT used: --spec-type is {names}; draft-simple would use it"


def _draft_limits(merged: Merged) -> Iterator[str]:
    spec = merged.config.speculative
    if "draft-simple" not in spec.types:
        return
    if spec.n_min > spec.n_max:
        yield f"n_min {spec.n_min} is above n_max {spec.n_max}: every draft of the model will be dropped"
    if spec.n_max > MAX_DRAFT:
        yield f"n_max {spec.n_max} is above the {MAX_DRAFT} tokens that one draft may have: {MAX_DRAFT} is used"
    if not 0.0 <= spec.p_min <= 1.0:
        never = "nothing will be drafted" if spec.p_min > 1.0 else "drafts are never stopped by it"
        yield f"p_min {spec.p_min} is no probability: {never}"


def _ngram_limits(merged: Merged) -> Iterator[str]:
    spec = merged.config.speculative
    if "ngram-mod" in spec.types and spec.ngram_mod.n_min > spec.ngram_mod.n_max:
        yield f"ngram-mod: n_min {spec.ngram_mod.n_min} is above n_max {spec.ngram_mod.n_max}"
    if "ngram-mod" in spec.types and spec.ngram_mod.n_match < 16:
        yield f"ngram-mod: n_match {spec.ngram_mod.n_match} is below 16, many drafts will be wrong"
    if "ngram-simple" in spec.types and spec.ngram_simple.size_m < spec.ngram_simple.size_n:
        yield "ngram-simple: size_m is below size_n, it will never draft"
    for kind in ("simple", "map-k", "map-k4v"):
        sizes = getattr(spec, f"ngram_{kind.replace('-', '_')}")
        if sizes.min_hits != sizes.effective_min_hits:
            yield f"ngram-{kind}: min_hits {sizes.min_hits} counts modulo 65536: {sizes.effective_min_hits}"


def _settings_of_unused_types(merged: Merged) -> Iterator[str]:
    """Settings of a type of speculation that is not on."""
    types = merged.config.speculative.types
    for key, origin in merged.origins.items():
        owner = _owner(key)
        if owner and origin.level in ("command line", "environment") and owner not in types:
            yield f"{key} ({origin}) has no effect: {owner} is not among the types of speculation"


def _owner(key: str) -> str | None:
    """The type of speculation that a key belongs to."""
    if key in ("speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.draft_sampling"):
        return "draft-simple"
    table = BY_KEY[key].section.partition("speculative.")[2]
    return table.replace("_", "-") or None


def _synthetic(merged: Merged) -> Iterator[str]:
    """The values are checked where the longest draft is known (`coordinator/assemble.py`)."""
    spec = merged.config.speculative
    if spec.synth_len is None and not spec.synth_rates:
        return
    if spec.synth_len is not None and spec.synth_rates:
        raise ConfigError("--spec-synth-len and --spec-synth-rates exclude one another: give one")
    if not spec.types:
        raise ConfigError("synthetic acceptance needs speculation: give -md or --spec-type")
    if merged.config.generation.constraint is not None:
        raise ConfigError("synthetic acceptance writes whatever was drafted: it excludes a grammar")
    yield "SYNTHETIC ACCEPTANCE: drafts are accepted at random, the text is INVALID; for measuring speed only"


def _chat_needs_text(merged: Merged) -> Iterator[str]:
    generation = merged.config.generation
    if generation.chat and generation.prompt_tokens is not None:
        raise ConfigError("--chat renders a text by a template: it excludes --prompt-tokens")
    yield from ()


def _listening(merged: Merged) -> Iterator[str]:
    """tcp only with keys and names; beyond loopback only if that is asked for."""
    coordinator = merged.config.coordinator
    if not coordinator.listen.startswith("tcp://"):
        return
    if not coordinator.keys:
        raise ConfigError("coordinator.listen is tcp: it needs coordinator.keys, a folder made by `outrider keys`")
    if not coordinator.allow:
        raise ConfigError("coordinator.listen is tcp: it needs coordinator.allow, the names that may connect")
    if not coordinator.allow_remote and not _is_loopback(coordinator.listen):
        raise ConfigError(f"coordinator.listen = {coordinator.listen!r} is not loopback: --allow-remote allows it")
    yield from ()


def _is_loopback(address: str) -> bool:
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server_is_guarded(merged: Merged) -> Iterator[str]:
    server = merged.config.server
    beyond = [host for host in server.host if not _is_loopback(f"tcp://{host}:0")]
    if server.port is not None and beyond and not server.api_key_file:
        yield f"server.host {', '.join(beyond)}: anybody who reaches this machine can use it; give server.api_key_file"


def _names_differ(merged: Merged) -> Iterator[str]:
    config = merged.config
    if has_draft_worker(config) and config.target.name == config.draft.name:
        raise ConfigError(f"target.name and draft.name are both {config.target.name!r}: give them different names")
    yield from ()


def _reachable(merged: Merged) -> Iterator[str]:
    """A worker of another host cannot find a socket that is made, under a new name, at every start."""
    config = merged.config
    for role, worker in _workers(config):
        if not worker.launch and config.coordinator.listen == "ipc":
            raise ConfigError(
                f"{role}.launch is false: give coordinator.listen an address, tcp://HOST:PORT or ipc:///PATH"
            )
    yield from ()


def _connecting(merged: Merged) -> Iterator[str]:
    """With --connect the models and workers are those of the running coordinator."""
    if merged.config.client.connect.startswith("tcp://") and not merged.config.coordinator.keys:
        raise ConfigError("--connect to tcp needs coordinator.keys, the folder with this client's key")
    for key, origin in merged.origins.items():
        if key.partition(".")[0] in ("target", "draft") and origin.level == "command line":
            raise ConfigError(f"{origin.name} excludes --connect: the running coordinator has its own models")
    yield from ()


def _engine_reads(merged: Merged) -> Iterator[str]:
    """Keys that the chosen engine does not read, and keys that exclude one another."""
    for role, worker in _workers(merged.config):
        for name in _NOT_READ.get(worker.engine, ()):
            origin = merged.origins[f"{role}.{name}"]
            if origin.explicit:
                raise ConfigError(f"{role}.{name} ({origin}): the {worker.engine} engine has no such option")
        try:
            engine_options(worker, merged.config.coordinator.n_seq)
        except ConfigError as error:
            raise ConfigError(f"{role}.{error}") from None
    yield from ()


def _threads_fit(merged: Merged) -> Iterator[str]:
    for role, worker in _workers(merged.config):
        if worker.cpus and worker.threads > len(worker.cpus):
            yield f"{role}: {worker.threads} threads on {len(worker.cpus)} CPUs ({role}.cpus) will hinder each other"


def _workers(config: Config) -> Iterator[tuple[str, Worker]]:
    yield "target", config.target
    if has_draft_worker(config):
        yield "draft", config.draft


RULES: tuple[Rule, ...] = (
    _types_can_run,
    _draft_model_is_used,
    _draft_limits,
    _ngram_limits,
    _settings_of_unused_types,
    _synthetic,
    _chat_needs_text,
    _listening,
    _server_is_guarded,
    _names_differ,
    _reachable,
    _engine_reads,
    _threads_fit,
)

#: A client has no models: what a request may ask of them is for the running coordinator to say.
CLIENT_RULES: tuple[Rule, ...] = (_chat_needs_text, _connecting)
