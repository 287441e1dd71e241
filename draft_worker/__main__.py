"""`python -m draft_worker --config FILE`: a worker of its own. FILE is TOML, or `-`: one line of JSON on stdin."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from outrider.worker.main import main

if TYPE_CHECKING:
    from outrider.engine.base import Engine
    from outrider.worker.slots import SlotWorker


def make_worker(engine: Engine) -> SlotWorker[Any]:
    # Imported late: processors and thread counts are set before anything that computes is loaded.
    from draft_worker.worker import DraftWorker

    return DraftWorker(engine)


if __name__ == "__main__":
    sys.exit(main("draft", make_worker))
