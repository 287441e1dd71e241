"""Branches in the draft worker: which are opened, that they are what the draft would say there, and what becomes of them."""

from __future__ import annotations

import numpy as np
import pytest

from draft_worker.branches import Opening, n_worthwhile, openings
from draft_worker.worker import DraftWorker
from outrider.engine.base import Span
from outrider.history import History
from outrider.speculators.model import Drafting
from outrider.types import SamplingParams
from outrider.wire.messages import Begin, Branch, DraftRequest, DraftTokens, End
from tests.harness import scripted, ticking

PROMPT = list(b"Once upon a time")


def begin(temp: float = 0.0) -> Begin:
    return Begin(
        1,
        1,
        0,
        0,
        0,
        SamplingParams(temp=temp, ignore_eos=True),
        len(PROMPT),
        0,
        False,
        True,
        None,
        [],
        "coupled",
        False,
    )


def ride(text: list[int], credit: int, n_branches: int, epoch: int = 0, n_max: int = 4) -> DraftRequest:
    return DraftRequest(1, 1, 1, epoch, len(text), History(text).hash, 0, text, n_max, 0, 0.0, credit, n_branches, True)


def run(worker: DraftWorker, request: DraftRequest) -> list[DraftTokens]:
    """All that it tells until there is nothing left to do."""
    replies = worker.handle(request)
    while worker.has_work():
        replies += worker.step()
    assert all(isinstance(reply, DraftTokens) for reply in replies)
    return replies  # type: ignore[return-value]


def told(replies: list[DraftTokens]) -> tuple[list[int], dict[tuple[int, int], Branch]]:
    chain = [token for reply in replies for token in reply.tokens]
    return chain, {(branch.start, branch.tokens[0]): branch for reply in replies for branch in reply.branches}


def greedy_text(text: list[int], n: int) -> list[int]:
    """What the draft model writes on from this text."""
    engine, written = scripted("seed=7"), list(text)
    row = engine.decode([Span(0, 0, text, 1)]).logits[0]
    for _ in range(n):
        written.append(int(row.argmax()))
        row = engine.decode([Span(0, len(written) - 1, written[-1:], 1)]).logits[0]
    return written[len(text) :]


def new_worker(n_branches: int = 8) -> DraftWorker:
    return DraftWorker(scripted("seed=7", n_branches=n_branches), ticking())


def test_branches_say_what_the_model_says_there() -> None:
    worker = new_worker()
    worker.handle(begin())
    chain, branches = told(run(worker, ride(PROMPT, len(PROMPT) + 6, 8)))
    assert chain == greedy_text(PROMPT, 6)
    assert len(branches) == 8
    for (start, token), branch in branches.items():
        at = start - len(PROMPT)
        assert token != chain[at]
        assert branch.tokens[1:] == greedy_text([*PROMPT, *chain[:at], token], 4)


@pytest.mark.parametrize("n_branches", [0, 3])
def test_no_more_branches_than_asked_for(n_branches: int) -> None:
    worker = new_worker()
    worker.handle(begin())
    replies = run(worker, ride(PROMPT, len(PROMPT) + 6, n_branches))
    assert len(told(replies)[1]) == n_branches
    assert [reply.final for reply in replies] == [False] * (len(replies) - 1) + [True]


@pytest.mark.parametrize("epoch", [0, 1])  # the same: the coordinator does not know yet that its chain is wrong
def test_a_branch_that_the_text_takes_is_the_chain_and_needs_no_rows_again(epoch: int) -> None:
    worker = new_worker()
    worker.handle(begin())
    chain, branches = told(run(worker, ride(PROMPT, len(PROMPT) + 6, 8)))
    branch = next(branch for branch in branches.values() if branch.start == len(PROMPT) + 1)
    text = [*PROMPT, chain[0], *branch.tokens[:2]]
    replies = run(worker, ride(text, len(text) + 6, 8, epoch))
    assert replies[0].start == len(text)
    assert told(replies)[0] == greedy_text(text, 6)
    assert replies[0].tokens == branch.tokens[2:]  # told at once
    assert replies[0].n_evaluated == 0
    assert len(worker._spare) + len(worker.slots[1].branches) == 8


def test_branches_of_what_is_committed_make_room() -> None:
    worker = new_worker()
    worker.handle(begin())
    chain, _ = told(run(worker, ride(PROMPT, len(PROMPT) + 6, 8)))
    text = PROMPT + chain[:4]
    _, later = told(run(worker, ride(text, len(text) + 6, 8)))
    assert later
    assert all(start >= len(text) for start, _ in later)
    assert all(branch.position >= len(text) for branch in worker.slots[1].branches)


def test_an_ended_session_gives_its_branches_back() -> None:
    worker = new_worker()
    worker.handle(begin())
    run(worker, ride(PROMPT, len(PROMPT) + 6, 8))
    worker.handle(End(1, 1, 1, 0, 20))
    assert len(worker._spare) == 8
    assert all(worker.engine.length(cache.seq) == 0 for cache in worker._spare)


def test_a_memory_without_branches_drafts_its_chain() -> None:
    worker = DraftWorker(scripted("seed=7,checkpoint=1", n_branches=8), ticking())
    worker.handle(begin())
    chain, branches = told(run(worker, ride(PROMPT, len(PROMPT) + 6, 8)))
    assert (chain, branches) == (greedy_text(PROMPT, 6), {})


def test_rows_are_added_while_they_bring_more_than_they_cost() -> None:
    assert n_worthwhile([0.5, 0.4, 0.1], [1.0], lambda n: 1.0) == 3  # a step costs the same however wide
    assert n_worthwhile([0.5, 0.4, 0.1], [1.0], lambda n: float(n)) == 0
    assert n_worthwhile([0.5, 0.4, 0.1], [1.0], lambda n: 1 + 0.3 * (n - 1)) == 2
    assert n_worthwhile([0.01], [], lambda n: float(n)) == 1
    assert n_worthwhile([0.0], [], lambda n: float(n)) == 1  # a step that does nothing would be tried for ever


def test_openings_are_the_other_likely_tokens() -> None:
    worker = new_worker()
    worker.handle(begin())
    worker.handle(ride(PROMPT, len(PROMPT) + 3, 0))
    while worker.has_work():
        worker.step()
    drafting = worker.slots[1].last
    assert drafting is not None
    found = list(openings(drafting))
    assert {opening.index for opening in found} == {0, 1, 2}
    assert all(opening.token != drafting.tokens[opening.index] for opening in found)
    assert all(isinstance(opening, Opening) and 0 < opening.reach <= opening.prob < 1 for opening in found)


def test_a_draw_that_was_refused_is_none_of_the_rest() -> None:
    sure, unsure = np.zeros(64, np.float32), np.zeros(64, np.float32)
    sure[5] = 9.0
    drafting = Drafting(n_max=8, n_min=0, p_min=0.5, start=10)
    for row in (sure, sure, unsure):
        drafting.take(row)
    assert (len(drafting.tokens), len(drafting.draws), drafting.done) == (2, 3, True)
    rest = drafting.rest(1, n_max=8, p_min=0.0)
    assert (rest.start, len(rest.tokens), len(rest.draws)) == (11, 1, 1)
    rest.take(unsure)
    assert (len(rest.tokens), len(rest.draws)) == (2, 2)
