"""Counters for Prometheus: our own names, and llama-server's for those who have its dashboards.

The four `spec_decode…` counters have vLLM's names behind both prefixes. They grow when a request is finished, from the
same numbers that its answer reports; sums over answers therefore equal the differences here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coordinator.admission import Admission
from coordinator.api.memory import memory_of
from coordinator.assemble import needs_draft
from coordinator.service import Service
from outrider.config import Config

PREFIXES = ("outrider:", "llamacpp:")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


@dataclass(slots=True)
class Totals:
    """Sums over finished requests."""

    requests: dict[str, int] = field(default_factory=dict)  # by finish reason
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    tokens_predicted: int = 0
    tokens_predicted_seconds: float = 0.0
    decode_steps: int = 0
    n_tokens_max: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)
    stale_replies: int = 0
    requests_resent: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    n_after_first: int = 0

    def add(self, answer: dict[str, Any]) -> None:
        t = answer["timings"]
        reason = str(answer["finish_reason"])
        self.requests[reason] = self.requests.get(reason, 0) + 1
        self.prompt_tokens += t["prompt_n"]
        self.prompt_tokens_cached += t["cache_n"]
        self.prompt_seconds += t["prompt_ms"] / 1e3
        self.tokens_predicted += t["predicted_n"]
        self.n_after_first += max(t["predicted_n"] - 1, 0)
        self.tokens_predicted_seconds += t["predicted_ms"] / 1e3
        self.decode_steps += t["rounds"]
        self.n_tokens_max = max(self.n_tokens_max, answer["prompt_tokens"] + t["predicted_n"])
        self.drafts += t["draft_n_per_pos"][0] if t["draft_n"] else 0
        self.draft_tokens += t["draft_n"]
        self.accepted_tokens += t["draft_n_accepted"]
        per_pos = t["draft_n_accepted_per_pos"]
        self.accepted_per_pos += [0] * (len(per_pos) - len(self.accepted_per_pos))
        for i, n in enumerate(per_pos):
            self.accepted_per_pos[i] += n
        self.stale_replies += t["stale_replies"]
        self.requests_resent += t["requests_resent"]
        self.draft_seconds += t["draft_decode_ms"] / 1e3
        self.verify_seconds += t["target_decode_ms"] / 1e3


class Metrics:
    """`add` and `text` are called in the coordinator's thread."""

    def __init__(self, service: Service, admission: Admission, config: Config) -> None:
        self.totals = Totals()
        self._service, self._admission, self._config = service, admission, config
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(self._families))
        self._to_first = self._histogram(
            "time_to_first_token_seconds", "From the start of a request to its first token."
        )
        self._between = self._histogram("inter_token_latency_seconds", "Mean time between the tokens of a request.")
        self._whole = self._histogram("request_seconds", "From the start of a request to its end.")

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(f"outrider:{name}", help, buckets=_SECONDS, registry=self._registry)

    def add(self, answer: dict[str, Any]) -> None:
        """A request is finished."""
        self.totals.add(answer)
        t = answer["timings"]
        self._whole.observe((t["prompt_ms"] + t["predicted_ms"]) / 1e3)
        if t["predicted_n"]:
            self._to_first.observe(t["prompt_ms"] / 1e3)
        if t["predicted_n"] > 1:
            self._between.observe(t["predicted_ms"] / 1e3 / (t["predicted_n"] - 1))

    def text(self) -> bytes:
        # llama-server's one counter that is no total: the library insists on the ending.
        return generate_latest(self._registry).replace(b":n_tokens_max_total ", b":n_tokens_max ")

    def _families(self) -> Iterator[Metric]:
        for prefix in PREFIXES:
            for name, help, value in self._counters():
                yield _counter(prefix + name, help, value)
            for name, help, value in self._gauges():
                yield GaugeMetricFamily(prefix + name, help, value=value)
            yield self._per_position(prefix)
        yield from self._own()

    def _counters(self) -> Iterable[tuple[str, str, float]]:
        t = self.totals
        return (
            ("prompt_tokens_total", "Prompt tokens processed.", t.prompt_tokens),
            ("prompt_tokens_cached_total", "Prompt tokens taken from the cache.", t.prompt_tokens_cached),
            ("prompt_seconds_total", "Time until the first token.", t.prompt_seconds),
            ("tokens_predicted_total", "Tokens generated.", t.tokens_predicted),
            ("tokens_predicted_seconds_total", "Time from the first token to the last.", t.tokens_predicted_seconds),
            ("n_decode_total", "Token rounds, summed over requests.", t.decode_steps),
            ("n_tokens_max", "Longest text so far, prompt included.", t.n_tokens_max),
            ("spec_decode_num_drafts_total", "Rounds that verified a draft.", t.drafts),
            ("spec_decode_num_draft_tokens_total", "Draft tokens verified.", t.draft_tokens),
            ("spec_decode_num_accepted_tokens_total", "Draft tokens accepted.", t.accepted_tokens),
        )

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        t, n_running = self.totals, len(self._admission.running)
        return (
            ("prompt_tokens_seconds", "Prompt tokens per second.", _ratio(t.prompt_tokens, t.prompt_seconds)),
            (
                "predicted_tokens_seconds",
                "Tokens generated per second.",
                _ratio(t.n_after_first, t.tokens_predicted_seconds),
            ),
            ("requests_processing", "Requests that run.", n_running),
            ("requests_deferred", "Requests that wait for a free sequence.", len(self._admission.waiting)),
            ("n_busy_slots_per_decode", "Requests that run, now.", n_running),
        )

    def _per_position(self, prefix: str) -> Metric:
        name = prefix + "spec_decode_num_accepted_tokens_per_pos"
        family = CounterMetricFamily(name, "Draft tokens accepted, by position.", labels=["position"])
        for i, n in enumerate(self.totals.accepted_per_pos):
            family.add_metric([str(i)], n)
        return family

    def _own(self) -> Iterator[Metric]:
        t, service = self.totals, self._service
        requests = CounterMetricFamily("outrider:requests", "Requests finished, by reason.", labels=["reason"])
        for reason, n in sorted(t.requests.items()):
            requests.add_metric([reason], n)
        yield requests
        workers = GaugeMetricFamily("outrider:worker_up", "Is a usable worker connected?", labels=["role"])
        restarts = CounterMetricFamily("outrider:worker_restarts", "Workers started again.", labels=["role"])
        for role in ("target", "draft") if needs_draft(self._config) else ("target",):
            workers.add_metric([role], float(service.connections.of_role(role) is not None))
            if service.launcher is not None:
                restarts.add_metric([role], service.launcher.n_restarts.get(role, 0))
        yield workers
        yield restarts
        yield from self._memory()
        degraded = needs_draft(self._config) and service.draft is None
        yield GaugeMetricFamily("outrider:degraded", "Drafting is on, and there is no draft worker.", value=degraded)
        yield _counter("outrider:draft_seconds_total", "Time inside the draft's decodes.", t.draft_seconds)
        yield _counter("outrider:verify_seconds_total", "Time inside the target's decodes.", t.verify_seconds)
        rejected = CounterMetricFamily("outrider:draft_wasted_tokens", "Draft tokens of no use.", labels=["reason"])
        rejected.add_metric(["rejected"], t.draft_tokens - t.accepted_tokens)
        yield rejected
        yield _counter("outrider:stale_replies_total", "Replies that came too late.", t.stale_replies)
        yield _counter("outrider:requests_resent_total", "Questions asked again of a worker.", t.requests_resent)
        yield _counter("outrider:foreign_messages_total", "Messages of no connection.", service.n_dropped)

    def _memory(self) -> Iterator[Metric]:
        """Of this process and the workers that it started."""
        launcher = self._service.launcher
        pids: dict[str, int] = {"coordinator": os.getpid()}
        pids |= {worker.role: worker.pid for worker in launcher.workers.values()} if launcher else {}
        now = GaugeMetricFamily("outrider:resident_memory_bytes", "Memory that a process holds.", labels=["role"])
        peak = GaugeMetricFamily("outrider:resident_memory_max_bytes", "The most it has held.", labels=["role"])
        for role, pid in pids.items():
            memory = memory_of(pid)
            if memory is not None:
                now.add_metric([role], memory.resident)
                peak.add_metric([role], memory.peak)
        yield now
        yield peak


class _Collector:
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()

    def describe(self) -> list[Metric]:
        return []  # so that registering asks for no values


def _counter(name: str, help: str, value: float) -> Metric:
    """A counter under exactly this name; the library would add `_total` to one that lacks it."""
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), help, value=value)
    metric = Metric(name, help, "counter")
    metric.add_sample(name, {}, value)
    return metric


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0
