"""What a worker process settles before it imports what computes."""

from __future__ import annotations

import pytest

from outrider.config.schema import Config, Draft, Target
from outrider.config.sharing import share_processors


@pytest.mark.parametrize(
    ("own", "other", "shared"),
    [
        ([], [], True),
        ([], [1], True),
        ([0, 1], [1], True),
        ([0], [], True),
        ([0], [1], False),
        ([0, 1], [2, 3], False),
    ],
)
def test_who_shares_processors(own: list[int], other: list[int], shared: bool) -> None:
    draft = Draft(model="draft.gguf", cpus=other)
    assert share_processors(Config(target=Target(cpus=own), draft=draft)) == shared
    draft = Draft(model="draft.gguf", cpus=own)
    assert share_processors(Config(target=Target(cpus=other), draft=draft)) == shared
    assert not share_processors(Config(target=Target(cpus=own)))  # no draft


def test_workers_on_hosts_or_devices_of_their_own_share_nothing() -> None:
    assert not share_processors(Config(draft=Draft(launch=False)))
    assert not share_processors(Config(target=Target(launch=False), draft=Draft(model="draft.gguf")))
    assert not share_processors(Config(draft=Draft(model="draft.gguf", devices=["none"])))
