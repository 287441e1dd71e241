"""Going back, by every kind of memory and where it fails: time may be lost, the text may not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coordinator.schedule import Lockstep, RoundPlan, SpeculationSettings
from outrider.engine.base import Output, Span
from outrider.engine.scripted import ScriptedEngine, mix
from outrider.errors import CacheError, EngineError
from tests.harness import Pair, make_request, plain, scripted


class Failing(ScriptedEngine):
    """Every n-th step back, or every n-th decode, does not work. 0: all do."""

    def __init__(self, script: str, *, back: int = 0, decode: int = 0, partial: bool = False, **options: int) -> None:
        super().__init__(f"scripted:{script}", **options)
        self.back, self.every_decode, self.partial = back, decode, partial
        self.n_back = self.n_decodes = self.n_failed = 0

    def _fail_back(self, seq: int) -> None:
        self.n_back += 1
        if self.back and self.n_back % self.back == 0:
            self.n_failed += 1
            if self.partial:
                del self._states[seq][1 + self.length(seq) // 2 :]  # against the contract: harmless all the same
            raise CacheError(f"sequence {seq}: it cannot be cut today")

    def truncate(self, seq: int, length: int) -> None:
        if 0 < length < self.length(seq):
            self._fail_back(seq)
        super().truncate(seq, length)

    def restore(self, seq: int, checkpoint: object) -> None:
        self._fail_back(seq)
        super().restore(seq, checkpoint)

    def decode(self, spans: Sequence[Span]) -> Output:
        self.n_decodes += 1
        if self.every_decode and self.n_decodes % self.every_decode == 0:
            self.n_failed += 1
            raise EngineError("out of memory, for once")
        return super().decode(spans)


class Alternate(Lockstep):
    """Rounds with drafts of the given lengths, over and over."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths, self.n = lengths, 0

    def plan(self, settings: SpeculationSettings, budget: int) -> RoundPlan:
        self.n += 1
        return RoundPlan(min(self.lengths[self.n % len(self.lengths)], budget))


@pytest.mark.parametrize("checkpoint", [0, 1])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_rollback_that_fails_costs_a_replay_and_no_text(
    checkpoint: int, partial: bool, role: str, every: int
) -> None:
    script = f"seed=3,checkpoint={checkpoint}"
    failing = Failing(script + (",disagree=40" if role == "draft" else ""), back=every, partial=partial)
    other = scripted(script + (",disagree=40" if role == "target" else ""))
    request = make_request(n_predict=80, n_max=4, row_hashes=True)
    pair = Pair(failing, other) if role == "target" else Pair(other, failing)
    session = pair.run(request)
    expected = plain(scripted("seed=3"), request)
    assert failing.n_failed > 5
    assert session.generated == expected.generated
    assert session.row_hashes == expected.row_hashes
    assert session.counts.draft_n_accepted > 20


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("every", [2, 5])
def test_a_decode_that_fails_is_asked_for_again(role: str, every: int) -> None:
    failing = Failing("seed=3", decode=every)
    other = scripted("seed=3,disagree=30")
    request = make_request(n_predict=60, row_hashes=True)
    session = (Pair(failing, other) if role == "target" else Pair(other, failing)).run(request)
    expected = plain(scripted("seed=3" if role == "target" else "seed=3,disagree=30"), request)
    assert failing.n_failed > 3
    assert (session.generated, session.row_hashes) == (expected.generated, expected.row_hashes)


def test_a_target_that_never_decodes_again_ends_the_request_with_its_reason() -> None:
    session = Pair(Failing("seed=3", decode=1), scripted("seed=3")).run(make_request())
    assert session.finish_reason == "error"
    assert "out of memory" in (session.error or "")


@settings(max_examples=settings.default.max_examples // 4)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    checkpoints=st.tuples(st.booleans(), st.booleans()),
    disagree=st.sampled_from([0, 30, 100]),
    n_batch=st.sampled_from([3, 512]),
)
def test_rounds_with_and_without_drafts_in_any_order(
    lengths: list[int], checkpoints: tuple[bool, bool], disagree: int, n_batch: int
) -> None:
    """A round without a draft after one with a draft reads the right state, also where states are restored."""
    request = make_request(n_predict=50, row_hashes=True)
    target = scripted(f"seed=3,checkpoint={checkpoints[0]:d}", n_batch=n_batch)
    draft = scripted(f"seed=3,checkpoint={checkpoints[1]:d},disagree={disagree}", n_batch=n_batch)
    session = Pair(target, draft).run(request, Alternate(lengths))
    expected = plain(scripted("seed=3"), request)
    assert (session.generated, session.row_hashes) == (expected.generated, expected.row_hashes)


class NearTies(ScriptedEngine):
    """Its two best tokens change places with the number of rows in the batch, as near-ties do on real kernels."""

    def decode(self, spans: Sequence[Span]) -> Output:
        self.n_rows = sum(len(span.tokens) for span in spans)
        return super().decode(spans)

    def _fill(self, row: NDArray[np.float32], state: int) -> None:
        super()._fill(row, state)
        if mix(state ^ self.n_rows) % 3 == 0:
            first, second = row.argsort()[:-3:-1]
            row[first], row[second] = row[second], row[first]


@pytest.mark.parametrize("checkpoint", [0, 1])
@pytest.mark.parametrize("n_max", [1, 3, 8])
def test_every_round_commits_a_token_though_a_replay_accepts_less(checkpoint: int, n_max: int) -> None:
    script = f"scripted:seed=3,checkpoint={checkpoint}"
    session = Pair(NearTies(script), scripted("seed=3")).run(make_request(n_predict=120, n_max=n_max))
    assert len(session.generated) == 120
    assert session.counts.rounds <= 120
    assert session.counts.n_resent == 0


def test_a_replay_is_short_where_states_are_restored() -> None:
    """The rows evaluated again per rejection are those behind the last checkpoint, not the whole text."""
    target = scripted("seed=3,checkpoint=1")
    pair = Pair(target, scripted("seed=3,disagree=40"))
    rows = 0
    decode = target.decode

    def counting(spans: Sequence[Span]) -> Output:
        nonlocal rows
        rows += sum(len(span.tokens) for span in spans)
        return decode(spans)

    target.decode = counting  # type: ignore[method-assign]
    session = pair.run(make_request(n_predict=300, n_max=4))
    assert rows < len(session.history) + 12 * session.counts.rounds
