"""`--explain`: every number that the controller gives is shown, and nothing that was not measured is made up."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.auto import Auto
from coordinator.explain import explain
from coordinator.result import result
from coordinator.schedule import Lockstep
from tests.harness import Pair, make_request, scripted

CONTROLLER: dict[str, Any] = {
    "chosen": "overlap",
    "n": 3,
    "rounds_by_mode": {"off": 1, "lockstep": 4, "overlap": 20},
    "verify_ms": {"1": 40.0, "2": 42.0, "4": 46.0, "8": 54.0},  # keys of an answer that came as JSON
    "draft_step_ms": 8.0,
    "round_trip_ms": 2.5,
    "acceptance": 0.8,
    "predicted_per_second": {"off": 25.0, "lockstep": 38.0, "overlap": 50.0},
    "break_even_ms": {"lockstep": 61.4, "overlap": 60_000.0},
}


def answer(speed: float = 45.0, **changes: Any) -> dict[str, Any]:
    controller = {**CONTROLLER, **changes}
    speculation = {"status": "on", "reason": None, "schedule": "auto", "controller": controller}
    return {"speculation": speculation, "timings": {"predicted_per_second": speed}}


def lines(explained: str) -> dict[str, str]:
    return {line[:12].strip(): line[12:] for line in explained.splitlines()}


def test_everything_that_is_known_is_said() -> None:
    said = lines(explain(answer()))
    assert said["schedule"] == "auto, last choice: overlap, drafts of 3"
    assert said["rounds"] == "off 1, lockstep 4, overlap 20"
    assert "1: 40.0 ms, 2: 42.0 ms, 4: 46.0 ms, 8: 54.0 ms" in said["measured"]
    assert "draft step 8.0 ms; round trip 2.5 ms; acceptance 80%" in said["measured"]
    assert said["predicted"] == "off 25.0, lockstep 38.0, overlap 50.0 tokens/s"
    assert said["speed"].startswith("45.0 tokens/s, 1.80 x its own estimate of plain decoding (25.0)")
    assert said["why"] == "overlap promises 2.00 x plain decoding, the most"
    assert said["break-even"] == "lockstep pays up to a round trip of 61 ms; overlap pays at any round trip"
    assert max(map(len, explain(answer()).splitlines())) < 140


def test_drafting_that_does_not_pay_is_explained() -> None:
    predicted = {"off": 25.0, "lockstep": 20.0, "overlap": 22.0}
    limits = {"lockstep": -1.0, "overlap": -1.0}
    said = lines(explain(answer(chosen="off", n=0, predicted_per_second=predicted, break_even_ms=limits)))
    assert said["schedule"] == "auto, last choice: no drafts"
    assert said["why"] == "overlap promises 0.88 x plain decoding, too little to draft"
    assert said["break-even"] == "lockstep never pays; overlap never pays"


def test_what_was_not_measured_is_not_shown_as_zero() -> None:
    unknown = {"1": 0.0, "2": None}
    nothing: dict[str, Any] = {"draft_step_ms": 0.0, "round_trip_ms": 0.0, "break_even_ms": {"lockstep": None}}
    nothing["predicted_per_second"] = {"off": None, "overlap": 0.0}
    said = lines(explain(answer(speed=0.0, verify_ms=unknown, **nothing)))
    assert "0.0" not in "".join(said.values())
    assert "draft step not measured" in said["measured"]
    assert said["predicted"] == "nothing yet"
    assert said["why"] == "too little was measured to compare"
    assert "speed" not in said


@pytest.mark.parametrize("schedule", [Lockstep, Auto])
def test_a_real_answer_can_be_explained(schedule: Any) -> None:
    pair = Pair(scripted("seed=3"), scripted("seed=3,disagree=20"))
    said = lines(explain(result(pair.run(make_request(n_predict=60), schedule()))))
    assert said["schedule"].startswith("lockstep: fixed" if schedule is Lockstep else "auto, last choice")


def test_drafting_that_is_off_says_why() -> None:
    said = lines(explain(result(Pair(scripted()).run(make_request(n_predict=5)))))
    assert said["drafting"] == "off: draft worker not connected"
