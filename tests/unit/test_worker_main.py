"""What a worker process settles before it imports what computes."""

from __future__ import annotations

import pytest

from outrider.config.schema import Config, Draft, Target
from outrider.worker.main import share_cpus


@pytest.mark.parametrize(
    ("target", "draft", "shared"),
    [([], [], True), ([0], [], True), ([], [1], True), ([0, 1], [1], True), ([0], [1], False), ([0, 1], [2, 3], False)],
)
def test_who_shares_processors(target: list[int], draft: list[int], shared: bool) -> None:
    assert share_cpus(Config(target=Target(cpus=target), draft=Draft(model="m", cpus=draft))) == shared
    assert not share_cpus(Config(target=Target(cpus=target), draft=Draft(cpus=draft)))
