"""Every way back of the llama engine, on tiny models of each kind of memory: no row is ever missed or stale."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from outrider.engine.base import Span
from outrider.engine.llama_engine import LlamaEngine
from outrider.errors import CacheError
from tests.model.llama_kit import (
    CHECKPOINT,
    NEAR,
    TRUNCATE,
    WRITERS,
    distance,
    extend,
    fresh_logits,
    opened,
    some_tokens,
    tiny_model,
)
from tests.tiny_models import WINDOW


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_kind_is_found_by_trying(folder: Path, kind: str) -> None:
    with opened(tiny_model(folder, kind)) as engine:
        assert engine.memory == engine.facts.memory == ("truncate" if kind in TRUNCATE else "checkpoint")
        assert engine.length(0) == 0
        assert engine.facts.memory_bytes > tiny_model(folder, kind).stat().st_size / 2


class Walk:
    """Sequences that grow, go back and branch at random; every row is held against a fresh evaluation of its text."""

    def __init__(self, engine: LlamaEngine, reference: LlamaEngine, seed: int) -> None:
        self.engine, self.reference = engine, reference
        self.rng = random.Random(seed)
        self.texts: list[list[int]] = [[] for _ in range(engine.n_seq)]
        self.saved: list[tuple[object, int] | None] = [None] * engine.n_seq
        self.refused = 0

    def step(self) -> None:
        chosen = self.rng.sample(range(self.engine.n_seq), self.rng.randint(1, self.engine.n_seq))
        self.grow(chosen)
        for seq in chosen:
            action = self.rng.random()
            if action < 0.6:
                self.go_back(seq, self.rng.choice([1, 2, 3, 5, 8, 20]))
            elif action < 0.7 and self.engine.memory == "truncate":
                self.branch(seq, self.rng.randrange(self.engine.n_seq))
            elif action < 0.73:
                self.cut(seq, 0)
            assert self.engine.length(seq) == len(self.texts[seq])

    def grow(self, chosen: list[int]) -> None:
        spans = []
        for seq in chosen:
            if self.engine.memory == "checkpoint" and self.rng.random() < 0.5:
                self.saved[seq] = self.engine.save(seq), len(self.texts[seq])
            new = [self.rng.randrange(3, 256) for _ in range(self.rng.randint(1, 9))]
            spans.append(Span(seq, len(self.texts[seq]), new, len(new)))
            self.texts[seq] = self.texts[seq] + new
        logits, row = self.engine.decode(spans).logits, 0
        for span in spans:
            wanted = fresh_logits(self.reference, self.texts[span.seq])[span.start :]
            assert distance(logits[row : row + len(wanted)], wanted) < NEAR, f"{span} of {self.texts[span.seq]}"
            row += len(wanted)

    def cut(self, seq: int, length: int) -> None:
        self.engine.truncate(seq, length)
        del self.texts[seq][length:]
        point = self.saved[seq]
        if point and point[1] > length:
            self.saved[seq] = None

    def go_back(self, seq: int, n_rows: int) -> None:
        try:
            self.cut(seq, max(len(self.texts[seq]) - n_rows, 0))
        except CacheError:
            self.refused += 1
            if point := self.saved[seq]:
                self.engine.restore(seq, point[0])
                del self.texts[seq][point[1] :]

    def branch(self, src: int, dst: int) -> None:
        self.engine.copy(src, dst)
        self.texts[dst] = list(self.texts[src])


@pytest.mark.parametrize("n_seq", [1, 3])
def test_random_walks_miss_no_row(folder: Path, kind: str, n_seq: int) -> None:
    path = tiny_model(folder, kind)
    with opened(path, n_ctx=1024, n_seq=n_seq) as engine, opened(path, n_ctx=1024) as reference:
        walk = Walk(engine, reference, seed=n_seq)
        for _ in range(120):
            walk.step()
        assert (walk.refused > 0) == (kind in CHECKPOINT), "a memory that can drop rows must never refuse"


@pytest.mark.parametrize("n_seq", [1, 3])
def test_random_walks_with_snapshots(folder: Path, n_seq: int) -> None:
    path = tiny_model(folder, "lfm2")
    with opened(path, n_seq=n_seq, n_rs_seq=8) as engine, opened(path) as reference:
        walk = Walk(engine, reference, seed=7)
        for _ in range(120):
            walk.step()
        assert walk.refused > 0


@pytest.fixture
def snapshots(folder: Path) -> Iterator[LlamaEngine]:
    with opened(tiny_model(folder, "lfm2"), n_rs_seq=4) as engine:
        yield engine


def test_snapshots_reach_back_into_the_last_decode_and_no_further(snapshots: LlamaEngine) -> None:
    tokens = some_tokens(12)
    wanted = fresh_logits(snapshots, tokens)
    snapshots.truncate(0, 0)
    extend(snapshots, tokens[:6])
    extend(snapshots, tokens[6:9])
    with pytest.raises(CacheError, match="cannot go back from 9 rows to 6"):
        snapshots.truncate(0, 6)  # three rows, two of which have a snapshot before them
    snapshots.truncate(0, 7)
    assert distance(extend(snapshots, tokens[7:]), wanted[7:]) < NEAR


def test_a_snapshot_is_used_once(snapshots: LlamaEngine) -> None:
    extend(snapshots, some_tokens(5))
    snapshots.truncate(0, 4)
    with pytest.raises(CacheError):
        snapshots.truncate(0, 3)


def test_snapshots_of_earlier_decodes_are_stale(snapshots: LlamaEngine) -> None:
    """A draft is decoded row by row: llama.cpp would take them back, and restore states of other rows."""
    for token in some_tokens(4):
        extend(snapshots, [token])
    with pytest.raises(CacheError):
        snapshots.truncate(0, 2)


def test_a_restored_state_has_no_snapshots(snapshots: LlamaEngine) -> None:
    extend(snapshots, some_tokens(5))
    snapshots.restore(0, snapshots.save(0))
    with pytest.raises(CacheError):
        snapshots.truncate(0, 4)


def test_states_that_may_have_moved_have_no_snapshots(folder: Path) -> None:
    """A batch of some sequences moves the states of others to other cells, and their snapshots stay behind."""
    path, n_dropped = tiny_model(folder, "lfm2"), 0
    with opened(path, n_seq=4, n_rs_seq=4) as engine, opened(path) as reference:
        for seed in range(60):
            for seq in range(4):
                engine.truncate(seq, 0)
            n_dropped += shuffle(engine, reference, random.Random(seed))
    assert n_dropped > 30


def shuffle(engine: LlamaEngine, reference: LlamaEngine, rng: random.Random) -> int:
    """Batches of some of four sequences, then a few rows off any of them; how often that was not refused."""
    texts: list[list[int]] = [[] for _ in range(4)]
    n_dropped = 0
    for _ in range(6):
        chosen = rng.sample(range(4), rng.randint(1, 4))
        new = {seq: some_tokens(rng.choice([1, 2, 3, 4, 4, 4, 7]), seed=rng.randrange(1000)) for seq in chosen}
        engine.decode([Span(seq, len(texts[seq]), tokens) for seq, tokens in new.items()])
        for seq, tokens in new.items():
            texts[seq] += tokens
        for seq in rng.sample(range(4), 2):
            n_dropped += drop(engine, reference, seq, texts[seq], rng.randint(1, 3))
    return n_dropped


def drop(engine: LlamaEngine, reference: LlamaEngine, seq: int, text: list[int], n_rows: int) -> bool:
    if len(text) <= n_rows:
        return False
    try:
        engine.truncate(seq, len(text) - n_rows)
    except CacheError:
        return False
    text[-n_rows:] = [99]
    assert distance(extend(engine, [99], seq=seq), fresh_logits(reference, text)[-1:]) < NEAR
    return True


def test_a_draft_longer_than_the_snapshots_needs_a_checkpoint(snapshots: LlamaEngine) -> None:
    tokens = some_tokens(10)
    wanted = fresh_logits(snapshots, tokens)
    snapshots.truncate(0, 0)
    extend(snapshots, tokens[:3])
    point = snapshots.save(0)
    extend(snapshots, some_tokens(6, seed=1))
    with pytest.raises(CacheError):
        snapshots.truncate(0, 4)
    snapshots.restore(0, point)
    assert distance(extend(snapshots, tokens[3:]), wanted[3:]) < NEAR


def test_models_without_snapshots_have_none(folder: Path) -> None:
    with opened(tiny_model(folder, "mamba"), n_rs_seq=4) as engine:
        assert engine.memory == "checkpoint"
        extend(engine, some_tokens(4))
        with pytest.raises(CacheError):
            engine.truncate(0, 3)


@pytest.mark.parametrize("kind", CHECKPOINT)
def test_a_checkpoint_comes_back_bit_for_bit(folder: Path, kind: str) -> None:
    with opened(tiny_model(folder, kind)) as engine:
        extend(engine, some_tokens(20))
        point = engine.save(0)
        wanted = extend(engine, some_tokens(3, seed=1))
        for _ in range(3):
            engine.restore(0, point)
            assert engine.length(0) == 20
            assert (extend(engine, some_tokens(3, seed=1)) == wanted).all()


@pytest.mark.parametrize("kind", TRUNCATE)
def test_a_dense_checkpoint_moves_to_another_sequence(folder: Path, kind: str) -> None:
    tokens = some_tokens(40)
    with opened(tiny_model(folder, kind), n_seq=2) as engine:
        wanted = fresh_logits(engine, tokens)[30:]
        engine.truncate(0, 30)
        engine.restore(1, engine.save(0))
        assert engine.length(1) == 30
        assert distance(extend(engine, tokens[30:], seq=1), wanted) < NEAR


def test_a_checkpoint_of_nothing_empties(folder: Path, kind: str) -> None:
    tokens = some_tokens(5)
    with opened(tiny_model(folder, kind)) as engine:
        point = engine.save(0)
        wanted = extend(engine, tokens)
        engine.restore(0, point)
        assert engine.length(0) == 0
        assert distance(extend(engine, tokens), wanted) < NEAR


def test_a_partial_checkpoint_dies_with_the_rows_below_it(folder: Path) -> None:
    """The attention rows of a hybrid model are not in it."""
    with opened(tiny_model(folder, "lfm2")) as engine:
        extend(engine, some_tokens(8))
        point = engine.save(0)
        engine.truncate(0, 0)
        extend(engine, some_tokens(8, seed=1))
        with pytest.raises(CacheError, match="rows below the checkpoint of 8 were dropped"):
            engine.restore(0, point)
        assert engine.length(0) == 8


def test_a_whole_checkpoint_outlives_its_rows(folder: Path) -> None:
    tokens = some_tokens(12)
    with opened(tiny_model(folder, "mamba")) as engine:
        wanted = fresh_logits(engine, tokens)
        engine.truncate(0, 0)
        extend(engine, tokens[:8])
        point = engine.save(0)
        engine.truncate(0, 0)
        extend(engine, some_tokens(3, seed=1))
        engine.restore(0, point)
        assert distance(extend(engine, tokens[8:]), wanted[8:]) < NEAR


def test_foreign_checkpoints_are_refused(folder: Path, kind: str) -> None:
    path = tiny_model(folder, kind)
    with opened(path) as engine, opened(path) as other:
        extend(other, some_tokens(3))
        for point in (other.save(0), b"bytes", None):
            with pytest.raises(CacheError, match="not one of this engine"):
                engine.restore(0, point)
        assert engine.length(0) == 0


@pytest.mark.parametrize("kind", CHECKPOINT)
def test_recurrent_memory_has_no_branches(folder: Path, kind: str) -> None:
    with opened(tiny_model(folder, kind), n_seq=2) as engine:
        extend(engine, some_tokens(3))
        with pytest.raises(CacheError, match="no branches"):
            engine.copy(0, 1)
        assert engine.length(1) == 0


@pytest.mark.parametrize("kind", TRUNCATE)
def test_branches_part(folder: Path, kind: str) -> None:
    """Two branches of 40 rows go their ways, further back than a window, and neither sees the other."""
    trunk, left, right = some_tokens(40), some_tokens(9, seed=1), some_tokens(9, seed=2)
    path = tiny_model(folder, kind)
    with opened(path, n_seq=2) as engine, opened(path) as reference:
        extend(engine, trunk, seq=0)
        engine.copy(0, 1)
        engine.truncate(1, 15)
        spans = [Span(0, 40, left, 9), Span(1, 15, right, 9)]
        logits = engine.decode(spans).logits
        assert distance(logits[:9], fresh_logits(reference, trunk + left)[40:]) < NEAR
        assert distance(logits[9:], fresh_logits(reference, trunk[:15] + right)[15:]) < NEAR


@pytest.mark.parametrize("start", range(WINDOW - 8, WINDOW + 9, 4))
def test_a_batch_across_the_edge_of_the_window(folder: Path, start: int) -> None:
    tokens = some_tokens(start + 8)
    with opened(tiny_model(folder, "gemma3")) as engine:
        single = [extend(engine, [token])[0] for token in tokens]
        engine.truncate(0, start)
        for row, wanted in zip(extend(engine, tokens[start:]), single[start:], strict=True):
            assert distance(row, wanted) < NEAR


def test_a_restored_window_refuses_to_go_back_out_of_it(folder: Path) -> None:
    tokens = some_tokens(60)
    with opened(tiny_model(folder, "gemma3")) as engine:
        wanted = fresh_logits(engine, tokens)
        engine.truncate(0, 50)
        point = engine.save(0)
        engine.restore(0, point)
        for length in (48, 30, 1):
            with pytest.raises(CacheError, match=f"cannot go back from 50 rows to {length}"):
                engine.truncate(0, length)
        assert engine.length(0) == 50
        assert distance(extend(engine, tokens[50:]), wanted[50:]) < NEAR
        engine.restore(0, point)
        engine.truncate(0, 49)
        assert distance(extend(engine, tokens[49:]), wanted[49:]) < NEAR


def test_rows_far_outside_the_window_are_kept(folder: Path) -> None:
    """Cells for the window alone (llama.cpp rounds them up to 256) would be overwritten by now."""
    tokens = some_tokens(700)
    with opened(tiny_model(folder, "gemma3"), n_ctx=1024, n_batch=16) as engine:
        rows = [extend(engine, tokens[i : i + 10]) for i in range(0, 700, 10)]
        engine.truncate(0, 320)
        assert distance(extend(engine, tokens[320:330]), rows[32]) < NEAR
