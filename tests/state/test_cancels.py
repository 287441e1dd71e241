"""Cancels at random points: both workers are free again, and those who stay notice nothing."""

from __future__ import annotations

import pytest

from coordinator.overlap import Overlap
from coordinator.schedule import Lockstep
from outrider.types import SamplingParams
from tests.crowd import Crowd, caches_are_exact
from tests.harness import make_request, plain, scripted

PREFIX = list(b"The same beginning of all the requests, long enough to be shared. ")


def requests(n: int, n_predict: int = 60, **options: object) -> list:  # type: ignore[type-arg]
    sampling = SamplingParams(temp=0.9, seed=7)
    return [
        make_request([*PREFIX, 65 + i % 20], n_predict, sampling, draft_sampling="coupled", **options) for i in range(n)
    ]


@pytest.mark.parametrize(
    ("schedule", "cancels"), [(Lockstep, 0.01), (Overlap, 0.006)]
)  # per event: overlap has more of them
@pytest.mark.parametrize("checkpoint", [0, 1])
@pytest.mark.parametrize("disagree", [0, 25])
def test_survivors_equal_solo_runs(
    checkpoint: int, disagree: int, schedule: type[Lockstep] | type[Overlap], cancels: float
) -> None:
    wanted = requests(30)
    script = f"seed=3,checkpoint={checkpoint}"
    target, draft = scripted(script, n_seq=3), scripted(f"{script},disagree={disagree}", n_seq=3)
    crowd = Crowd(target, draft, cancels=cancels, seed=disagree, schedule=schedule(), check=caches_are_exact)
    sessions = crowd.run(wanted)
    finished = [session for session in sessions if session.finish_reason != "cancelled"]
    assert 5 < len(finished) < 28
    for session in finished:
        assert session.generated == plain(scripted(script), session.request).generated
    for session in set(sessions) - set(finished):
        expected = plain(scripted(script), session.request).generated
        assert session.generated == expected[: len(session.generated)]
    assert all(not worker.slots and len(worker._free) == 3 for worker in crowd.workers.values())
    assert all(worker.n_waiting() == 0 for worker in crowd.workers.values())


def test_a_draft_like_its_target_stays_perfect_beside_cancelled_neighbours() -> None:
    crowd = Crowd(
        scripted("seed=3", n_seq=4), scripted("seed=3", n_seq=4), cancels=0.003, seed=1, check=caches_are_exact
    )
    sessions = crowd.run(requests(24, n_predict=200, n_max=4))
    finished = [session for session in sessions if session.finish_reason == "length"]
    assert len(finished) >= 4
    for session in sessions:
        assert session.counts.n_verified == session.counts.draft_n
        assert session.counts.n_resent == 0
    for session in finished:
        assert session.counts.rounds == 40


@pytest.mark.parametrize("together", [False, True])
def test_every_sequence_gains_alike(together: bool) -> None:
    """One after the other, and all at once."""
    crowd = Crowd(scripted("seed=3", n_seq=4), scripted("seed=3", n_seq=4))
    wanted = requests(4, n_predict=40, n_max=4)
    sessions = crowd.run(wanted) if together else [crowd.run([request])[0] for request in wanted]
    assert [session.counts.rounds for session in sessions] == [8, 8, 8, 8]
    assert all(session.counts.draft_n == session.counts.draft_n_accepted for session in sessions)
