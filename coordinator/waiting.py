"""Shall the target wait for drafts, and for how many? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.costs import Costs


def best_wait(costs: Costs, acceptance: float, foreseen: float, waits: Sequence[float], n_ready: int) -> int:
    """For how many drafted tokens to wait where `n_ready` are there. waits[m]: seconds until there are m.

    The average-reward rule: tokens that the round brings, less what its time is worth, and the value of a draft that is
    ready for the round after it. acceptance: of a drafted token; foreseen: chance that there is a branch for a mismatch.
    """
    worth = costs.worth()
    assert worth is not None
    gains, ready, all_right = [], [], 1.0
    for m in range(len(waits)):
        gains.append(expected_tokens(acceptance, m) - worth * (costs.verify_s(m + 1, busy=True) or 0.0))
        all_right *= acceptance  # the token behind the draft, too
        ready.append(all_right + (1 - all_right) * foreseen)
    typical = gains.index(max(gains))
    value_of_ready = max(gains[typical], 0.0) / max(1 - ready[typical], 0.05)
    values = [gains[m] - worth * waits[m] + ready[m] * value_of_ready for m in range(n_ready, len(waits))]
    return n_ready + values.index(max(values))


def expected_tokens(acceptance: float, n: int) -> float:
    """Tokens committed by a round that verifies `n`, each accepted with this probability if those before it were."""
    return float(n + 1) if acceptance >= 1.0 else (1 - acceptance ** (n + 1)) / (1 - acceptance)
