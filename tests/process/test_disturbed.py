"""A draft worker that is stopped, killed, cut off or slow in mid-run, and comes back: same tokens, and drafts again; and one
behind a link whose delay changes with every piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import msgspec
import pytest

from bench.apart import Apart, Link, Run, apart, configuration, run
from bench.disturb import CASES, Case
from bench.theory import greedy_text
from outrider.config.schema import Sampling, Schedule

PROMPT = list(range(32, 64))
N_BEFORE, N_AFTER = 40, 20
SIZE = {"engine": "simulated", "ctx_size": 200_000}
TARGET = {"model": "simulated:seed=1,decode_ms=8,beta=0.02", **SIZE}
DRAFT = "simulated:seed=1,decode_ms=0.8,alpha=0.8"
OTHERS = [name for name in get_args(Schedule) if name != "auto"]
SCHEDULES = ["auto", *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)]


@dataclass
class Disturbance:
    """Harms the pair in mid-run, and mends it once the coordinator has given the draft worker up. Enough is when drafts
    are accepted again."""

    pair: Apart
    case: Case
    n_at_harm: int | None = None
    n_at_mend: int | None = None

    def __call__(self, so_far: Run) -> bool:
        assert self.case.harm is not None
        assert self.case.mend is not None
        n = len(so_far.times)
        if self.n_at_harm is None and n >= N_BEFORE and any(so_far.accepted):
            self.case.harm(self.pair)
            self.n_at_harm = n
        elif self.n_at_harm is not None and self.n_at_mend is None and self.pair.service.draft is None:
            self.case.mend(self.pair)
            self.n_at_mend = n
        return self.n_at_mend is not None and sum(so_far.accepted[self.n_at_mend :]) >= N_AFTER


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["stop", "kill", "cut"])
def test_a_draft_worker_that_goes_and_comes_changes_no_token(name: str, schedule: str) -> None:
    draft = {"model": DRAFT, **SIZE}
    config = configuration(TARGET, draft, schedule, 6, 100_000, heartbeat_s=0.1, lost_after_s=1.0)
    with apart(config, Link()) as pair:
        disturbance = Disturbance(pair, CASES[name])
        done = run(pair, PROMPT, disturbance)
    assert disturbance.n_at_mend is not None, "the draft worker was never missed"
    assert done.answer["finish_reason"] == "cancelled", "drafting was never resumed"
    tokens = done.answer["tokens"]
    assert tokens == greedy_text(1, len(tokens), PROMPT)
    for note in ("draft worker lost at token", "draft worker rejoined at token"):
        assert note in done.answer["speculation"]["reason"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_draft_that_is_slow_for_a_while_changes_no_token(schedule: str) -> None:
    first, last = len(PROMPT) + N_BEFORE, len(PROMPT) + 4 * N_BEFORE
    draft = {"model": f"{DRAFT},slow_from={first},slow_to={last},slowdown=50", **SIZE}
    config = configuration(TARGET, draft, schedule, 6, 100_000)
    with apart(config) as pair:
        done = run(pair, PROMPT, lambda so_far: sum(so_far.accepted[4 * N_BEFORE :]) >= N_AFTER)
    assert done.answer["finish_reason"] == "cancelled", "drafting was never resumed"
    tokens = done.answer["tokens"]
    assert tokens == greedy_text(1, len(tokens), PROMPT)


def sampled_text(schedule: str | None, link: Link | None) -> list[int]:
    """At a temperature, on engines whose logits tell a wrong cache; without a schedule the target decodes alone."""
    size = {"engine": "scripted", "ctx_size": 1000}
    draft = {"model": "scripted:seed=1,disagree=30", **size} if schedule else None
    config = configuration({"model": "scripted:seed=1", **size}, draft, schedule or "", 4, 60)
    config = msgspec.structs.replace(config, sampling=Sampling(temp=0.8, seed=7, repeat_penalty=1.1))
    with apart(config, link) as pair:
        return list(run(pair, PROMPT).answer["tokens"])


@pytest.mark.parametrize("tcp", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_sampled_text_is_the_same_through_a_link_of_any_delay(tcp: bool) -> None:
    expected = sampled_text(None, None)
    assert len(expected) == 60
    for schedule in get_args(Schedule):
        assert sampled_text(schedule, Link(0.002, 0.01, tcp)) == expected, schedule
