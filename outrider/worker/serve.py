"""The life of a worker: greet, load the model, work until told to end."""

from __future__ import annotations

import gc
import hashlib
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.config.convert import engine_options
from outrider.config.sharing import share_processors
from outrider.connect import open_link, welcome, worker_address
from outrider.engine.factory import create_engine, resolve_kind
from outrider.engine.options import EngineOptions
from outrider.errors import ConfigError, ModelFileError
from outrider.types import WorkerRole
from outrider.wire.messages import Ready
from outrider.worker.loop import work
from outrider.worker.measure import row_times

if TYPE_CHECKING:
    from outrider.config import Config, Worker
    from outrider.engine.base import Engine
    from outrider.worker.slots import SlotWorker

log = logging.getLogger("outrider.worker")

#: Recurrent states kept per sequence at most; longer drafts go back by checkpoint.
MAX_SNAPSHOTS = 8


def serve(role: WorkerRole, config: Config, make_worker: Callable[[Engine], SlotWorker[Any]]) -> int:
    """Connect, load, work; the exit code. Raises OutriderError for what a user must mend."""
    settings = config.target if role == "target" else config.draft
    address = worker_address(config)
    with open_link(role, settings.name, address, config.coordinator.keys) as link:
        incarnation = welcome(link)
        _tell(settings, f"{role} worker {settings.name!r}: connected to {address}")
        engine = load(settings, options_of(role, config))
        try:
            if role == "target" and config.target.chat_template_file:
                engine.use_chat_template(read_template(Path(config.target.chat_template_file)))
            # A draft beside its target would measure both; the coordinator asks it to when the target is done.
            if config.speculative.is_measured and (role == "target" or not share_processors(config)):
                engine.facts = msgspec.structs.replace(engine.facts, row_times=row_times(engine, role))
            gc.collect()
            gc.freeze()  # vocabularies are hundreds of thousands of objects that stay: not to be looked through again
            link.send(Ready(incarnation, engine.facts))
            _tell(settings, f"{role} worker {settings.name!r}: ready with {settings.model}")
            work(link, make_worker(engine), incarnation)
        finally:
            engine.close()
    return 0


def _tell(settings: Worker, line: str) -> None:
    """Whoever started a worker by hand sees how it fares; one of the launcher's is reported by the coordinator."""
    if not settings.launch:
        print(line, file=sys.stderr, flush=True)


def options_of(role: WorkerRole, config: Config) -> EngineOptions:
    """The engine's options for this role.

    A target on llama.cpp keeps snapshots of a recurrent state, so that rejected drafts need no replay; other kinds of
    memory make nothing of it.
    """
    settings = config.target if role == "target" else config.draft
    n_branches = config.speculative.draft_n_branches if role == "draft" else 0
    options = engine_options(settings, config.coordinator.n_seq, n_branches)
    if role == "draft" or not config.speculative.types or resolve_kind(settings.engine) != "llama":
        return options
    return replace(options, n_rs_seq=min(config.speculative.draft_n_max, MAX_SNAPSHOTS))


def load(settings: Worker, options: EngineOptions) -> Engine:
    """The engine with its model; the file's hash is checked first where the configuration pins it."""
    if settings.sha256:
        check_sha256(Path(settings.model), settings.sha256)
    engine = create_engine(settings.engine, settings.model, options)
    log.info("loaded %s with the engine %s", settings.model, engine.facts.engine)
    return engine


def read_template(path: Path) -> str:
    """Raises ConfigError."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"target.chat_template_file {path}: {error}") from None


def check_sha256(path: Path, expected: str) -> None:
    """Raise ModelFileError unless the file has this SHA-256."""
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from None
    if actual != expected:
        raise ModelFileError(
            f"{path}: its SHA-256 is {actual}, the configuration pins {expected}; fetch the file again"
        )
