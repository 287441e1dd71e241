"""Rounds of a real run, kept so that other rules can be tried on them: what the draft thought, what the target sampled.

A record is a JSONL file: a header with the costs that were measured, then one round a line. It is taken from the files
of `--trace` (`read_trace`). Along the text that the target wrote a draft is the same whatever its length, so a record
with long drafts answers for every shorter one.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """A verification. `tokens`, `probs`: what was drafted behind `start`, submitted or not; `sampled`: what was committed;
    times in microseconds."""

    start: int
    tokens: list[int]
    probs: list[float]
    sampled: list[int]
    rows: int
    verify_us: int

    @cached_property
    def n_matching(self) -> int:
        """How many drafted tokens the target sampled too."""
        pairs = list(zip(self.tokens, self.sampled, strict=False))
        return next((i for i, (drafted, sampled) in enumerate(pairs) if drafted != sampled), len(pairs))


@dataclass(frozen=True)
class Record:
    """One text. verify_us: decodes of the target by rows; draft_step_us: of one drafted token; round_trip_us: of a
    request to the draft worker, beside its decodes."""

    verify_us: dict[int, float]
    draft_step_us: float
    round_trip_us: float
    rounds: list[Round]
    about: str = ""

    def chain(self, position: int) -> tuple[list[float], int]:
        """What the draft says behind a committed text of this length: probabilities, and how many tokens are right.

        Empty where the record does not tell: at the target's own token behind a draft that was accepted whole.
        Raises KeyError for a position that is not in the text."""
        one = self._by_position[position]
        at = position - one.start
        return one.probs[at:], max(one.n_matching - at, 0)

    @cached_property
    def _by_position(self) -> dict[int, Round]:
        return {one.start + i: one for one in self.rounds for i in range(len(one.sampled))}

    @property
    def start(self) -> int:
        return self.rounds[0].start

    @property
    def end(self) -> int:
        return self.rounds[-1].start + len(self.rounds[-1].sampled)


def save(record: Record, path: Path) -> None:
    header = {key: value for key, value in asdict(record).items() if key != "rounds"}
    lines = [header, *map(asdict, record.rounds)]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def load(path: Path) -> Record:
    header, *rounds = map(json.loads, path.read_text().splitlines())
    verify_us = {int(rows): us for rows, us in header.pop("verify_us").items()}
    return Record(verify_us, rounds=[Round(**one) for one in rounds], **header)


# --- from traces ---------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Times of all traces together, in microseconds."""

    verify: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    step: list[float] = field(default_factory=list)
    trip: list[float] = field(default_factory=list)

    def add(self, events: Sequence[Event]) -> None:
        asked: dict[tuple[int, int], Event] = {}
        for event in events:
            args = event["args"]
            if event["name"] == "DraftRequest":
                asked[event["pid"], args["round"]] = event
            elif event["cat"] == "target worker" and args["rows"] == args["tested"] + 1:
                self.verify[args["rows"]].append(args["decode_us"])
            elif event["cat"] == "draft worker" and args["tokens"] and args["rows"] <= len(args["tokens"]) + 1:
                self.step.append(args["decode_us"] / len(args["tokens"]))
                request = asked.pop((event["pid"], args["round"]), None)
                if request is not None:
                    self.trip.append(max(event["ts"] + event["dur"] - request["ts"] - args["decode_us"], 0.0))


def read_traces(paths: Iterable[Path], about: str = "") -> Record:
    """The text of the first trace (its first session), with costs measured in all of them."""
    measured, rounds = Measured(), list[Round]()
    for path in paths:
        events = _slices(path)
        measured.add(events)
        rounds = rounds or list(_rounds(events))
    verify_us = {rows: statistics.median(times) for rows, times in sorted(measured.verify.items())}
    trip = statistics.median(measured.trip) if measured.trip else 0.0
    return Record(verify_us, statistics.median(measured.step), trip, rounds, about)


def _slices(path: Path) -> list[Event]:
    """Complete events in the order in which they ended."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    return sorted(events, key=lambda event: event["ts"] + event["dur"])


def _rounds(events: Sequence[Event]) -> Iterator[Round]:
    """Of the first session. What was drafted is known by position, until the target samples something else."""
    session = min(event["pid"] for event in events)
    drafted: dict[int, tuple[int, float]] = {}
    for event in events:
        args = event["args"]
        if event["pid"] != session or event["cat"] not in ("draft worker", "target worker"):
            continue
        if event["cat"] == "draft worker":
            for i, pair in enumerate(zip(args["tokens"], args["probs"], strict=True)):
                drafted[args["start"] + i] = pair
            continue
        start, sampled = args["committed_len"], args["tokens"]
        chain = []
        while start + len(chain) in drafted:
            chain.append(drafted[start + len(chain)])
        tokens, probs = [token for token, _ in chain], [prob for _, prob in chain]
        yield Round(start, tokens, probs, sampled, args["rows"], args["decode_us"])
        if tokens[: len(sampled)] != sampled:
            drafted.clear()
