"""What the handlers share: the configuration, the bridge, and the state of the service as the front tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from time import time
from typing import Any, Literal

from coordinator.api.bridge import Bridge
from coordinator.api.metrics import Metrics
from coordinator.api.prompts import Prompts
from coordinator.api.responses import Head
from coordinator.assemble import needs_draft
from coordinator.service import Service
from outrider.config import Config
from outrider.speculators.factory import Shared

Health = Literal["ok", "degraded", "loading", "unavailable"]


@dataclass(frozen=True, slots=True)
class Api:
    """One running front. `config` is the coordinator's own: what a request does not say, it takes from there."""

    config: Config
    bridge: Bridge
    shared: Shared
    metrics: Metrics
    keys: tuple[bytes, ...] = ()
    fixed_seed: bool = False  # requests without a seed use the configuration's
    started: int = field(default_factory=lambda: int(time()))

    @property
    def prompts(self) -> Prompts:
        return Prompts(self.bridge)

    @property
    def names(self) -> list[str]:
        """The model's names, the first one is its id."""
        return sorted(self.config.server.alias) or [self.config.target.model.rpartition("/")[2] or "target"]

    def head(self) -> Head:
        return Head(self.names[0], fingerprint())


def fingerprint() -> str:
    """What OpenAI calls the system's fingerprint; llama-server's begins with b, too."""
    try:
        return f"b{version('outrider')}-outrider"
    except PackageNotFoundError:
        return "b0-outrider"


def health(bridge: Bridge, config: Config) -> tuple[Health, str]:
    """The state of both workers, in the coordinator's thread, with a reason where it is not ok."""
    service = bridge.service
    if bridge.draining:
        return "unavailable", "the server is ending"
    if service.fatal is not None:
        return "unavailable", str(service.fatal)
    if service.target is None:
        return ("unavailable", "the target worker is lost") if bridge.ready else ("loading", "Loading model")
    if not bridge.ready:
        return "loading", "Loading model"
    if needs_draft(config) and service.draft is None:
        refused = service.refused.get("draft")
        return "degraded", str(refused) if refused is not None else "the draft worker is not connected"
    return "ok", ""


def facts(service: Service) -> dict[str, Any] | None:
    """The target's own facts, in the coordinator's thread; None without a target."""
    target = service.target
    if target is None or target.facts is None:
        return None
    return {name: getattr(target.facts, name) for name in ("n_vocab", "n_ctx", "n_seq", "has_chat_template")}
