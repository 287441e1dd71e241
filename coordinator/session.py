"""One request as a pure state machine: messages in, commands out. No socket, no clock, no thread, no randomness.

A session owns the committed text. Workers are told what it is and may forget it at any time; whatever they answer is
held against the five numbers of the request (incarnation, session, round, epoch, committed length) before it counts.

    IDLE ──start──▶ DRAFTING ──DraftTokens──▶ VERIFYING ──Verdict──▶ DRAFTING … ──▶ DONE
                        └── no draft wanted, or lost ──▶ ┘

The attributes belong together: change them only through the methods of the first part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from coordinator.counts import Counts
from coordinator.instructions import Command, Emit, Finished, FinishReason, Part, Send
from coordinator.replies import answers, may_ask_again
from coordinator.request import Request
from coordinator.schedule import RoundPlan, Schedule
from coordinator.text import TextStream
from outrider.decoding.limits import draft_budget
from outrider.decoding.stats import RequestStats
from outrider.history import History
from outrider.speculators.base import Worth
from outrider.speculators.chain import Chain, Member
from outrider.speculators.session import SessionSpeculators
from outrider.speculators.types import DRAFT_SIMPLE
from outrider.types import ModelFacts, WorkerRole
from outrider.wire.messages import (
    MAX_DRAFT,
    Accept,
    Begin,
    DraftRequest,
    DraftTokens,
    End,
    Failure,
    FailureCode,
    Message,
    Process,
    Progress,
    Rollback,
    SessionMessage,
    Verdict,
    VerifyRequest,
)

#: After so many rounds in which nothing was found, nothing is expected in the next. (A round trip is a percent of a decode;
#: a draft that is found all the same loses a decode.)
QUIET = 64
#: A request may cost so many targets without getting any further.
MAX_TARGETS_LOST = 1


class Phase(Enum):
    IDLE = "idle"
    DRAFTING = "drafting"
    VERIFYING = "verifying"
    DONE = "done"


@dataclass(slots=True)
class Peer:
    """A worker as this session knows it."""

    incarnation: int
    facts: ModelFacts
    begun: bool = False
    known_len: int = 0  # committed tokens that it has been told


class Session:
    """See the module's docstring. Times are seconds of the caller's clock; they are only kept, never asked for."""

    def __init__(self, request: Request, schedule: Schedule, chain: Chain | None = None) -> None:
        self.request = request
        self.schedule = schedule
        #: Speculators of this session alone; the draft worker is a member that drafts elsewhere.
        self.chain = chain if chain is not None else Chain([Member(t, 0, None) for t in request.speculation.types])
        self._speculators = SessionSpeculators(self.chain, request.prompt, request.prediction)
        self.history = History(request.prompt)
        self.text = request.text if request.text is not None else TextStream(request.stops)
        self.counts = Counts()
        self.phase = Phase.IDLE
        self.round = 0
        self.epoch = 0
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.error_code: FailureCode | None = None
        self.row_hashes: list[int] = []
        self.parts: list[Part] = []  # one for each generated token
        self.notes: list[str] = []  # why speculation is not what was asked for, in order
        self.n_first = 0  # tokens of the first round: they are not part of the generation rate
        self.started_at = self.first_token_at = self.finished_at = 0.0
        self._peers: dict[WorkerRole, Peer] = {}
        self.target_facts: ModelFacts  # of the target, or of the last one while there is none
        self._waiting: SessionMessage | None = None  # the request whose reply is due
        self._draft: list[int] = []  # what the target is asked to verify
        self._n_in_vain = 0  # rounds in a row in which nothing was found by looking it up
        self._failures: dict[WorkerRole, int] = {"target": 0, "draft": 0}
        self._n_targets_lost = 0  # since the last verdict, while one was due
        self._draft_off: str | None = None  # why this session asks for no more drafts
        self._tested = defaultdict[str, Counts](Counts)  # by type of speculation

    # --- what the outside calls ----------------------------------------------------------------------------------

    @property
    def generated(self) -> list[int]:
        """Tokens committed after the prompt."""
        return self.history.tokens[len(self.request.prompt) :]

    @property
    def context_full(self) -> bool:
        """Did the text end because the target's context is full?"""
        return self.finish_reason == "length" and self.n_generated != self.request.n_predict

    @property
    def n_generated(self) -> int:
        return len(self.history) - len(self.request.prompt)

    @property
    def speculates(self) -> bool:
        """Could the next round have a draft, as far as this session knows?"""
        return self._looks_up or self._model_drafts

    @property
    def _looks_up(self) -> bool:
        """Is there a speculator without a model?"""
        return any(member.speculator is not None for member in self.chain.members)

    @property
    def _finds_nothing(self) -> bool:
        """Is no draft to be expected of speculators without a model?"""
        return not self._looks_up or self._n_in_vain >= QUIET

    @property
    def _model_drafts(self) -> bool:
        """Can the draft worker be asked?"""
        peer = self._peers.get("draft")
        can = self._draft_off is None and peer is not None and len(self.history) <= peer.facts.n_ctx
        return can and self.request.speculation.uses_draft

    @property
    def waits_for(self) -> WorkerRole | None:
        """The worker whose reply is due."""
        if self.phase is Phase.DRAFTING:
            return "draft"
        return "target" if self.phase is Phase.VERIFYING else None

    def stats(self) -> RequestStats:
        """What each speculator did. Accepted counts what the target sampled too, committed what is in the text."""
        of_types = {
            member.type: member.counters.stats() + self._tested[member.type].tested() for member in self.chain.members
        }
        return RequestStats(self.counts.rounds, self.n_generated, of_types)

    def start(self, now: float) -> list[Command]:
        """The first round; both workers read the prompt at the same time."""
        self.started_at = now
        commands = self._start_round(now)
        if self.phase is Phase.DRAFTING:
            commands += [*self._begin("target"), self._with_prefix("target", Process)]
        return commands

    def worker_ready(self, role: WorkerRole, incarnation: int, facts: ModelFacts) -> list[Command]:
        """A worker is there, for the first time or again. A round that waits for the target is asked for anew."""
        if role == "draft" and self._peers.get("draft") is None and self.phase is not Phase.IDLE:
            self.notes.append(f"draft worker rejoined at token {self.n_generated}")
        self._peers[role] = Peer(incarnation, facts)
        if role == "target":
            self.target_facts = facts
        if self.phase is Phase.VERIFYING and role == "target":
            return self._verify()
        return []

    def worker_lost(self, role: WorkerRole, reason: str, now: float, *, same_process: bool = False) -> list[Command]:
        """A draft that is gone costs its drafts; a target that is gone is waited for (or the caller gives up), unless it was
        lost before on the same tokens: then they are the likely reason. `same_process`: only its connection is gone."""
        had = self._peers.pop(role, None)
        if had is None or self.phase is Phase.DONE:
            return []
        if role == "target":
            self._n_targets_lost += self.phase is Phase.VERIFYING and not same_process
            if self._n_targets_lost > MAX_TARGETS_LOST:
                why = f"the target worker was lost {self._n_targets_lost} times on the same request: {reason}"
                return self._finish("error", now, why, "worker_lost")
            return []
        self.notes.append(f"draft worker lost at token {self.n_generated}: {reason}")
        return self._verify() if self.phase is Phase.DRAFTING else []

    def handle(self, message: Message, now: float) -> list[Command]:
        """A reply of a worker. One that does not belong to the request at hand changes nothing and is counted."""
        if isinstance(message, Progress):
            return self._on_progress(message)
        if not self._is_due(message):
            if isinstance(message, Failure) and self._refuses_request(message):
                return self._finish("error", now, message.reason, message.code)
            self.counts.n_stale += 1
            return []
        match message:
            case DraftTokens():
                return self._on_draft(message, now)
            case Verdict():
                return self._on_verdict(message, now)
            case Failure():
                return self._on_failure(message, now)
        self.counts.n_stale += 1
        return []

    def resend(self, role: WorkerRole) -> list[Command]:
        """The reply that is due of this worker seems lost: ask again. Requests are idempotent."""
        self.counts.n_resent += 1
        return self._ask_again()

    def wake(self, now: float) -> list[Command]:
        """The time of a WakeAt has come. In lockstep nobody waits for a time."""
        return []

    def prepare(self) -> None:
        """The workers have what they need: work out what the next reply will ask for, as far as it is known."""

    def expects(self, role: WorkerRole) -> bool:
        """Is a reply of this worker due?"""
        return self.waits_for == role

    def explain(self) -> dict[str, Any] | None:
        """What the schedule knows and chose, where it chooses."""
        return None

    def cancel(self, now: float) -> list[Command]:
        """End here, in whatever phase."""
        return [] if self.phase is Phase.DONE else self._finish("cancelled", now)

    def fail(self, now: float, error: str, code: FailureCode | None = None) -> list[Command]:
        """The same, for a reason that lies outside."""
        return [] if self.phase is Phase.DONE else self._finish("error", now, error, code)

    # --- messages ------------------------------------------------------------------------------------------------

    def _stamp(self, role: WorkerRole) -> tuple[int, int, int, int, int]:
        return self._peers[role].incarnation, self.request.session, self.round, self.epoch, len(self.history)

    def _prefix(self, role: WorkerRole) -> tuple[int, int, list[int]]:
        """prefix_hash, keep_len, tail for this worker, which knows the whole text from now on."""
        peer = self._peers[role]
        keep_len, peer.known_len = peer.known_len, len(self.history)
        return self.history.hash, keep_len, self.history.tokens[keep_len:]

    def _with_prefix(self, role: WorkerRole, kind: type[Process] | type[Rollback]) -> Send:
        return Send(role, kind(*self._stamp(role), *self._prefix(role)))

    def _begin(self, role: WorkerRole) -> list[Command]:
        """Begin, unless this worker has had it."""
        peer, request = self._peers[role], self.request
        if peer.begun:
            return []
        peer.begun, peer.known_len = True, 0
        for_target, spec = role == "target", request.speculation
        begin = Begin(
            *self._stamp(role),
            sampling=request.sampling,
            prompt_len=len(request.prompt),
            choice=request.choice,
            row_hashes=request.row_hashes,
            reuse_rows=request.cache_prompt,
            grammar=request.grammar if for_target else None,
            synth_rates=list(spec.synth_rates) if for_target else [],
            draft_sampling=spec.draft_sampling,
            report_progress=for_target and request.report_progress,
        )
        return [Send(role, begin)]

    def _is_due(self, message: Message) -> bool:
        waiting, role = self._waiting, self.waits_for
        if role is None or waiting is None or not isinstance(message, SessionMessage):
            return False
        expected: type[Message] = Verdict if role == "target" else DraftTokens
        return isinstance(message, (expected, Failure)) and answers(message, waiting)

    def _on_progress(self, progress: Progress) -> list[Command]:
        target = self._peers.get("target")
        if target is None or progress.incarnation != target.incarnation or self.n_generated:
            self.counts.n_stale += 1
            return []
        return [Emit("", (), n_held=progress.n_held)]

    def _refuses_request(self, failure: Failure) -> bool:
        """Does the target say that it cannot serve this request, while the draft is still at work?"""
        target = self._peers.get("target")
        return (
            self.phase is Phase.DRAFTING
            and target is not None
            and (failure.incarnation, failure.session) == (target.incarnation, self.request.session)
            and failure.code == "bad_request"
        )

    def _ask_again(self) -> list[Command]:
        role = self.waits_for
        if role is None or role not in self._peers:
            return []
        self._peers[role].known_len = 0
        if role == "target":
            return self._verify()
        assert isinstance(self._waiting, DraftRequest)
        return self._ask_draft(self._waiting.n_max)

    # --- a round -------------------------------------------------------------------------------------------------

    def _start_round(self, now: float) -> list[Command]:
        if len(self.history) >= self.target_facts.n_ctx:
            return self._finish("length", now)
        self.round += 1
        self._look_up()
        if self._draft:
            return self._verify() + self._keep_draft_worker_near()
        plan = self._plan()
        if plan.n_max > 0:
            return self._ask_draft(plan.n_max)
        return self._verify()

    def _look_up(self) -> None:
        """This round's draft is that of the first speculator without a model that has one."""
        budget = min(self._room(), MAX_DRAFT)
        draft = self._speculators.draft(budget, self._worth()) if budget > 0 and self._looks_up else None
        self._draft = [] if draft is None else draft.tokens
        self._n_in_vain = 0 if self._draft else self._n_in_vain + 1

    def _worth(self) -> Worth | None:
        """How many tokens of a draft that cost nothing are worth their rows; None: that is not known here."""
        return None

    def _keep_draft_worker_near(self) -> list[Command]:
        """While the target verifies another's draft, the draft worker reads what was committed meanwhile."""
        if not self.request.speculation.uses_draft or self._draft_obstacle() is not None:
            return []
        return [*self._begin("draft"), self._with_prefix("draft", Process)]

    def _plan(self) -> RoundPlan:
        settings = self.request.speculation
        if not settings.uses_draft:
            return RoundPlan(n_max=0)
        obstacle = self._draft_obstacle()
        if obstacle is not None:
            if obstacle not in self.notes and ("draft" in self._peers or not self.notes):
                self.notes.append(obstacle)
            return RoundPlan(n_max=0)
        return self.schedule.plan(settings, self._draft_budget())

    def _draft_budget(self) -> int:
        """The most tokens that a draft may have now: the contexts and the rest of the request bound it."""
        return max(min(self._room(), self._peers["draft"].facts.n_ctx - len(self.history) + 1), 0)

    def _room(self) -> int:
        """The most tokens that any draft may have now, by the target's context and the rest of the request."""
        n_ctx, n_generated = self.target_facts.n_ctx, self.n_generated
        return draft_budget(n_ctx, len(self.history) - 1, self.request.n_predict, n_generated)

    def _draft_obstacle(self) -> str | None:
        """Why no draft can be asked for now."""
        peer = self._peers.get("draft")
        if peer is None:
            return "draft worker not connected"
        if self._draft_off is not None:
            return self._draft_off
        if len(self.history) > peer.facts.n_ctx:
            return f"draft context full: n_ctx = {peer.facts.n_ctx} of the draft worker"
        n_shared = peer.facts.n_vocab
        unknown = next((token for token in self.history.tokens[peer.known_len :] if token >= n_shared), None)
        if unknown is not None:
            self._draft_off = f"token {unknown} is unknown to the draft model (n_vocab = {n_shared})"
        return self._draft_off

    def _ask_draft(self, n_max: int) -> list[Command]:
        settings, begin = self.request.speculation, self._begin("draft")
        prefix = (*self._stamp("draft"), *self._prefix("draft"))
        with_probs = self.request.report_probs  # a schedule that reads them asks for them
        request = DraftRequest(*prefix, n_max, settings.n_min, settings.p_min, 0, 0, with_probs)
        self._waiting, self.phase = request, Phase.DRAFTING
        return [*begin, Send("draft", request)]

    def _on_draft(self, draft: DraftTokens, now: float) -> list[Command]:
        self._failures["draft"] = 0
        self.counts.n_dropped += draft.n_dropped
        self.counts.draft_decode_us += draft.decode_us
        assert isinstance(self._waiting, DraftRequest)
        tokens = draft.tokens[: self._waiting.n_max]
        self._draft = tokens[: self._n_known(tokens)]
        self._speculators.drafted_outside(DRAFT_SIMPLE, len(self._draft), draft.decode_us, draft.n_dropped)
        return self._verify()

    def _n_known(self, tokens: Sequence[int]) -> int:
        """How many of them the target has, up to the first that it lacks."""
        n_vocab = self.target_facts.n_vocab
        return next((i for i, token in enumerate(tokens) if token >= n_vocab), len(tokens))

    def _verify(self) -> list[Command]:
        self.phase = Phase.VERIFYING
        if "target" not in self._peers:
            self._waiting = None  # asked for as soon as a target is there
            return []
        begin = self._begin("target")
        ids = (*self._stamp("target"), *self._prefix("target"))
        request = VerifyRequest(*ids, self._draft, self._verify_credit(), self._goes_on())
        self._waiting = request
        return [*begin, Send("target", request)]

    def _verify_credit(self) -> int:
        """Position up to which the target may begin with what it was not yet asked for."""
        return len(self.history) + self._room() if not self.request.speculation.synth_rates else 0

    def _goes_on(self) -> bool:
        """Will the next round have no draft, as far as can be said now? Then the target need not wait to be asked."""
        return self._finds_nothing and not self._model_drafts

    def _on_verdict(self, verdict: Verdict, now: float) -> list[Command]:
        if verdict.n_tested > len(self._draft):
            return self._finish("error", now, "target worker: a verdict contradicts itself")
        self._failures["target"] = self._n_targets_lost = 0
        self.counts.target_decode_us += verdict.decode_us
        self.counts.n_verified += verdict.accepted
        if not self.n_generated:
            self.first_token_at = now
            self.n_first = len(verdict.tokens)
            self.counts.n_cached = verdict.n_reused
        parts, reason = self._commit(verdict)
        n_committed = len(parts)
        n_accepted = min(verdict.accepted, n_committed)
        if self._draft:
            self._speculators.accept(verdict.accepted)
            self._tested[self.chain.last_type(0) or ""].add_round(verdict.n_tested, n_accepted)
        self._speculators.commit(verdict.tokens[:n_committed])
        self.counts.add_round(verdict.n_tested, n_accepted)
        self.row_hashes += verdict.row_hashes[:n_committed]
        self.parts += parts
        released = "".join([part.text for part in parts])
        emit = Emit(released, tuple(verdict.tokens[:n_committed]), tuple(parts))
        commands = self._finish(reason, now) if reason is not None else self._go_on(verdict, n_accepted, now)
        # The workers go on while the text is delivered; only what ends the session comes after it.
        return [emit, *commands] if self.phase is Phase.DONE else [*commands, emit]

    def _go_on(self, verdict: Verdict, n_accepted: int, now: float) -> list[Command]:
        """The text does not end here: on to the next round."""
        rollback, accept = self._tell_draft(n_accepted)
        commands = [*rollback, *self._start_round(now)]
        # A DraftRequest says by its prefix what was accepted.
        return commands + accept if self.phase is Phase.VERIFYING else commands

    def _commit(self, verdict: Verdict) -> tuple[list[Part], FinishReason | None]:
        """Commit token by token until the text ends: what was committed, and why it ended."""
        if self.request.n_predict == 0:
            return [], "length"  # the prompt was to be read, and nothing else
        parts: list[Part] = []
        reason: FinishReason | None = None
        n_generated, last = self.n_generated, len(verdict.tokens) - 1
        for i, (token, piece) in enumerate(zip(verdict.tokens, verdict.pieces, strict=True)):
            logprobs = verdict.logprobs[i] if verdict.logprobs else None
            parts.append(Part(token, piece, self.text.push(piece), logprobs, i < verdict.accepted))
            if self.text.stopped_by is not None or (verdict.end_of_text and i == last):
                reason = "stop"
            elif n_generated + i + 1 == self.request.n_predict:
                reason = "length"
            if reason is not None:
                break
        self.history.extend(verdict.tokens[: len(parts)])
        return parts, reason

    def _tell_draft(self, n_accepted: int) -> tuple[list[Command], list[Command]]:
        """After a mismatch the rollback to the target's own token; and Accept, which nobody waits for."""
        if not self._draft or "draft" not in self._peers or not self._peers["draft"].begun:
            return [], []
        if self._draft_obstacle() is not None:
            return [], []
        rollback: list[Command] = []
        if n_accepted < len(self._draft):
            self.epoch += 1
            rollback.append(self._with_prefix("draft", Rollback))
        by_other = self.chain.last_type(0) != DRAFT_SIMPLE
        return rollback, [Send("draft", Accept(*self._stamp("draft"), n_accepted, by_other))]

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def _on_failure(self, failure: Failure, now: float) -> list[Command]:
        role = self.waits_for
        assert role is not None
        self._failures[role] += 1
        if may_ask_again(role, failure, self._failures[role]):
            self._peers[role].begun &= failure.code != "unknown_session"
            return self._ask_again()
        if role == "target":
            prefix = "" if failure.code == "bad_request" else "target worker: "
            return self._finish("error", now, prefix + failure.reason, failure.code)
        self._draft_off = f"draft worker: {failure.reason}"
        return self._verify()

    def _finish(
        self, reason: FinishReason, now: float, error: str | None = None, code: FailureCode | None = None
    ) -> list[Command]:
        self.finish_reason, self.error, self.error_code, self.finished_at = reason, error, code, now
        self.phase, self._waiting = Phase.DONE, None
        commands: list[Command] = []
        rest = "" if self.request.text_goes_on and self.context_full else self.text.finish()
        if rest:
            commands.append(Emit(rest, ()))
        commands += [Send(role, End(*self._stamp(role))) for role, peer in self._peers.items() if peer.begun]
        return [*commands, Finished(reason, error, code)]
