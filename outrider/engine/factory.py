"""From an engine's name, a model file and options to an engine. Engines are imported only when they are asked for."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import get_args

from outrider.engine.base import Engine
from outrider.engine.options import EngineKind, EngineOptions, refuse_unsupported
from outrider.errors import ConfigError

LLAMA_MISSING = "engine llama: llama-cpp-python is not installed; run: pip install 'outrider[llama]'"

_SCRIPTED_OPTIONS = ("n_ctx", "n_batch", "n_seq", "n_branches")
_NUMPY_OPTIONS = (*_SCRIPTED_OPTIONS, "n_threads", "checkpoint_only")
_LLAMA_OPTIONS = tuple(field.name for field in fields(EngineOptions) if field.name != "checkpoint_only")


def llama_version() -> str | None:
    """Version of the installed llama-cpp-python, or None. Loads nothing."""
    if find_spec("llama_cpp") is None:
        return None
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return "unknown"


def resolve_kind(kind: EngineKind) -> EngineKind:
    """What "auto" stands for here: llama where it is installed, else numpy."""
    if kind != "auto":
        return kind
    return "numpy" if llama_version() is None else "llama"


def create_engine(kind: EngineKind, path: str, options: EngineOptions | None = None) -> Engine:
    """The engine `kind` with the model at `path`.

    Raises ConfigError if the engine is unknown, not installed or lacks an option that was set; ModelFileError if it
    cannot load the file.
    """
    options = options or EngineOptions()
    match resolve_kind(kind):
        case "llama":
            return _llama(path, options)
        case "numpy":
            return _numpy(path, options)
        case "scripted":
            return _scripted(path, options)
        case "simulated":
            return _simulated(path, options)
    raise ConfigError(f"engine {kind!r} is unknown; use one of {', '.join(get_args(EngineKind))}")


def _llama(path: str, options: EngineOptions) -> Engine:
    if llama_version() is None:
        raise ConfigError(LLAMA_MISSING)
    refuse_unsupported(options, "llama", _LLAMA_OPTIONS)
    try:
        from outrider.engine.llama_engine import LlamaEngine
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(f"engine llama: llama-cpp-python cannot be loaded ({error}); install it again") from error
    return LlamaEngine(path, options)


def _numpy(path: str, options: EngineOptions) -> Engine:
    refuse_unsupported(options, "numpy", _NUMPY_OPTIONS)
    from outrider.engine.numpy_llama import NumpyEngine

    return NumpyEngine(
        path,
        n_ctx=options.n_ctx,
        n_batch=options.n_batch,
        n_seq=options.n_seq,
        n_branches=options.n_branches,
        n_threads=options.n_threads,
        checkpoint_only=options.checkpoint_only,
    )


def _scripted(path: str, options: EngineOptions) -> Engine:
    refuse_unsupported(options, "scripted", _SCRIPTED_OPTIONS)
    from outrider.engine.scripted import ScriptedEngine

    return ScriptedEngine(path, **_sizes(options))


def _simulated(path: str, options: EngineOptions) -> Engine:
    refuse_unsupported(options, "simulated", _SCRIPTED_OPTIONS)
    from outrider.engine.simulated import SimulatedEngine

    return SimulatedEngine(path, **_sizes(options))


def _sizes(options: EngineOptions) -> dict[str, int]:
    return {name: getattr(options, name) for name in _SCRIPTED_OPTIONS}
