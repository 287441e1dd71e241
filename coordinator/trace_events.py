"""Records of a trace as Chrome trace events. Pure; times become microseconds from the first record on.

    a session        a "process" with these lanes ("threads"):
    target, draft    complete events ("X"): decodes, as long as the worker says and ended when its reply had come
    coordinator      what it did about one event
    links            one lane for each direction: when messages were sent, or had come, with their size
    arrows           flow events ("s", "f"): draft → verify → verdict

Source: "Trace Event Format" of the Chromium project. Nothing on one lane overlaps: what would is cut at its start.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from coordinator.trace import Seen, Worked

Event = dict[str, Any]

#: In the order in which they are shown.
LANES = (
    "target worker",
    "coordinator → target",
    "target → coordinator",
    "coordinator",
    "coordinator → draft",
    "draft → coordinator",
    "draft worker",
)
_NUMBER = {name: number for number, name in enumerate(LANES, start=1)}
#: How long a message is drawn, in microseconds.
MARK_US = 1.0


def document(records: Iterable[Seen | Worked], n_forgotten: int = 0) -> dict[str, Any]:
    """The object that a viewer opens. `n_forgotten`: earlier records that are not among these."""
    drawing = Drawing()
    for record in sorted(records, key=_start):
        drawing.add(record)
    return {
        "traceEvents": [*drawing.names(), *sorted(drawing.events, key=lambda event: event["ts"])],
        "displayTimeUnit": "ms",
        "otherData": {"records_forgotten": n_forgotten},
    }


def _start(record: Seen | Worked) -> float:
    return record.time if isinstance(record, Seen) else record.start


@dataclass(slots=True)
class Open:
    """What is known of a session's round at hand."""

    request: Event | None = None  # the slice of its VerifyRequest
    drafts: list[tuple[int, int, Event]] = field(
        default_factory=list
    )  # decodes of the draft: from and to which position


class Drawing:
    """Collects events; records come in the order of their times."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._zero: float | None = None
        self._ends: dict[tuple[int, str], float] = {}  # of the last event on each lane
        self._open: dict[int, Open] = {}
        self._flows = itertools.count(1)

    def add(self, record: Seen | Worked) -> None:
        if self._zero is None:
            self._zero = _start(record) - _decode_s(record)
        if isinstance(record, Worked):
            self._slice(record.session, "coordinator", "work", record.start, record.end, {})
        elif record.direction == "to":
            self._sent(record)
        else:
            self._received(record)

    def names(self) -> Iterator[Event]:
        """Metadata: what processes and threads are called, and their order."""
        for session in sorted({session for session, _ in self._ends}):
            yield _meta("process_name", session, 0, {"name": f"session {session}"})
        for session, lane in sorted(self._ends, key=lambda key: (key[0], _NUMBER[key[1]])):
            yield _meta("thread_name", session, _NUMBER[lane], {"name": lane})
            yield _meta("thread_sort_index", session, _NUMBER[lane], {"sort_index": _NUMBER[lane]})

    # --- records -------------------------------------------------------------------------------------------------

    def _sent(self, seen: Seen) -> None:
        mark = self._mark(seen, f"coordinator → {seen.role}")
        if seen.kind == "VerifyRequest":
            self._state(seen).request = mark

    def _received(self, seen: Seen) -> None:
        mark = self._mark(seen, f"{seen.role} → coordinator")
        if seen.kind == "DraftTokens":
            decode = self._decode(seen, f"draft {len(seen.args['tokens'])}")
            start = seen.args["start"]
            self._state(seen).drafts.append((start, start + len(seen.args["tokens"]), decode))
        elif seen.kind == "Verdict":
            decode = self._decode(seen, f"verify {seen.args['tested']}")
            self._connect(seen, decode, mark)

    def _connect(self, verdict: Seen, decode: Event, mark: Event) -> None:
        """Arrows from the decode that drafted the last token that was tested, and on to the verdict."""
        state, n = self._state(verdict), verdict.args["tested"]
        if state.request is not None:
            decode["args"]["draft"] = state.request["args"].get("draft", [])
        last = verdict.committed_len + n - 1
        drafted = next((event for low, high, event in reversed(state.drafts) if low <= last < high), None)
        if n and drafted is not None:
            self._flow("draft", drafted, decode)
        self._flow("verdict", decode, mark)
        committed_len = verdict.committed_len + len(verdict.args["tokens"])
        state.drafts = [draft for draft in state.drafts if draft[1] > committed_len]

    def _state(self, seen: Seen) -> Open:
        return self._open.setdefault(seen.session, Open())

    # --- events --------------------------------------------------------------------------------------------------

    def _decode(self, seen: Seen, name: str) -> Event:
        args = {**_stamp(seen), **seen.args, "decode_us": seen.decode_us}
        if "probs" in args:
            args["probs"] = [round(prob, 4) for prob in args["probs"]]
        return self._slice(seen.session, f"{seen.role} worker", name, seen.time - seen.decode_us / 1e6, seen.time, args)

    def _mark(self, seen: Seen, lane: str) -> Event:
        args = {**_stamp(seen), "bytes": seen.n_bytes}
        if seen.direction == "to":
            args |= seen.args
        return self._slice(seen.session, lane, seen.kind, seen.time, seen.time + MARK_US / 1e6, args)

    def _slice(self, session: int, lane: str, name: str, start: float, end: float, args: dict[str, Any]) -> Event:
        assert self._zero is not None
        last = self._ends.get((session, lane), 0.0)
        ts = max(_us(start - self._zero), last)
        dur = max(_us(end - self._zero) - ts, 0.0)
        self._ends[session, lane] = ts + dur
        event = {"ph": "X", "name": name, "cat": lane, "pid": session, "tid": _NUMBER[lane]}
        event |= {"ts": ts, "dur": round(dur, 3), "args": args}
        self.events.append(event)
        return event

    def _flow(self, name: str, start: Event, end: Event) -> None:
        """An arrow from one slice to another. A viewer finds a slice by a time that lies within it."""
        first, last = _within(start), _within(end)
        if first > last:
            return
        number = next(self._flows)
        common = {"name": name, "cat": "round", "id": number}
        self.events.append({"ph": "s", **common, "pid": start["pid"], "tid": start["tid"], "ts": first})
        self.events.append({"ph": "f", "bp": "e", **common, "pid": end["pid"], "tid": end["tid"], "ts": last})


def _within(event: Event) -> float:
    return round(float(event["ts"]) + float(event["dur"]) / 2, 3)


def _decode_s(record: Seen | Worked) -> float:
    return record.decode_us / 1e6 if isinstance(record, Seen) else 0.0


def _us(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1e6, 3)


def _stamp(seen: Seen) -> dict[str, Any]:
    return {"session": seen.session, "round": seen.round, "committed_len": seen.committed_len}


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}
