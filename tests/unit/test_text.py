"""Text out of token bytes: whole characters, stop strings, and no dependence on where tokens or blocks end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.text import TextStream


def stream(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    text = TextStream(stops)
    released = []
    for piece in pieces:
        released.append(text.push(piece))
        if text.stopped_by is not None:
            break
    return [*released, text.finish()], text


@pytest.mark.parametrize(
    ("stops", "body", "stop", "kept"),
    [
        (("zz", "q", "-"), "ab-cq zz", "-", "ab"),  # the one complete first in the text, not in the list
        (("abc", "bc"), "xabc", "abc", "x"),  # two that end together: the longer one
        (("b", "abc"), "xabc", "b", "xa"),
        (("🌱",), "a🌱b", "🌱", "a"),
        (("\n\n",), "a\nb\n\nc", "\n\n", "a\nb"),
    ],
)
def test_first_stop_in_the_text(stops: tuple[str, ...], body: str, stop: str, kept: str) -> None:
    """Whether all comes at once, or byte by byte."""
    for pieces in ([body.encode()], [bytes([byte]) for byte in body.encode()]):
        released, text = stream(pieces, stops)
        assert text.stopped_by == stop
        assert "".join(released) == text.text == kept


def test_a_stop_over_two_chunks_leaks_nothing() -> None:
    released, text = stream([b" un", b"der", b" bl", b"ue", b" sky"], ("der blue",))
    assert released == [" un", "", "", "", ""]
    assert text.text == " un"


def test_what_only_began_like_a_stop_comes_later_in_order() -> None:
    released, _ = stream([b"a", b"de", b"r", b"x", b"y"], ("der blue",))
    assert released == ["a", "", "", "derx", "y", ""]
    assert "".join(stream([b"a", b"der bl"], ("der blue",))[0]) == "ader bl"


def test_characters_split_over_tokens_come_whole() -> None:
    seedling = "🌱".encode()
    assert stream([seedling[:1], seedling[1:2], seedling[2:3], seedling[3:]])[0] == ["", "", "", "🌱", ""]
    assert stream([b"a" + seedling[:2], seedling[2:] + b"b"])[0] == ["a", "🌱b", ""]


def test_cut_and_invalid_characters_are_replaced_once() -> None:
    assert "".join(stream(["🌱".encode()[:3]])[0]) == "�"
    assert "".join(stream([b"a\xffb"])[0]) == "a�b"


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_text_does_not_depend_on_the_cut(body: str, stops: list[str], data: st.DataObject) -> None:
    raw = body.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    _, expected = stream([bytes([byte]) for byte in raw], tuple(stops))
    released, text = stream(pieces, tuple(stops))
    assert "".join(released) == text.text == expected.text
    assert text.stopped_by == expected.stopped_by
    assert not any(stop in text.text for stop in stops)
