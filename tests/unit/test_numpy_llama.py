"""The numpy engine keeps the engine contract, and a row's logits are the same bits however the row came about."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine import numpy_kernels, numpy_model
from outrider.engine.base import Span
from outrider.engine.kv_cache import KvCheckpoint
from outrider.engine.numpy_llama import NumpyEngine
from outrider.errors import CacheError, ConfigError, ContextFullError, EngineError
from tests.tiny_gguf import N_VOCAB, Tiny, write_random

N_CTX, N_SEQ = 48, 3
TINY = {
    "llama": Tiny(rope_factors=True),
    "qwen2": Tiny(architecture="qwen2", bias=2.0, tied=True),
    "qwen3": Tiny(architecture="qwen3", head=16, n_embd=64, n_ff=96),
}
THREADS = (1, 2, 3)
TEXT = np.random.default_rng(1).integers(0, N_VOCAB, N_CTX).tolist()

few = settings(max_examples=25)


class Models:
    """Engines by family and thread count, and the logits of any text as plain one-token decoding gives them."""

    def __init__(self, folder: Path) -> None:
        self.paths = {name: write_random(folder / f"{name}.gguf", tiny) for name, tiny in TINY.items()}
        self._engines = {
            (name, n): NumpyEngine(path, n_ctx=N_CTX, n_batch=2 * N_CTX, n_seq=N_SEQ, n_threads=n)
            for name, path in self.paths.items()
            for n in THREADS
        }
        self._plain = {name: NumpyEngine(path, n_ctx=N_CTX, n_threads=1) for name, path in self.paths.items()}
        self._rows: dict[tuple[str, tuple[int, ...]], bytes] = {}

    def engine(self, name: str, n_threads: int = 1) -> NumpyEngine:
        engine = self._engines[name, n_threads]
        for seq in range(N_SEQ):
            engine.truncate(seq, 0)
        return engine

    def row(self, name: str, text: list[int]) -> bytes:
        """Bits of the logits after `text`."""
        if (name, tuple(text)) not in self._rows:
            plain = self._plain[name]
            plain.truncate(0, 0)
            for i, token in enumerate(text):
                logits = plain.decode([Span(0, i, [token], 1)]).logits
                self._rows[name, tuple(text[: i + 1])] = logits.tobytes()
        return self._rows[name, tuple(text)]

    def close(self) -> None:
        for engine in [*self._engines.values(), *self._plain.values()]:
            engine.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    patch = pytest.MonkeyPatch()
    patch.setattr(numpy_kernels, "MIN_PIECE_BYTES", 1)  # even small matrices are shared out among threads,
    patch.setattr(numpy_model, "LONG", 20)  # and attention in the second half of a text
    models = Models(tmp_path_factory.mktemp("models"))
    yield models
    models.close()
    patch.undo()


@pytest.fixture(params=list(TINY))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


families = st.sampled_from(list(TINY))
thread_counts = st.sampled_from(THREADS)


# --- bits -----------------------------------------------------------------------------------------------------------


def test_the_rows_are_worth_comparing(models: Models, name: str) -> None:
    rows = [np.frombuffer(models.row(name, TEXT[:n]), np.float32) for n in (5, 6, 40)]
    assert all(row.shape == (N_VOCAB,) and np.ptp(row) > 1 for row in rows)
    other = [TEXT[0] + 1, *TEXT[1:40]]
    assert models.row(name, other) != models.row(name, TEXT[:40])  # the first token is seen from the 40th


@few
@given(families, thread_counts, st.lists(st.integers(1, 20), min_size=1, max_size=20))
def test_a_text_in_any_pieces_gives_the_same_bits(models: Models, name: str, n: int, pieces: list[int]) -> None:
    engine, length = models.engine(name, n), 0
    for piece in pieces:
        tokens = TEXT[length : length + piece]
        if not tokens:
            return
        logits = engine.decode([Span(0, length, tokens, len(tokens))]).logits
        assert logits.shape == (len(tokens), N_VOCAB)
        assert logits.dtype == np.float32
        for i, row in enumerate(logits, 1):
            assert row.tobytes() == models.row(name, TEXT[: length + i])
        length += len(tokens)


@few
@given(families, thread_counts, st.data())
def test_only_the_rows_asked_for_come_out(models: Models, name: str, n: int, data: st.DataObject) -> None:
    engine, length = models.engine(name, n), 0
    while length < 30:
        tokens = TEXT[length : length + data.draw(st.integers(1, 12))]
        n_outputs = data.draw(st.integers(0, len(tokens)))
        logits = engine.decode([Span(0, length, tokens, n_outputs)]).logits
        length += len(tokens)
        assert logits.shape == (n_outputs, N_VOCAB)
        for i, row in enumerate(logits):
            assert row.tobytes() == models.row(name, TEXT[: length - n_outputs + i + 1])


operations = st.one_of(
    st.tuples(
        st.just("decode"),
        st.dictionaries(
            st.integers(0, N_SEQ - 1), st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=5), min_size=1
        ),
    ),
    st.tuples(st.just("truncate"), st.integers(0, N_SEQ - 1), st.floats(0, 1)),
    st.tuples(st.just("copy"), st.integers(0, N_SEQ - 1), st.integers(0, N_SEQ - 1)),
    st.tuples(st.just("save"), st.integers(0, N_SEQ - 1)),
    st.tuples(st.just("restore"), st.integers(0, N_SEQ - 1)),
)


@few
@given(families, thread_counts, st.lists(operations, max_size=25))
def test_whatever_was_done_before_a_row_has_the_bits_of_plain_decoding(
    models: Models, name: str, n: int, script: list[tuple]
) -> None:
    engine = models.engine(name, n)
    texts: list[list[int]] = [[] for _ in range(N_SEQ)]
    saved: tuple[object, list[int]] = (engine.save(0), [])
    for operation in script:
        match operation:
            case ("decode", pieces):
                room = {seq: t[: N_CTX - len(texts[seq])] for seq, t in pieces.items() if len(texts[seq]) < N_CTX}
                spans = [Span(seq, len(texts[seq]), tokens, 1) for seq, tokens in room.items()]
                logits = engine.decode(spans).logits
                for span, row in zip(spans, logits, strict=True):
                    texts[span.seq] += span.tokens
                    assert row.tobytes() == models.row(name, texts[span.seq])
            case ("truncate", seq, part):
                texts[seq] = texts[seq][: int(part * len(texts[seq]))]
                engine.truncate(seq, len(texts[seq]))
            case ("copy", src, dst):
                texts[dst] = list(texts[src])
                engine.copy(src, dst)
            case ("save", seq):
                saved = (engine.save(seq), list(texts[seq]))
            case ("restore", seq):
                texts[seq] = list(saved[1])
                engine.restore(seq, saved[0])
        assert [engine.length(seq) for seq in range(N_SEQ)] == [len(text) for text in texts]


def test_a_checkpoint_memory_goes_back_by_restoring(models: Models, name: str) -> None:
    engine = NumpyEngine(models.paths[name], n_ctx=N_CTX, checkpoint_only=True)
    try:
        assert engine.memory == engine.facts.memory == "checkpoint"
        engine.decode([Span(0, 0, TEXT[:5])])
        checkpoint = engine.save(0)
        engine.decode([Span(0, 5, [9, 9, 9])])
        engine.truncate(0, 8)  # nothing to do
        with pytest.raises(CacheError, match="cannot drop a suffix"):
            engine.truncate(0, 5)
        with pytest.raises(CacheError, match="no branches"):
            engine.copy(0, 0)
        assert engine.length(0) == 8
        engine.restore(0, checkpoint)
        row = engine.decode([Span(0, 5, TEXT[5:8], 1)]).logits
        assert row.tobytes() == models.row(name, TEXT[:8])
        engine.truncate(0, 0)
        assert engine.decode([Span(0, 0, TEXT[:2], 1)]).logits.tobytes() == models.row(name, TEXT[:2])
    finally:
        engine.close()


# --- contract -------------------------------------------------------------------------------------------------------


def test_facts(models: Models, name: str) -> None:
    engine = models.engine(name)
    facts, tiny = engine.facts, TINY[name]
    assert (facts.engine, facts.architecture, facts.name) == ("numpy", name, f"tiny {name}")
    assert (facts.n_vocab, facts.n_ctx, facts.n_batch, facts.n_seq) == (N_VOCAB, N_CTX, 2 * N_CTX, N_SEQ)
    assert (engine.n_vocab, engine.n_ctx, engine.n_batch, engine.n_seq) == (N_VOCAB, N_CTX, 2 * N_CTX, N_SEQ)
    assert facts.memory == engine.memory == "truncate"
    assert facts.vocab == engine.tokenizer.vocab
    assert facts.vocab.n_vocab == N_VOCAB
    assert not facts.has_chat_template
    cache = 2 * 4 * N_SEQ * tiny.n_layer * tiny.n_kv * N_CTX * tiny.head
    weights = models.paths[name].stat().st_size
    assert cache + 0.8 * weights < facts.memory_bytes < cache + 1.5 * weights


def test_no_spans_no_rows_and_no_outputs(models: Models) -> None:
    engine = models.engine("llama")
    assert engine.decode([]).logits.shape == (0, N_VOCAB)
    assert engine.decode([Span(0, 0, []), Span(2, 0, [])]).logits.shape == (0, N_VOCAB)
    output = engine.decode([Span(0, 0, TEXT[:3])])
    assert output.logits.shape == (0, N_VOCAB)
    assert output.hidden is None
    assert engine.length(0) == 3
    logits = engine.decode([Span(1, 0, []), Span(0, 3, TEXT[3:5], 1)]).logits
    assert logits.tobytes() == models.row("llama", TEXT[:5])


BAD_SPANS = {
    "a gap": ([Span(0, 4, [1])], "row 4 given, 3 rows held"),
    "a row again": ([Span(0, 2, [1])], "row 2 given, 3 rows held"),
    "a sequence twice": ([Span(0, 3, [1]), Span(0, 4, [1])], "same sequence"),
    "a token too large": ([Span(1, 0, [1]), Span(0, 3, [N_VOCAB])], f"token {N_VOCAB} is not in"),
    "a negative token": ([Span(0, 3, [-1])], "token -1 is not in"),
    "outputs without rows": ([Span(0, 3, [], 1)], "1 outputs of 0 rows"),
    "more outputs than rows": ([Span(0, 3, [1], 2)], "2 outputs of 1 rows"),
    "no such sequence": ([Span(N_SEQ, 0, [1])], f"sequence {N_SEQ} is not in"),
    "too many rows": ([Span(s, 0, [1] * 45) for s in (1, 2)] + [Span(0, 3, [1] * 40)], "130 rows in one decode"),
}


@pytest.mark.parametrize(("spans", "message"), BAD_SPANS.values(), ids=BAD_SPANS.keys())
def test_wrong_calls_change_nothing(models: Models, spans: list[Span], message: str) -> None:
    engine = models.engine("llama")
    engine.decode([Span(0, 0, TEXT[:3])])
    with pytest.raises(EngineError, match=message):
        engine.decode(spans)
    assert [engine.length(seq) for seq in range(N_SEQ)] == [3, 0, 0]
    assert engine.decode([Span(0, 3, TEXT[3:5], 1)]).logits.tobytes() == models.row("llama", TEXT[:5])


def test_the_context_can_be_filled_but_not_passed(models: Models) -> None:
    engine = models.engine("llama")
    engine.decode([Span(0, 0, TEXT[: N_CTX - 1]), Span(1, 0, [5])])
    with pytest.raises(ContextFullError, match="sequence 0"):
        engine.decode([Span(1, 1, [6]), Span(0, N_CTX - 1, [1, 2])])
    assert (engine.length(0), engine.length(1)) == (N_CTX - 1, 1)
    row = engine.decode([Span(0, N_CTX - 1, TEXT[N_CTX - 1 :], 1)]).logits
    assert row.tobytes() == models.row("llama", TEXT)


@pytest.mark.parametrize("error", [MemoryError("no room"), ValueError("broken")])
def test_a_failed_decode_leaves_the_caches_as_they_were(
    models: Models, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    engine, calls = models.engine("llama", 2), iter(range(100))
    engine.decode([Span(0, 0, TEXT[:3]), Span(1, 0, TEXT[:7])])

    def fail(*args: np.ndarray) -> np.ndarray:
        if next(calls) == 5:  # in the middle of the second layer
            raise error
        return numpy_kernels.attend(*args)

    with monkeypatch.context() as patch:
        patch.setattr(numpy_model, "attend", fail)
        with pytest.raises(EngineError, match=str(error)):
            engine.decode([Span(0, 3, [1, 2]), Span(1, 7, [3, 4])])
    assert (engine.length(0), engine.length(1)) == (3, 7)
    logits = engine.decode([Span(0, 3, TEXT[3:5], 1), Span(1, 7, TEXT[7:8], 1)]).logits
    assert logits[0].tobytes() == models.row("llama", TEXT[:5])
    assert logits[1].tobytes() == models.row("llama", TEXT[:8])


def test_logits_that_are_no_numbers_are_an_error(models: Models) -> None:
    engine = models.engine("llama")
    engine.decode([Span(0, 0, TEXT[:3])])
    checkpoint = engine.save(0)
    assert isinstance(checkpoint, KvCheckpoint)
    engine.restore(1, KvCheckpoint(checkpoint.keys, checkpoint.values * np.float32(np.nan)))
    with pytest.raises(EngineError, match="not finite"):
        engine.decode([Span(1, 3, [1], 1)])
    assert engine.length(1) == 3


def test_truncate_refuses_what_it_cannot_do(models: Models) -> None:
    engine = models.engine("llama")
    engine.decode([Span(0, 0, TEXT[:3])])
    for length in (-1, 4):
        with pytest.raises(CacheError, match="cannot keep"):
            engine.truncate(0, length)
    assert engine.length(0) == 3


def test_closing_ends_the_threads_and_may_be_done_twice(models: Models) -> None:
    before = threading.active_count()
    engine = NumpyEngine(models.paths["llama"], n_ctx=8, n_threads=3)
    assert threading.active_count() == before + 2
    engine.close()
    engine.close()
    assert threading.active_count() == before


# --- length of the context ------------------------------------------------------------------------------------------


def test_n_ctx_0_is_the_length_of_training(tmp_path: Path) -> None:
    engine = NumpyEngine(write_random(tmp_path / "tiny.gguf", Tiny(n_ctx=77)), n_ctx=0)
    assert engine.n_ctx == engine.facts.n_ctx == 77
    engine.close()


def test_a_longer_context_than_in_training_is_refused(tmp_path: Path) -> None:
    before = threading.active_count()
    path = write_random(tmp_path / "tiny.gguf", Tiny(n_ctx=77))
    with pytest.raises(ConfigError, match=r"n_ctx = 78 .* 77 positions"):
        NumpyEngine(path, n_ctx=78)
    assert threading.active_count() == before


def test_caches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write_random(tmp_path / "tiny.gguf", Tiny(n_ctx=2**31 - 1))
    with pytest.raises(ConfigError, match=r"n_ctx = 2147483647 and n_seq = 100000 need .* GiB"):
        NumpyEngine(path, n_ctx=0, n_seq=100000)


def test_a_sliding_window_matters_only_if_it_is_shorter(tmp_path: Path) -> None:
    path = write_random(tmp_path / "tiny.gguf", Tiny(more={"attention.sliding_window": 32}))
    NumpyEngine(path, n_ctx=32).close()
    with pytest.raises(Exception, match=r"llama.attention.sliding_window = 32 is shorter than n_ctx = 33"):
        NumpyEngine(path, n_ctx=33)
