from __future__ import annotations

import threading

import pytest

from outrider.engine.work_pool import WorkPool, usable_cpus


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("n_pieces", [0, 1, 2, 50])
def test_every_piece_is_done_once(n_threads: int, n_pieces: int) -> None:
    pool = WorkPool(n_threads)
    for _ in range(20):
        done: list[int] = []
        pool.run(done.append, n_pieces)
        assert sorted(done) == list(range(n_pieces))
    pool.close()


def test_the_work_is_shared_out() -> None:
    pool = WorkPool(2)
    both = threading.Barrier(2)
    pool.run(lambda _: both.wait(timeout=20) and None, 2)  # neither piece ends before both have begun
    pool.close()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_reaches_the_caller_and_the_pool_lives_on(n_threads: int) -> None:
    pool = WorkPool(n_threads)

    def fail(piece: int) -> None:
        if piece == 3:
            raise ValueError("piece 3")

    for _ in range(10):
        with pytest.raises(ValueError, match="piece 3"):
            pool.run(fail, 10)
        done: list[int] = []
        pool.run(done.append, 10)
        assert sorted(done) == list(range(10))
    pool.close()


def test_close_leaves_no_thread_and_may_be_called_twice() -> None:
    before = threading.active_count()
    pool = WorkPool(4)
    assert threading.active_count() == before + 3
    pool.close()
    pool.close()
    assert threading.active_count() == before


def test_usable_cpus() -> None:
    assert usable_cpus() >= 1


def test_run_returns_after_the_last_piece_not_before() -> None:
    pool = WorkPool(2)
    both, release = threading.Barrier(2), threading.Event()

    def piece(_: int) -> None:
        both.wait(timeout=20)
        if threading.current_thread() is not runner:
            release.wait(timeout=20)

    runner = threading.Thread(target=pool.run, args=(piece, 2))
    runner.start()
    runner.join(timeout=0.1)
    still_running = runner.is_alive()
    release.set()
    runner.join()
    pool.close()
    assert still_running
