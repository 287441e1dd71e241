"""From a configuration to a running coordinator with its workers, and back to nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from time import perf_counter_ns

import msgspec

from coordinator.auto import Auto
from coordinator.launcher import Launcher
from coordinator.observer import Observer
from coordinator.overlap import Overlap
from coordinator.request import Request
from coordinator.schedule import Lockstep, Schedule, SpeculationSettings
from coordinator.service import Limits, Service
from coordinator.signals import Signals
from outrider.config import Config, has_draft_worker, to_json, why_off
from outrider.config.convert import speculator_params
from outrider.config.sharing import share_processors
from outrider.connect import open_router
from outrider.decoding.synthetic import resolve_rates
from outrider.errors import OutriderError, RequestError, WorkerLostError
from outrider.speculators.chain import Chain
from outrider.speculators.factory import Shared, load_shared, make_chain
from outrider.speculators.types import DRAFT_SIMPLE, longest_draft
from outrider.types import WorkerRole
from outrider.wire.messages import MAX_DRAFT
from outrider.wire.transport import RouterTransport


class Interrupted(OutriderError):
    """A signal ended us; nothing went wrong."""

    def __init__(self, signals: Signals) -> None:
        super().__init__("interrupted")
        self.exit_code = signals.exit_code


def worker_names(config: Config) -> dict[str, WorkerRole]:
    """The workers that may connect, and their roles."""
    names: dict[str, WorkerRole] = {config.target.name: "target"}
    if needs_draft(config):
        names[config.draft.name] = "draft"
    return names


def needs_draft(config: Config) -> bool:
    """Is there a draft worker, and something for it to do?"""
    return has_draft_worker(config) and DRAFT_SIMPLE in config.speculative.types


def make_launcher(config: Config, endpoint: str) -> Launcher:
    """For those workers that run on this host. Each gets the whole configuration and the coordinator's real address."""
    located = msgspec.structs.replace(config, coordinator=msgspec.structs.replace(config.coordinator, address=endpoint))
    line = to_json(located)
    sections = {config.target.name: config.target, config.draft.name: config.draft}
    return Launcher(
        {
            name: (role, sections[name].model, line)
            for name, role in worker_names(config).items()
            if sections[name].launch
        },
        own_stderr=config.log.verbose,
        limit=config.coordinator.max_restarts,
        window_s=config.coordinator.restart_window_s,
    )


def make_schedule(config: Config) -> Schedule:
    match config.speculative.schedule:
        case "overlap":
            return Overlap()
        case "branches":
            return Overlap(config.speculative.draft_n_branches)
        case "auto":
            return Auto(not share_processors(config), config.speculative.draft_n_branches)
    return Lockstep()


def make_request(config: Config, prompt: list[int], prediction: Sequence[int] = ()) -> Request:
    """The request that a configuration describes, for these tokens of its prompt and of what the answer may repeat."""
    spec, generation = config.speculative, config.generation
    rates = synthetic_rates(config)
    if rates and generation.constraint is not None:
        raise RequestError("this coordinator accepts drafts at random (synthetic acceptance): it can obey no grammar")
    settings = SpeculationSettings(
        types=tuple(spec.types),
        off_reason=why_off(config),
        n_max=spec.draft_n_max,
        n_min=spec.draft_n_min,
        p_min=spec.draft_p_min,
        draft_sampling=spec.draft_sampling,
        synth_rates=tuple(rates),
    )
    return Request(
        session=0,
        prompt=prompt,
        sampling=config.sampling.params(),
        n_predict=generation.n_predict,
        prediction=prediction,
        stops=tuple(generation.stop),
        speculation=settings,
        row_hashes=generation.row_hashes,
        grammar=generation.constraint,
    )


def synthetic_rates(config: Config) -> list[float]:
    """The rates at which drafts are accepted whatever the target samples; empty: the target decides, as it should.

    Raises SyntheticAcceptanceError for settings that do not fit the longest draft."""
    spec = config.speculative
    n_max = min(longest_draft(spec.types, speculator_params(spec)), MAX_DRAFT)
    return resolve_rates(n_max, spec.synth_len, spec.synth_rates)


def load_tables(config: Config) -> Shared:
    """What the sessions of this process share: lookup files, and the pool of ngram-mod if it is to be shared."""
    return load_shared(config.speculative.types, speculator_params(config.speculative))


def make_session_chain(config: Config, shared: Shared) -> Chain:
    """Speculators for one session: nothing of an earlier one is in them."""
    spec = config.speculative
    return make_chain(spec.types, speculator_params(spec), shared=shared, model_outside=True, clock=_now_us)


def _now_us() -> int:
    return perf_counter_ns() // 1000


@contextmanager
def running(
    config: Config, signals: Signals, *, keep_target: bool = False, observer: Observer | None = None
) -> Iterator[tuple[Service, RouterTransport]]:
    """A service whose workers are ready. Whatever ends the block, no worker, socket or file is left.

    Raises what keeps a worker from getting ready, and Interrupted on a signal before that.
    """
    with started(config, keep_target=keep_target, observer=observer) as (service, transport):
        wait_until_ready(service, config, signals, lambda left: service.turn(left, [signals.fd]))
        yield service, transport


@contextmanager
def started(
    config: Config, *, keep_target: bool = False, observer: Observer | None = None
) -> Iterator[tuple[Service, RouterTransport]]:
    """A service whose workers are starting. Whatever ends the block, no worker, socket or file is left."""
    synthetic_rates(config)  # what is wrong with them is said before anything is started
    with closing(open_router(config.coordinator)) as transport:
        coordinator = config.coordinator
        service = Service(
            transport,
            worker_names(config),
            make_schedule(config),
            limits=Limits(
                coordinator.heartbeat_s,
                coordinator.lost_after_s,
                coordinator.stuck_after_s,
                coordinator.start_timeout_s,
            ),
            launcher=make_launcher(config, transport.endpoint),
            keep_target=keep_target,
            measure_draft=config.speculative.is_measured and share_processors(config),
            observer=observer,
        )
        try:
            service.start_workers()
            yield service, transport
        finally:
            service.shutdown("the coordinator ends", coordinator.grace_s)


def wait_until_ready(
    service: Service, config: Config, signals: Signals, turn: Callable[[float], object], *, draft_may_come: bool = False
) -> None:
    """`turn` (which takes the seconds that may pass) until every configured worker is ready. `draft_may_come`: one that is
    started on another host may also come later.

    Raises the error of the first that cannot be, and Interrupted on a signal."""
    deadline = service.clock() + config.coordinator.start_timeout_s
    awaited = {
        name: role
        for name, role in worker_names(config).items()
        if role == "target" or config.draft.launch or not draft_may_come
    }
    while True:
        waiting = [name for name, role in awaited.items() if service.connections.of_role(role) is None]
        for error in (service.fatal, *service.refused.values()):
            if error is not None:
                raise error
        if not waiting:
            gc.collect()
            gc.freeze()  # what is here now stays: not to be looked through again while requests run
            return
        if signals.received:
            raise Interrupted(signals)
        left = deadline - service.clock()
        if left <= 0:
            raise WorkerLostError(
                f"{' and '.join(waiting)}: not ready after coordinator.start_timeout_s ="
                f" {config.coordinator.start_timeout_s:g} s; look at its log, or raise the limit"
            )
        turn(left)
