"""One worker and one session without a coordinator: requests are made by hand, replies are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from outrider.history import History
from outrider.types import SamplingParams
from outrider.wire.messages import Begin, DraftRequest, DraftTokens, End, Message, Rollback, Verdict, VerifyRequest
from outrider.worker.slots import SlotWorker
from tests.harness import GREEDY

MessageT = TypeVar("MessageT", bound=Message)


class Alone:
    """Session `session` in `worker`. Texts are sent whole, so any text may follow any other."""

    def __init__(self, worker: SlotWorker[Any], session: int = 1) -> None:
        self.worker, self.session = worker, session
        self.round = 0

    def begin(self, prompt_len: int, sampling: SamplingParams = GREEDY, **fields: Any) -> list[Message]:
        defaults: dict[str, Any] = {
            "choice": 0,
            "row_hashes": True,
            "reuse_rows": True,
            "grammar": None,
            "synth_rates": [],
            "draft_sampling": "greedy",
            "report_progress": False,
        }
        begin = Begin(1, self.session, 1, 0, prompt_len, sampling, prompt_len, **{**defaults, **fields})
        return self.worker.handle(begin)

    def verify_request(self, text: Sequence[int], draft: Sequence[int] = ()) -> VerifyRequest:
        return VerifyRequest(*self._prefix(text), list(draft), 0, False)

    def verify(self, text: Sequence[int], draft: Sequence[int] = ()) -> Verdict:
        return self._ask(self.verify_request(text, draft), Verdict)

    def draft(self, text: Sequence[int], n_max: int) -> DraftTokens:
        return self._ask(DraftRequest(*self._prefix(text), n_max, 0, 0.0, 0, 0, True), DraftTokens)

    def rollback(self, text: Sequence[int]) -> None:
        assert self.worker.handle(Rollback(*self._prefix(text))) == []

    def end(self) -> None:
        assert self.worker.handle(End(1, self.session, 1, 0, 1)) == []

    def _prefix(self, text: Sequence[int]) -> tuple[Any, ...]:
        self.round += 1
        return 1, self.session, self.round, 0, len(text), History(text).hash, 0, list(text)

    def _ask(self, request: Message, kind: type[MessageT]) -> MessageT:
        replies = self.worker.handle(request)
        while self.worker.has_work():
            replies += self.worker.step()
        (reply,) = [reply for reply in replies if getattr(reply, "session", None) == self.session]
        assert isinstance(reply, kind), reply
        return reply
