"""What a worker process settles before it imports what computes."""

from __future__ import annotations

import pytest

from outrider.config.schema import Config, Draft, Target
from outrider.worker.processors import shares_cpus


@pytest.mark.parametrize(
    ("own", "other", "shared"),
    [
        ([], [], True),
        ([], [1], True),
        ([0, 1], [1], True),
        ([0], [], False),
        ([0], [1], False),
        ([0, 1], [2, 3], False),
    ],
)
def test_who_shares_processors(own: list[int], other: list[int], shared: bool) -> None:
    draft = Draft(model="draft.gguf", cpus=other)
    assert shares_cpus("target", Config(target=Target(cpus=own), draft=draft)) == shared
    draft = Draft(model="draft.gguf", cpus=own)
    assert shares_cpus("draft", Config(target=Target(cpus=other), draft=draft)) == shared
    assert not shares_cpus("target", Config(target=Target(cpus=own)))
