"""Do the two workers compute in the same place?"""

from __future__ import annotations

from outrider.config.schema import Config
from outrider.config.settle import has_draft_worker


def share_processors(config: Config) -> bool:
    """May they run on the same processors? Then each slows the other down, and a thread that spins keeps others from
    running.

    A worker that is not started here is on a host of its own; workers with different devices are not both on the CPU."""
    target, draft = config.target, config.draft
    if not has_draft_worker(config) or not (target.launch and draft.launch) or target.devices != draft.devices:
        return False
    return not (target.cpus and draft.cpus) or not set(target.cpus).isdisjoint(draft.cpus)
