"""`python -m tests.golden FOLDER`: hold recorded facts against the code and print matches and mismatches by topic.

Exit status: 0 all that could be checked matches, 1 something differs, 2 there is nothing to check.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from tests.golden.models import close_engines
from tests.golden.runner import Outcome, check_folder

_SHOWN = 5


def report(outcomes: list[Outcome]) -> str:
    """A table by topic, notes, and what differs."""
    kinds = Counter((outcome.topic, _kind(outcome)) for outcome in outcomes)
    lines = [f"{'topic':16} {'match':>6} {'differ':>6} {'skipped':>7}"]
    for topic in sorted({outcome.topic for outcome in outcomes}):
        match, differ, skipped = (kinds[topic, kind] for kind in ("match", "differ", "skipped"))
        lines.append(f"{topic:16} {match:6} {differ:6} {skipped:7}")
    reasons = Counter((outcome.topic, outcome.skipped) for outcome in outcomes if outcome.skipped)
    lines += [f"skipped: {topic}: {reason} ({n} files)" for (topic, reason), n in sorted(reasons.items())]
    for outcome in outcomes:
        lines += [f"{outcome.path}: {line}" for line in (*outcome.notes, *outcome.differences[:_SHOWN])]
    return "\n".join(lines)


def _kind(outcome: Outcome) -> str:
    if outcome.skipped is not None:
        return "skipped"
    return "differ" if outcome.differences else "match"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        outcomes = list(check_folder(parser.parse_args().folder))
    finally:
        close_engines()
    if not outcomes:
        print("no JSON files there")
        return 2
    print(report(outcomes))
    return int(any(outcome.differences for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
