"""The recorded facts that need no model, and the runner that holds them against the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden import __main__ as command
from tests.golden.runner import NOTE, Outcome, check_file, check_folder, golden_files

DATA = Path(__file__).parents[1] / "data" / "golden"
WITH_MODELS = ("draft_simple", "draft_chain")
TOPICS = sorted(path.name for path in DATA.iterdir() if path.name not in WITH_MODELS)


@pytest.mark.parametrize("topic", TOPICS)
def test_recordings_match(topic: str) -> None:
    outcomes = list(check_folder(DATA / topic))
    assert outcomes
    wrong = [f"{o.path.name}: {o.differences or o.skipped}" for o in outcomes if o.differences or o.skipped]
    assert not wrong


def test_every_topic_of_ours_has_files() -> None:
    ngram = {"ngram_simple", "ngram_map_k", "ngram_map_k4v", "ngram_mod", "ngram_cache"}
    assert ngram | {"chained", "multi_seq", "calls", "n_max"} <= set(TOPICS)


def altered(tmp_path: Path, topic: str, change: str) -> Outcome:
    """The outcome of a recording in which one fact was changed."""
    source = golden_files(DATA / topic)[0]
    data = json.loads(source.read_bytes())
    match change:
        case "draft":
            row = next(row for row in data["rounds"] if row[5])
            row[5][0] += 1
        case "counter":
            data["stats"][0]["n_call_draft"] += 1
        case "rounds":
            data["rounds"].pop()
        case "n_max":
            data["n_max_spec"] += 1
        case "state":
            data["state"][0] = [*data["state"][0], {}]
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(data))
    return check_file(path)


@pytest.mark.parametrize("topic", ["ngram_map_k", "ngram_mod", "ngram_cache"])
@pytest.mark.parametrize("change", ["counter", "rounds", "n_max", "state"])
def test_a_changed_fact_is_a_difference(tmp_path: Path, topic: str, change: str) -> None:
    assert altered(tmp_path, topic, "none").differences == ()
    assert len(altered(tmp_path, topic, change).differences) == 1


def test_a_changed_draft_is_a_difference(tmp_path: Path) -> None:
    assert "rounds[" in altered(tmp_path, "chained", "draft").differences[0]


def test_a_changed_call_is_a_difference(tmp_path: Path) -> None:
    data = json.loads((DATA / "calls" / "result_not_empty_ngram-mod.json").read_bytes())
    data["crashed_at_op"] = 5
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(data))
    assert check_file(path).differences == ("failed at: expected 5, got 0",)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"header": {}}', '{"header": 3}', '{"header": {"topic": "ngram_mod"}}', '{"x": NaN}']
)
def test_what_is_no_recording_is_a_difference(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    assert len(check_file(path).differences) == 1


@pytest.mark.parametrize("topic", ["no_such_topic", "../x", "runner", "os", 3])
def test_an_unknown_topic_is_skipped(tmp_path: Path, topic: object) -> None:
    path = tmp_path / "unknown.json"
    path.write_text(json.dumps({"header": {"topic": topic}}))
    outcome = check_file(path)
    assert outcome.differences == ()
    assert outcome.skipped == "no check for this topic"


def run(monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    monkeypatch.setattr("sys.argv", ["golden", str(folder)])
    return command.main()


def test_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, tmp_path) == 2
    assert run(monkeypatch, DATA / "n_max") == 0
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.json").write_text("{}")
    assert run(monkeypatch, tmp_path) == 1
    assert "x.json: no golden file" in capsys.readouterr().out


def test_report_tells_topics_reasons_notes_and_differences() -> None:
    outcomes = [
        Outcome(Path("a"), "one"),
        Outcome(Path("b"), "one", ("differs",)),
        Outcome(Path("c"), "two", skipped="no model"),
        Outcome(Path("d"), "two", notes=(f"{NOTE}close",)),
    ]
    lines = command.report(outcomes).splitlines()
    assert lines[1].split() == ["one", "1", "1", "0"]
    assert lines[2].split() == ["two", "1", "0", "1"]
    assert lines[3:] == ["skipped: two: no model (1 files)", "b: differs", "d: note: close"]
