"""What a worker says by itself, at which times, and what each message of the coordinator changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.wire import messages as m
from outrider.wire.link_state import MAX_SILENT_BEATS, LinkState
from tests.wire_samples import SAMPLES

WELCOME = m.Welcome(m.PROTOCOL_VERSION, 7, 2.0)


def failure(code: m.FailureCode, incarnation: int = 0) -> m.Failure:
    return m.Failure(incarnation, 0, 0, 0, 0, request=0, code=code, reason="why")


@pytest.fixture
def state() -> LinkState:
    """Connected at time 0, says Hello every second."""
    state = LinkState(1.0)
    state.connection(True, 0.0)
    return state


@pytest.fixture
def welcome(state: LinkState) -> LinkState:
    """Welcome since time 10, with a beat of 2 s."""
    assert state.word_due(10.0) == "hello"
    assert state.hear(WELCOME, 10.0) == "forward"
    return state


def test_nothing_is_said_without_a_connection() -> None:
    state = LinkState(1.0)
    assert state.word_due(100.0) is None
    assert state.wait_s(100.0) == 3600.0


def test_hello_is_said_at_once_and_repeated(state: LinkState) -> None:
    assert state.wait_s(0.0) == 0.0
    said = [time for time in (0.0, 0.5, 0.99, 1.0, 1.5, 2.1, 3.0, 3.1) if state.word_due(time)]
    assert said == [0.0, 1.0, 2.1, 3.1]
    assert state.wait_s(3.6) == pytest.approx(0.5)


def test_welcome_makes_hello_a_heartbeat(welcome: LinkState) -> None:
    assert welcome.incarnation == 7
    assert welcome.wait_s(10.0) == 2.0
    assert welcome.word_due(11.9) is None
    assert welcome.word_due(12.0) == "heartbeat"
    assert welcome.word_due(13.9) is None
    assert welcome.word_due(14.0) == "heartbeat"


def test_a_second_welcome_replaces_the_first(welcome: LinkState) -> None:
    """Two Hellos may be under way when the first answer comes."""
    assert welcome.hear(m.Welcome(m.PROTOCOL_VERSION, 8, 2.0), 10.5) == "forward"
    assert welcome.incarnation == 8
    assert welcome.hear(m.End(7, 1, 1, 1, 1), 10.6) == "stale"


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"Hello", "Welcome", "Heartbeat", "Failure", "Shutdown"}))
def test_messages_of_this_connection_alone_are_for_the_work_loop(state: LinkState, name: str) -> None:
    message = SAMPLES[name]
    incarnation: int = getattr(message, "incarnation")  # noqa: B009
    assert state.hear(message, 0.0) == "stale"
    state.hear(m.Welcome(m.PROTOCOL_VERSION, incarnation, 1.0), 0.0)
    assert state.hear(message, 0.0) == "forward"
    state.hear(m.Welcome(m.PROTOCOL_VERSION, incarnation + 1, 1.0), 0.0)
    assert state.hear(message, 0.0) == "stale"


def test_a_shutdown_counts_even_if_its_connection_has_just_ended(welcome: LinkState) -> None:
    welcome.connection(False, 11.0)
    assert welcome.hear(m.Shutdown(7, "end"), 11.0) == "forward"


def test_a_welcome_of_a_connection_that_has_ended_is_void(welcome: LinkState) -> None:
    welcome.connection(False, 11.0)
    assert welcome.hear(WELCOME, 11.0) == "stale"
    assert welcome.incarnation == 0


def test_a_message_that_no_coordinator_sends_is_for_nobody(welcome: LinkState) -> None:
    assert welcome.hear(SAMPLES["Hello"], 10.0) == "stale"


def test_heartbeats_are_handled_and_failures_handed_on(welcome: LinkState) -> None:
    assert welcome.hear(m.Heartbeat(7, 0, 0), 10.0) == "handled"
    assert welcome.hear(failure("bad_request"), 10.0) == "forward"
    assert welcome.hear(failure("engine", 7), 10.0) == "forward"
    assert welcome.hear(failure("engine", 6), 10.0) == "stale"


def test_an_unknown_incarnation_is_greeted_again_at_once(welcome: LinkState) -> None:
    assert welcome.hear(failure("unknown_incarnation"), 11.0) == "handled"
    assert welcome.incarnation == 0
    assert welcome.word_due(11.0) == "hello"
    assert welcome.word_due(11.9) is None
    assert welcome.word_due(12.0) == "hello"


@pytest.mark.parametrize(
    ("message", "meaning"),
    [
        (failure("refused"), "forward"),
        (failure("refused", 7), "forward"),
        (m.Welcome(m.PROTOCOL_VERSION + 1, 8, 1.0), "foreign"),
    ],
)
def test_a_refusal_is_final(welcome: LinkState, message: m.Message, meaning: str) -> None:
    assert welcome.hear(message, 11.0) == meaning
    assert welcome.refused
    assert welcome.incarnation == 0
    for now in (11.0, 100.0):
        assert welcome.word_due(now) is None
    welcome.connection(True, 200.0)
    welcome.hear(failure("unknown_incarnation"), 201.0)
    assert welcome.hear(WELCOME, 202.0) == "stale"
    assert welcome.word_due(1000.0) is None


def test_a_lost_connection_voids_all_and_the_next_is_greeted(welcome: LinkState) -> None:
    welcome.connection(False, 11.0)
    assert welcome.incarnation == 0
    assert welcome.word_due(100.0) is None
    welcome.connection(True, 101.0)
    assert welcome.word_due(101.0) == "hello"


def test_a_silent_coordinator_is_greeted_again(welcome: LinkState) -> None:
    end = 10.0 + MAX_SILENT_BEATS * 2.0
    now = 12.0
    while now < end:
        assert welcome.word_due(now) == "heartbeat"
        now += 2.0
    assert welcome.word_due(end) == "hello"
    assert (welcome.incarnation, welcome.n_silences) == (0, 1)


@pytest.mark.parametrize(
    "sign", [m.Heartbeat(7, 0, 0), m.End(7, 1, 1, 1, 1), m.End(6, 1, 1, 1, 1), failure("bad_request")]
)
def test_any_message_is_a_sign_of_life(welcome: LinkState, sign: m.Message) -> None:
    last = 10.0 + MAX_SILENT_BEATS * 2.0
    welcome.hear(sign, last - 0.1)
    assert welcome.word_due(last + 1.0) == "heartbeat"
    assert welcome.word_due(last - 0.1 + MAX_SILENT_BEATS * 2.0) == "hello"


_EVENTS = st.sampled_from(
    [
        WELCOME,
        m.Heartbeat(7, 0, 0),
        m.End(7, 1, 1, 1, 1),
        failure("unknown_incarnation"),
        failure("refused"),
        failure("bad_request"),
        True,
        False,
        None,
    ]
)


@given(st.lists(st.tuples(_EVENTS, st.integers(0, 120).map(lambda n: n / 4)), max_size=30))
def test_it_never_hurries_and_never_sleeps_past_its_duty(events: list[tuple[m.Message | bool | None, float]]) -> None:
    """Whatever happens: between two words lies a beat unless something happened, and `wait_s` ends when one is due."""
    state, now = LinkState(1.0), 0.0
    for event, elapsed in events:
        now += elapsed
        if isinstance(event, bool):
            state.connection(event, now)
        elif event is not None:
            state.hear(event, now)
        word = state.word_due(now)
        assert state.word_due(now) is None  # not twice
        assert word != "heartbeat" or state.incarnation
        wait_s = state.wait_s(now)
        assert 0.0 < wait_s <= 3600.0
        if state.incarnation or (word == "hello"):
            assert wait_s <= 2.0
            now += wait_s
            assert state.word_due(now) is not None
