"""The file of `--trace`: what a viewer needs of it holds for every session, and the file is there whole or not at all."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.auto import Auto
from coordinator.overlap import Overlap
from coordinator.schedule import Lockstep, Schedule
from coordinator.trace import Trace
from coordinator.trace_events import LANES, document
from coordinator.trace_file import tracing
from outrider.errors import ConfigError
from tests.harness import scripted
from tests.watching import Watched, draft_tokens, show, verdict, verify_request


def check(page: dict[str, Any]) -> list[dict[str, Any]]:
    """What the format asks for; the events without the metadata."""
    page = json.loads(json.dumps(page, allow_nan=False))
    everything = page["traceEvents"]
    names = {(event["pid"], event["tid"]) for event in everything if event["name"] == "thread_name"}
    sessions = {event["pid"] for event in everything if event["name"] == "process_name"}
    events = [event for event in everything if event["ph"] != "M"]
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    assert {(event["pid"], event["tid"]) for event in events} <= names
    assert {event["pid"] for event in events} <= sessions
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    ends: Counter[tuple[int, int]] = Counter()
    for event in events:
        if event["ph"] == "X":
            lane = event["pid"], event["tid"]
            assert event["dur"] >= 0
            assert event["ts"] >= ends[lane] - 1e-3, "overlaps the event before it"
            ends[lane] = event["ts"] + event["dur"]
        else:
            flows[event["id"]].append(event)
            assert any(_holds(slice_, event) for slice_ in events), "an arrow from or to nothing"
    assert all([event["ph"] for event in flow] == ["s", "f"] for flow in flows.values())
    return events


def _holds(event: dict[str, Any], flow: dict[str, Any]) -> bool:
    same = (event["ph"], event["pid"], event["tid"]) == ("X", flow["pid"], flow["tid"])
    return same and event["ts"] <= flow["ts"] <= event["ts"] + event["dur"]


@pytest.mark.parametrize("schedule", [Lockstep, Overlap, Auto])
def test_a_session_gives_a_valid_trace(schedule: type[Schedule]) -> None:
    trace = Trace()
    pair = Watched(scripted("seed=3"), scripted("seed=3,disagree=20"), observers=[trace])
    session = pair.run_watched(schedule(), n_predict=60)
    events = check(document(trace.records))
    names = Counter(event["name"].split()[0] for event in events if event["ph"] == "X")
    assert names["Verdict"] == names["verify"] == session.counts.rounds
    assert names["DraftTokens"] == names["draft"] > 2
    tested = sum(event["args"]["tested"] for event in events if event["name"].startswith("verify"))
    assert tested == session.counts.draft_n
    arrows = Counter(event["name"] for event in events if event["ph"] == "s")
    assert arrows["verdict"] == session.counts.rounds
    assert arrows["draft"] == sum(
        event["name"].startswith("verify") and event["name"] != "verify 0" for event in events
    )


def test_lanes_are_named_and_ordered() -> None:
    trace = Trace()
    Watched(scripted(), scripted(), observers=[trace]).run_watched(Overlap(), n_predict=20)
    metadata = [event for event in document(trace.records)["traceEvents"] if event["ph"] == "M"]
    named = {event["tid"]: event["args"]["name"] for event in metadata if event["name"] == "thread_name"}
    assert [named[tid] for tid in sorted(named)] == list(LANES)


def test_a_decode_ends_when_its_reply_has_come() -> None:
    trace = Trace()
    show(trace, (10, draft_tokens(5, [1, 2], 4)), (11, verify_request(5, [1, 2])), (40, verdict(5, [1, 9], 2, 20)))
    draft, verify = (event for event in check(document(trace.records)) if event["name"] in ("draft 2", "verify 2"))
    assert (draft["ts"], draft["dur"]) == (0.0, 4000.0)
    assert (verify["ts"], verify["dur"]) == (14_000.0, 20_000.0)
    assert verify["args"] | {"draft": [1, 2], "accepted": 1, "tokens": [1, 9], "decode_us": 20_000} == verify["args"]


def test_sessions_do_not_share_lanes() -> None:
    """Two that are verified in one batch."""
    trace = Trace()
    for session in (1, 2):
        show(trace, (1, replace(verify_request(5, []), session=session)))
    for session in (1, 2):
        show(trace, (40, replace(verdict(5, [7], 0, 30), session=session)))
    events = check(document(trace.records))
    assert [event["pid"] for event in events if event["name"] == "verify 0"] == [1, 2]
    assert {event["dur"] for event in events if event["name"] == "verify 0"} == {30_000.0}


def test_only_the_latest_is_kept() -> None:
    trace = Trace(max_records=50)
    Watched(scripted(), scripted(), observers=[trace]).run_watched(Overlap(), n_predict=60)
    page = document(trace.records, trace.n_forgotten)
    assert len(trace.records) == 50
    assert page["otherData"]["records_forgotten"] == trace.n_forgotten > 0
    check(page)


# --- the file ------------------------------------------------------------------------------------------------------


def fill(path: Path, then: Callable[[], object] = lambda: None) -> None:
    with tracing(str(path)) as trace:
        assert trace is not None
        show(trace, (1, verify_request(5, [])))
        then()


def failing(exists: bool) -> None:
    assert not exists, "written too early"
    raise RuntimeError


def test_the_file_is_written_when_the_work_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with pytest.raises(RuntimeError):
        fill(path, then=lambda: failing(path.exists()))
    check(json.loads(path.read_text()))
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_written_where_nothing_ran(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("older")
    with tracing(str(path)):
        pass
    assert path.read_text() == "older"
    with tracing("") as trace:
        assert trace is None


@pytest.mark.parametrize("name", ["none/t.json", ".", "file/t.json", "x" * 300])
def test_a_path_that_cannot_be_written_is_an_error_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"log\.trace: /"), tracing(str(tmp_path / name)):
        raise AssertionError("the work began")


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(ConfigError, match="no file"), tracing("/dev/null"):
        raise AssertionError("the work began")


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "t.json")
    fill(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "t.json").is_file()


def test_a_file_that_can_no_longer_be_written_is_one_error(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        fill(folder / "t.json", then=folder.rmdir)
