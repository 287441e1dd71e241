"""Many sessions in one worker: decoded together, and none ever sees another's state.

The state machine begins, asks, steps, cancels and ends sessions in any order. After every step the rows that a worker
says it holds are those that the engine holds, and every reply is the one that the session would have had alone.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from draft_worker.worker import DraftWorker
from outrider.engine.scripted import ScriptedEngine, mix
from outrider.types import SamplingParams
from outrider.wire.messages import DraftRequest, DraftTokens, Failure, Message, Process, Verdict, VerifyRequest
from outrider.worker.slots import SlotWorker
from target_worker.worker import TargetWorker
from tests.harness import GREEDY, scripted
from tests.state.alone import Alone

N_SEQ = 3
SAMPLINGS = [GREEDY, SamplingParams(temp=1.0, seed=3, repeat_penalty=1.2)]
PROMPTS = [list(b"Once upon"), list(b"Once more"), list(b"Twice")]


def held(engine: ScriptedEngine, tokens: list[int]) -> int:
    """The state of a sequence that holds exactly these tokens."""
    state = mix(engine.script.seed)
    for token in tokens:
        state = mix(state ^ (token + 1))
    return state


class Talk:
    """One session as its coordinator sees it: what is committed, and which request is unanswered."""

    def __init__(self, alone: Alone, prompt: list[int], sampling: SamplingParams, kind: str) -> None:
        self.alone, self.prompt, self.sampling, self.kind = alone, prompt, sampling, kind
        self.text = list(prompt)
        self.waiting: Message | None = None
        self.draft: list[int] = []


class Workers(RuleBasedStateMachine):
    """Both kinds of worker with `N_SEQ` sequences each."""

    @initialize(checkpoint=st.booleans(), n_batch=st.sampled_from([4, 512]))
    def start(self, checkpoint: bool, n_batch: int) -> None:
        self.script = f"seed=3,checkpoint={checkpoint:d}"
        engines = [scripted(self.script, n_seq=N_SEQ, n_batch=n_batch, n_ctx=64) for _ in range(2)]
        self.workers: dict[str, SlotWorker[Any]] = {
            "target": TargetWorker(engines[0]),
            "draft": DraftWorker(engines[1]),
        }
        self.talks: dict[int, Talk] = {}
        self.next_session = 1

    @rule(
        prompt=st.sampled_from(PROMPTS), sampling=st.sampled_from(SAMPLINGS), kind=st.sampled_from(["target", "draft"])
    )
    def begin(self, prompt: list[int], sampling: SamplingParams, kind: str) -> None:
        alone = Alone(self.workers[kind], self.next_session)
        replies = alone.begin(len(prompt), sampling, draft_sampling="coupled")
        n_there = sum(talk.kind == kind for talk in self.talks.values())
        if n_there == N_SEQ:
            assert [reply.code for reply in replies if isinstance(reply, Failure)] == ["no_slot"]
            return
        assert replies == []
        self.talks[self.next_session] = Talk(alone, prompt, sampling, kind)
        self.next_session += 1

    def some(self, data: st.DataObject) -> Talk:
        return self.talks[data.draw(st.sampled_from(sorted(self.talks)))]

    @precondition(lambda self: self.talks)
    @rule(
        data=st.data(),
        draft=st.lists(st.integers(0, 299), max_size=4),
        own=st.integers(0, 3),
        n_max=st.integers(1, 4),
        n_steps=st.sampled_from([0, 1, 2, 12]),
    )
    def ask(self, data: st.DataObject, draft: list[int], own: int, n_max: int, n_steps: int) -> None:
        """Also while another request of the session is unanswered: the new one replaces it. `own`: so many tokens of the
        draft are right."""
        talk = self.some(data)
        if len(talk.text) > 40:
            return
        right = self.solo(talk, []).tokens[:1] if own and talk.kind == "target" else []
        for _ in range(own - 1 if right else 0):
            right += self.solo(talk, right).tokens[len(right) :][:1]
        talk.draft = right + draft
        prefix = talk.alone._prefix(talk.text)
        if talk.kind == "target":
            talk.waiting = VerifyRequest(*prefix, talk.draft, 0, False)
        else:
            talk.waiting = DraftRequest(*prefix, n_max, 0, 0.0, 0, 0, True)
        self.take(self.workers[talk.kind].handle(talk.waiting))
        self.step(talk.kind, n_steps)

    @precondition(lambda self: self.talks)
    @rule(data=st.data(), cut=st.integers(0, 4))
    def replay(self, data: st.DataObject, cut: int) -> None:
        """The text may also become shorter: that is a rollback of committed text."""
        talk = self.some(data)
        talk.text = talk.text[: max(len(talk.text) - cut, len(talk.prompt))]
        talk.waiting = None
        self.take(self.workers[talk.kind].handle(Process(*talk.alone._prefix(talk.text))))

    @rule(kind=st.sampled_from(["target", "draft"]), n=st.integers(1, 6))
    def go_on(self, kind: str, n: int) -> None:
        self.step(kind, n)

    def step(self, kind: str, n: int) -> None:
        for _ in range(n):
            if self.workers[kind].has_work():
                self.take(self.workers[kind].step())

    @precondition(lambda self: self.talks)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A cancel is an End at any point."""
        talk = self.some(data)
        talk.alone.end()
        del self.talks[talk.alone.session]

    @rule(kind=st.sampled_from(["target", "draft"]), sure=st.integers(0, 7))
    def reset(self, kind: str, sure: int) -> None:
        if sure:
            return
        self.workers[kind].reset()
        self.talks = {number: talk for number, talk in self.talks.items() if talk.kind != kind}

    def take(self, replies: list[Message]) -> None:
        for reply in replies:
            talk = self.talks[reply.session]  # type: ignore[attr-defined]
            assert talk.waiting is not None
            assert reply.round == talk.waiting.round  # type: ignore[attr-defined]
            expected = self.solo(talk, talk.draft)
            if isinstance(reply, Verdict):
                assert isinstance(expected, Verdict)
                assert (reply.tokens, reply.row_hashes) == (expected.tokens, expected.row_hashes)
                if not reply.end_of_text:
                    talk.text += reply.tokens
            else:
                assert isinstance(reply, DraftTokens)
                assert isinstance(expected, DraftTokens)
                assert (reply.tokens, reply.probs) == (expected.tokens, expected.probs)
                talk.text += reply.tokens[:2]
            talk.waiting = None

    def solo(self, talk: Talk, draft: list[int]) -> Any:
        """What a fresh worker with no other session answers."""
        make: Any = TargetWorker if talk.kind == "target" else DraftWorker
        alone = Alone(make(scripted(self.script, n_ctx=64)))
        alone.begin(len(talk.prompt), talk.sampling, draft_sampling="coupled")
        if talk.kind == "target":
            return alone.verify(talk.text, draft)
        n_max = talk.waiting.n_max if isinstance(talk.waiting, DraftRequest) else 1
        return alone.draft(talk.text, n_max)

    @invariant()
    def caches_are_right(self) -> None:
        for worker in getattr(self, "workers", {}).values():
            bound = [slot.cache for slot in worker.bound_slots()]
            assert sorted(cache.seq for cache in [*bound, *worker._free]) == list(range(N_SEQ))
            for cache in [*bound, *worker._free]:
                assert worker.engine.length(cache.seq) == len(cache.tokens)
                assert worker.engine._states[cache.seq][-1] == held(worker.engine, cache.tokens)

    @invariant()
    def slots_are_those_of_the_sessions(self) -> None:
        for kind, worker in getattr(self, "workers", {}).items():
            assert sorted(worker.slots) == sorted(n for n, talk in self.talks.items() if talk.kind == kind)
            assert worker.n_waiting() == sum(
                talk.waiting is not None for talk in self.talks.values() if talk.kind == kind
            )


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=settings.default.max_examples // 5, stateful_step_count=40)


def test_a_new_text_makes_the_request_before_it_void() -> None:
    """Nobody answers what is no longer asked, and nothing of its draft is left."""
    for worker in (TargetWorker(scripted(n_batch=4)), DraftWorker(scripted(n_batch=4))):
        alone = Alone(worker)
        alone.begin(4)
        text = list(b"Once upon")
        if isinstance(worker, TargetWorker):
            worker.handle(alone.verify_request(text, list(b"xyz")))
        else:
            worker.handle(DraftRequest(*alone._prefix(text), 3, 0, 0.0, 0, 0, True))
        assert worker.step() == []
        assert worker.n_waiting() == 1
        alone.rollback(text[:6])
        while worker.has_work():
            assert worker.step() == []
        assert worker.n_waiting() == 0
        assert worker.slots[1].cache.tokens == text[:5]
