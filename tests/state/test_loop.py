"""The work loop of a worker, with a link that is only lists."""

from __future__ import annotations

from collections import deque

import msgspec

from draft_worker.worker import DraftWorker
from outrider.wire.codec import encode
from outrider.wire.messages import DraftTokens, Failure, Message, Ready, Shutdown, Welcome
from outrider.worker.loop import send_all, work
from tests.harness import scripted
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
