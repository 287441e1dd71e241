"""/metrics: names, types, and sums that equal what the answers said."""

from __future__ import annotations

import os
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.api.memory import memory_of
from tests.api.world import World, serving

COUNTS = {
    "prompt_tokens_total": "prompt_n",
    "prompt_tokens_cached_total": "cache_n",
    "tokens_predicted_total": "predicted_n",
    "spec_decode_num_draft_tokens_total": "draft_n",
    "spec_decode_num_accepted_tokens_total": "draft_n_accepted",
}


def scrape(world: World) -> dict[str, float]:
    response = world.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


@pytest.mark.parametrize("prefix", ["outrider:", "llamacpp:"])
def test_sums_are_those_of_the_answers(prefix: str) -> None:
    with serving("-np", "2") as world:
        timings = [world.chat(max_tokens=n).json()["timings"] for n in (1, 9, 30, 30)]
        values = scrape(world)
        for name, field in COUNTS.items():
            assert values[prefix + name] == sum(t.get(field, 0) for t in timings), name
        positions = [values[f"{prefix}spec_decode_num_accepted_tokens_per_pos_total[{i}]"] for i in range(3)]
        assert sum(positions) == values[prefix + "spec_decode_num_accepted_tokens_total"]
        assert positions == sorted(positions, reverse=True)
        assert values["outrider:requests_total[length]"] == 4
        assert values[prefix + "requests_processing"] == 0
        assert values["outrider:request_seconds_count"] == 4


def test_the_state_of_the_workers() -> None:
    with serving() as world:
        before = scrape(world)
        assert (before["outrider:worker_up[draft]"], before["outrider:degraded"]) == (1, 0)
        world.do(lambda: world.service._forget(world.service.draft, "killed"))  # type: ignore[arg-type]
        after = scrape(world)
        assert (after["outrider:worker_up[draft]"], after["outrider:degraded"]) == (0, 1)
        assert after["outrider:worker_up[target]"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc, which only Linux has")
def test_memory_of_this_process_and_of_none() -> None:
    memory = memory_of(os.getpid())
    assert memory is not None
    assert memory.resident > 1e7
    assert memory_of(2**22 + 1) is None
    with serving() as world:
        values = scrape(world)
    assert values["outrider:resident_memory_bytes[coordinator]"] > 1e7
    assert "outrider:resident_memory_bytes[target]" not in values  # no process of ours


def test_every_metric_has_its_help_and_type() -> None:
    with serving() as world:
        text = world.http.get("/metrics").text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert names == {line.split()[2] for line in text.splitlines() if line.startswith("# HELP ")}
    assert "# TYPE llamacpp:n_tokens_max counter" in text
    samples = {line.partition(" ")[0].partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert all(any(sample.startswith(name.removesuffix("_total")) for name in names) for sample in samples)
