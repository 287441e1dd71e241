"""Decodes that are made larger because that makes them shorter."""

from __future__ import annotations

import msgspec
import pytest

from outrider.decoding.row_costs import RowCosts
from outrider.engine.base import Output, Span
from outrider.engine.scripted import ScriptedEngine
from outrider.types import RowTime
from outrider.wire.messages import Verdict
from target_worker.padding import n_padding
from target_worker.worker import TargetWorker
from tests.harness import Pair, make_request, plain, scripted
from tests.state.alone import Alone


def costs(**ms: float) -> RowCosts:
    found = RowCosts()
    for name, value in ms.items():
        found.add(int(name[1:]), value)
    return found


@pytest.mark.parametrize(
    ("n_rows", "most", "expected"),
    [(1, 100, 0), (2, 100, 2), (3, 100, 1), (4, 100, 0), (2, 1, 0), (5, 100, 0), (3, 0, 0)],
)
def test_rows_are_added_up_to_the_next_cheap_number(n_rows: int, most: int, expected: int) -> None:
    assert n_padding(n_rows, most, costs(n1=96, n2=120, n3=150, n4=105, n8=180)) == expected


def test_a_gain_within_the_noise_is_none() -> None:
    assert n_padding(3, 100, costs(n3=100, n4=97)) == 0
    assert n_padding(3, 100, RowCosts()) == 0


def sizes_of_decodes(engine: ScriptedEngine) -> list[int]:
    """Grows by the number of rows with each decode of this engine."""
    sizes: list[int] = []
    decode = engine.decode

    def counted(spans: list[Span]) -> Output:
        sizes.append(sum(len(span.tokens) for span in spans))
        return decode(spans)

    engine.decode = counted  # type: ignore[method-assign, assignment]
    return sizes


def test_padding_changes_no_token_and_no_row() -> None:
    """On an engine whose logits tell a wrong cache."""
    request = make_request(n_predict=60, n_max=2, row_hashes=True)
    expected = plain(scripted("seed=7"), request)
    target = scripted("seed=7")
    target.facts = target.facts.__class__(
        **{name: getattr(target.facts, name) for name in target.facts.__struct_fields__ if name != "row_times"},
        row_times=[RowTime(1, 900), RowTime(2, 1900), RowTime(3, 1950), RowTime(4, 1000)],
    )
    sizes = sizes_of_decodes(target)
    pair = Pair(target, scripted("seed=7,disagree=30"))
    assert isinstance(pair.workers["target"], TargetWorker)
    session = pair.run(request)
    assert session.generated == expected.generated
    assert session.row_hashes == expected.row_hashes
    assert 4 in sizes
    assert session.counts.draft_n <= 2 * session.counts.rounds


def test_sessions_that_share_a_decode_share_its_padding() -> None:
    """Three rows would take longer than four."""
    target = scripted(n_ctx=64, n_seq=3)
    target.facts = msgspec.structs.replace(target.facts, row_times=[RowTime(3, 1950), RowTime(4, 1000)])
    sizes = sizes_of_decodes(target)
    worker = TargetWorker(target)
    sessions = [Alone(worker, number) for number in (1, 2, 3)]
    texts = [[number, 20, 30] for number in (1, 2, 3)]
    for session, text in zip(sessions, texts, strict=True):
        session.begin(3)
        text += session.verify(text).tokens
    del sizes[:]
    for session, text in zip(sessions, texts, strict=True):
        assert worker.handle(session.verify_request(text)) == []
    shared = [reply.tokens for reply in worker.step() if isinstance(reply, Verdict)]
    assert sizes == [4]
    assert shared == [session.verify(text).tokens for session, text in zip(sessions, texts, strict=True)]
