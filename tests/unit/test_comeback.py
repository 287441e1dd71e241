"""Which sessions a target waits for before a decode."""

from __future__ import annotations

from target_worker.comeback import MAX_LEFT_OUT, Comeback, longest_wait

W = 100


def in_vain(session: Comeback) -> None:
    """It is waited for, and does not come in time."""
    session.answered()
    assert session.wait(0, W) == W
    assert session.wait(60, W) == W - 60
    assert session.wait(W, W) == 0
    assert session.wait(W + 1, W) == 0
    session.came()


def n_left_out(session: Comeback) -> int:
    """How many answers follow after which it is not waited for."""
    for n in range(1000):
        session.answered()
        if session.wait(0, W):
            return n
        session.came()
    raise AssertionError


def test_nobody_is_waited_for_before_an_answer() -> None:
    assert Comeback().wait(0, W) == 0


def test_a_session_that_comes_back_is_waited_for_every_time() -> None:
    session = Comeback()
    for now in range(0, 1000, 100):
        session.answered()
        assert session.wait(now, W) == W
        session.came()
        assert session.wait(now + 1, W) == 0


def test_one_that_stays_away_is_left_out_longer_and_longer() -> None:
    session, left_out = Comeback(), []
    for _ in range(MAX_LEFT_OUT + 2):
        in_vain(session)
        left_out.append(n_left_out(session))
        assert session.wait(W, W) == 0  # in vain again
        session.came()
        session._n_left_out = 0
    assert left_out == [2, 8, 32, 32, 32, 32, 32]


def test_one_that_comes_again_is_trusted_again() -> None:
    session = Comeback()
    in_vain(session)
    assert n_left_out(session) == 2
    session.came()
    assert n_left_out(session) == 0


def test_a_wait_is_short_beside_a_decode() -> None:
    assert longest_wait(50_000) == 5_000_000
    assert longest_wait(0) == 0
    assert longest_wait(10_000_000) == 10_000_000
