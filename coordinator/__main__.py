"""`python -m coordinator --config FILE`: the coordinator on its own host, as `outrider up` starts it."""

from __future__ import annotations

import sys

from coordinator.cli import main

if __name__ == "__main__":
    sys.exit(main(["up", *sys.argv[1:]]))
