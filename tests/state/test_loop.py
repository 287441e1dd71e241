"""The work loop of a worker, with a link that is only lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
import pytest

from draft_worker.worker import DraftWorker
from outrider.engine.base import Output, Span
from outrider.engine.scripted import ScriptedEngine
from outrider.wire.codec import encode
from outrider.wire.messages import (
    Begin,
    DraftTokens,
    Failure,
    Message,
    Ready,
    Shutdown,
    Verdict,
    VerifyRequest,
    Welcome,
)
from outrider.wire.prefix_hash import EMPTY, extend
from outrider.worker.loop import send_all, work
from target_worker.worker import TargetWorker
from tests.harness import GREEDY, scripted
from tests.wire_samples import SAMPLES


class Lists:
    """A link that hands over one batch of messages after the other, and checks what is sent."""

    def __init__(self, *batches: list[Message]) -> None:
        self.batches = deque(batches)
        self.sent: list[Message] = []
        self.n_waiting: list[int] = []

    def receive(self, timeout_s: float | None = 0.0) -> list[Message]:
        return self.batches.popleft()

    def send(self, message: Message) -> None:
        encode(message)
        self.sent.append(message)

    def report(self, n_waiting: int) -> None:
        self.n_waiting.append(n_waiting)


def test_a_new_welcome_voids_what_was_and_is_answered() -> None:
    worker = DraftWorker(scripted())
    begin = msgspec.structs.replace(SAMPLES["Begin"], incarnation=1)
    link = Lists([begin], [Welcome(1, 2, 0.5)], [begin], [Shutdown(2, "end")])
    work(link, worker, 1)
    (ready,) = link.sent
    assert isinstance(ready, Ready)
    assert ready.incarnation == 2
    assert worker.slots == {}  # the second Begin came with the old number


def test_an_invalid_reply_becomes_the_failure_of_its_request() -> None:
    link = Lists()
    good = SAMPLES["DraftTokens"]
    assert isinstance(good, DraftTokens)
    send_all(link, [msgspec.structs.replace(good, probs=[float("nan")] * len(good.tokens)), good])
    failure, delivered = link.sent
    assert isinstance(failure, Failure)
    assert (failure.code, failure.session, failure.round) == ("engine", good.session, good.round)
    assert delivered is good


DECODE_S = 0.05


class SlowEngine(ScriptedEngine):
    """A decode takes 50 ms of the test's clock. `rows`: those of each decode, by session."""

    def __init__(self) -> None:
        super().__init__(n_seq=4)
        self.now_s = 0.0
        self.rows: list[list[int]] = []

    def decode(self, spans: Sequence[Span]) -> Output:
        self.now_s += DECODE_S
        self.rows.append([len(span.tokens) for span in spans])
        return super().decode(spans)


class Sessions:
    """A link to a coordinator that verifies nothing drafted: sessions 1 and 2 ask again `late_s` after their answers, one at
    a time, until they have so many tokens."""

    def __init__(self, engine: SlowEngine, n_tokens: int, late_s: dict[int, float]) -> None:
        self._engine, self._n_tokens, self._late_s = engine, n_tokens, late_s
        self._tokens = {session: [session] for session in late_s}
        self._due: list[tuple[float, Message]] = [(0.0, self._begin(session)) for session in late_s]
        self._due += [(0.0, self._verify(session)) for session in late_s]

    def _begin(self, session: int) -> Begin:
        changes = {"incarnation": 1, "session": session, "sampling": GREEDY, "prompt_len": 1, "grammar": None}
        return msgspec.structs.replace(SAMPLES["Begin"], synth_rates=[], **changes)  # type: ignore[arg-type, return-value]

    def _verify(self, session: int) -> VerifyRequest:
        tokens = self._tokens[session]
        n = len(tokens)
        return VerifyRequest(1, session, n, 0, n, extend(EMPTY, tokens), max(n - 1, 0), tokens[-1:], [], 0, False)

    def receive(self, timeout_s: float | None = 0.0) -> list[Message]:
        if not self._due:
            return [Shutdown(1, "end")]
        at, message = min(self._due, key=lambda entry: entry[0])
        deadline = at if timeout_s is None else self._engine.now_s + timeout_s
        self._engine.now_s = max(self._engine.now_s, min(at, deadline))
        if at > self._engine.now_s:
            return []
        self._due.remove((at, message))
        return [message]

    def send(self, message: Message) -> None:
        assert isinstance(message, Verdict), message
        tokens = self._tokens[message.session]
        tokens += message.tokens
        if len(tokens) < self._n_tokens:
            self._due.append((self._engine.now_s + self._late_s[message.session], self._verify(message.session)))

    def report(self, n_waiting: int) -> None:
        pass


def decodes(late_s: dict[int, float], n_tokens: int = 40) -> list[list[int]]:
    engine = SlowEngine()
    worker = TargetWorker(engine, clock=lambda: round(engine.now_s * 1e9))
    work(Sessions(engine, n_tokens, late_s), worker, 1)
    return engine.rows


@pytest.mark.parametrize("late_s", [{1: 0.001, 2: 0.003}, {1: 0.0, 2: 0.0045}, {1: 0.002, 2: 0.001, 3: 0.004}])
def test_sessions_that_ask_again_in_a_moment_share_each_decode(late_s: dict[int, float]) -> None:
    rows = decodes(late_s)
    assert rows[1:] == [[1] * len(late_s)] * (len(rows) - 1)


def test_who_takes_long_is_seldom_waited_for() -> None:
    """The other session makes a round in 50 ms and its own 1 ms; the late one asks 30 ms after its answers."""
    engine = SlowEngine()
    worker = TargetWorker(engine, clock=lambda: round(engine.now_s * 1e9))
    work(Sessions(engine, 40, {1: 0.001, 2: 0.03}), worker, 1)
    assert engine.now_s < len(engine.rows) * (DECODE_S + 0.001) + 0.03 + 6 * 0.005
