"""Everything at once: one grid of drafts, lengths, samplers, grammars, stops, budgets, cancels, memories and schedules.

300 examples in the default run; 10,000 under the mark `nightly`.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.auto import Auto, make_session
from coordinator.instructions import Send
from coordinator.overlap import Overlap
from coordinator.schedule import Lockstep
from outrider.types import Grammar, SamplingParams
from outrider.wire.messages import Message
from tests.harness import Pair, make_request, plain, scripted
from tests.state.test_lossless import samplings

GRAMMARS: list[Grammar | None] = [None, None]
if find_spec("llguidance") is not None:
    GRAMMARS += [Grammar("gbnf", r"root ::= [^\x00-\x1f]+"), Grammar("gbnf", r'root ::= (" w" [0-9]+)+ | [a-z]{3,30}')]

GRID: dict[str, Any] = {
    "sampling": samplings,
    "limits": st.fixed_dictionaries(
        {
            "n_max": st.integers(0, 9),
            "n_min": st.integers(0, 2),
            "p_min": st.sampled_from([0.0, 0.6]),
            "draft_sampling": st.sampled_from(["greedy", "coupled"]),
        }
    ),
    "disagree": st.sampled_from([0, 15, 100]),
    "eos": st.sampled_from([0, 3]),
    "memory": st.tuples(st.booleans(), st.booleans()),
    "n_batch": st.sampled_from([3, 512]),
    "n_ctx": st.sampled_from([40, 512]),
    "n_predict": st.integers(1, 30),
    "stops": st.sampled_from([(), ("w2",), ("zz", "9", " w")]),
    "grammar": st.sampled_from(GRAMMARS),
    "schedule": st.sampled_from([Lockstep, Overlap, partial(Overlap, 6), Auto, partial(Auto, True, 6)]),
    "cancel_at": st.none() | st.integers(1, 30),
}


def check(
    sampling: SamplingParams,
    limits: dict[str, Any],
    disagree: int,
    eos: int,
    memory: tuple[bool, bool],
    n_batch: int,
    n_ctx: int,
    n_predict: int,
    stops: tuple[str, ...],
    grammar: Grammar | None,
    schedule: Any,
    cancel_at: int | None,
) -> None:
    request = make_request(
        sampling=sampling, n_predict=n_predict, stops=stops, grammar=grammar, row_hashes=True, **limits
    )
    script = f"seed=7,eos={eos}"
    expected = plain(scripted(script, n_ctx=n_ctx), request)
    target = scripted(f"{script},checkpoint={memory[0]:d}", n_batch=n_batch, n_ctx=n_ctx)
    draft = scripted(
        f"{script},disagree={disagree},checkpoint={memory[1]:d}", n_batch=n_batch, n_ctx=n_ctx, n_branches=6
    )
    pair = Pair(target, draft)
    if cancel_at is not None:
        cancelled_run(pair, request, schedule(), cancel_at, expected.generated)
    actual = pair.run(request, schedule())  # after a cancelled run: on what it left in the caches
    assert actual.generated == expected.generated
    assert actual.row_hashes == expected.row_hashes
    assert actual.text.text == expected.text.text
    assert actual.finish_reason == expected.finish_reason
    assert all(not worker.slots for worker in pair.workers.values())


def cancelled_run(pair: Pair, request: Any, schedule: Any, cancel_at: int, expected: list[int]) -> None:
    """The same request, cancelled when the n-th message is sent: what it committed is a beginning of the text."""
    session = make_session(request, schedule)
    for incarnation, role in enumerate(pair.workers, start=1):
        pair.connect(session, role, incarnation)
    seen = 0

    def count(role: str, message: Message) -> list[Message]:
        nonlocal seen
        seen += 1
        if seen == cancel_at:
            for command in session.cancel(pair.clock):
                if isinstance(command, Send):
                    pair.workers[command.role].handle(command.message)
        return [message] if seen < cancel_at else []

    pair.filter = count
    pair.drive(session, session.start(pair.clock))
    pair.filter = lambda role, message: [message]
    assert session.generated == expected[: len(session.generated)]


@given(**GRID)
def test_speculative_equals_plain(**case: Any) -> None:
    check(**case)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=10_000)
@given(**GRID)
def test_speculative_equals_plain_in_ten_thousand_cases(**case: Any) -> None:
    check(**case)
