"""The codec accepts exactly the bytes of valid messages and answers everything else with ProtocolError."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, get_args

import msgpack
import msgspec.inspect as mi
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.errors import ProtocolError
from outrider.wire import messages as m
from outrider.wire.codec import MAX_ARRAYS, MAX_MESSAGE_BYTES, decode, encode
from tests.wire_samples import MESSAGE_TYPES, SAMPLES, as_array, messages

NAN, INF = float("nan"), float("inf")
NAMES = list(SAMPLES)


def refused(data: bytes) -> str:
    """The reason for which these bytes are refused."""
    with pytest.raises(ProtocolError) as caught:
        decode(data)
    return str(caught.value)


def pack(value: object) -> bytes:
    data: bytes = msgpack.packb(value)
    return data


def valid_or_refused(data: bytes) -> m.Message | None:
    """Decode; a message that comes out must be one that can be sent."""
    try:
        message = decode(data)
    except ProtocolError:
        return None
    assert decode(encode(message)) == message
    return message


def replaced(array: list[Any], path: tuple[int, ...], value: object) -> list[Any]:
    """A copy with one leaf exchanged."""
    copy = list(array)
    copy[path[0]] = replaced(array[path[0]], path[1:], value) if len(path) > 1 else value
    return copy


def leaves(array: list[Any], kind: type, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where values of this very type are, nested ones too."""
    for i, value in enumerate(array):
        if isinstance(value, list):
            yield from leaves(value, kind, (*path, i))
        elif type(value) is kind:
            yield (*path, i)


# --- what must work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", MESSAGE_TYPES, ids=lambda cls: cls.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_message_comes_back_as_it_was(cls: type[m.Message], data: st.DataObject) -> None:
    message = data.draw(messages(cls))
    back = decode(encode(message))
    assert back == message
    assert type(back) is cls


def test_a_context_of_the_largest_size_fits() -> None:
    tokens = [2**31 - 1] * (1 << 20)
    message = m.Process(1, 2, 3, 4, 1 << 20, 5, 0, tokens)
    assert decode(encode(message)) == message


def test_the_most_chat_messages_fit() -> None:
    message = m.Tokenize(1, 2, "", [m.ChatMessage("user", "x" * 64)] * 4096, True, True, False)
    assert decode(encode(message)) == message


def test_an_integer_is_taken_for_a_float() -> None:
    # Encoders of other languages write 1.0 as 1.
    welcome = decode(pack([2, 1, 3, 1]))
    assert isinstance(welcome, m.Welcome)
    assert isinstance(welcome.heartbeat_s, float)


# --- shape -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_or_extra_field_is_refused(name: str) -> None:
    array = as_array(SAMPLES[name])
    assert name in refused(pack(array[:-1]))
    assert name in refused(pack([*array, 0]))
    refused(pack(array[:1]))


@pytest.mark.parametrize("n_fields", [0, 1, 5, 13])
def test_settings_of_the_sampler_have_no_defaults_on_the_wire(n_fields: int) -> None:
    array = as_array(SAMPLES["Begin"])
    assert "fields are missing" in refused(pack(replaced(array, (6,), array[6][:n_fields])))


def test_no_other_message_has_defaults() -> None:
    """Those that have are looked at once more when they are read."""

    def has_defaults(info: mi.Type) -> bool:
        match info:
            case mi.StructType(fields=fields):
                return any(not field.required or has_defaults(field.type) for field in fields)
            case mi.ListType(item_type=item_type):
                return has_defaults(item_type)
            case mi.UnionType(types=types):
                return any(map(has_defaults, types))
        return False

    assert [cls for cls in get_args(m.AnyMessage) if has_defaults(mi.type_info(cls))] == [m.Begin]


@pytest.mark.parametrize("tag", [0, 6, 19, 127, 128, -1, 2**64 - 1, True, 1.0, "1", b"\x01", None, [1]])
def test_a_tag_that_is_no_integer_of_ours_is_refused(tag: object) -> None:
    refused(pack([tag, 1, "draft", "d", 1]))


@pytest.mark.parametrize("value", [None, True, 1, 2.5, "text", b"bytes", [], {}, {1: 2}, {"tag": 1}, [[]], [[1]]])
def test_what_is_no_message_is_refused(value: object) -> None:
    refused(pack(value))


@pytest.mark.parametrize("value", [None, "text", bytearray(encode(SAMPLES["Hello"])), memoryview(b"\x90"), [1], 5])
def test_what_is_no_bytes_is_refused(value: Any) -> None:
    refused(value)


def test_trailing_bytes_and_nothing_are_refused() -> None:
    refused(b"")
    for message in SAMPLES.values():
        refused(encode(message) + b"\x00")
        refused(encode(message) * 2)


# --- values ------------------------------------------------------------------------------------------------------

_INTRUDERS: list[object] = [
    None,
    True,
    -1,
    2**31,
    2**32,
    2**64 - 1,
    -(2**63),
    1.5,
    NAN,
    INF,
    "",
    "x\ny",
    b"",
    b"x" * 70000,
    [],
    [[]],
    [1],
    ["1"],
    {},
    {"a": 1},
    "x" * 5000,
]


@pytest.mark.parametrize("name", NAMES)
def test_any_value_in_any_place_is_refused_or_valid(name: str) -> None:
    array = as_array(SAMPLES[name])
    for i in range(1, len(array)):
        assert sum(valid_or_refused(pack(replaced(array, (i,), value))) is None for value in _INTRUDERS) > 10


@pytest.mark.parametrize("name", NAMES)
def test_a_bool_is_no_integer_and_an_integer_no_bool(name: str) -> None:
    array = as_array(SAMPLES[name])
    for path in leaves(array, int):
        refused(pack(replaced(array, path, True)))
    for path in leaves(array, bool):
        refused(pack(replaced(array, path, 1)))


@pytest.mark.parametrize("name", NAMES)
def test_integers_are_neither_negative_nor_floats_nor_strings(name: str) -> None:
    array = as_array(SAMPLES[name])
    for path in leaves(array, int):
        refused(pack(replaced(array, path, -2)))
        refused(pack(replaced(array, path, 1.0)))
        refused(pack(replaced(array, path, "1")))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["Welcome", "Begin", "DraftRequest", "DraftTokens"])
def test_floats_are_finite(name: str, value: float) -> None:
    array = as_array(SAMPLES[name])
    paths = list(leaves(array, float))
    assert paths
    for path in paths:
        refused(pack(replaced(array, path, value)))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (m.Hello(1, "draft", "", 1), "name"),
        (m.Hello(1, "draft", "x" * 65, 1), "name"),
        (m.Hello(1, "draft", "../x", 1), "name"),
        (m.Hello(1, "draft", "line\n", 1), "name"),
        (m.Hello(1, "spy", "x", 1), "role"),  # type: ignore[arg-type]
        (m.Hello(2**32, "draft", "x", 1), "protocol"),
        (m.Welcome(1, 0, 0.5), "incarnation"),
        (m.Welcome(1, 1, 0.0), "heartbeat_s"),
        (m.Welcome(1, 1, 60.1), "heartbeat_s"),
        (m.VocabRequest(1, 2**16), "block"),
        (m.VocabBlock(1, 2, 3, [b""] * 1025), "texts"),
        (m.VocabBlock(1, 2, 3, [b"x" * 65537]), "texts"),
        (m.Process(1, 2, 3, 4, 5, 6, 7, [2**31]), "tail"),
        (m.Process(1, 2, 3, 4, 5, 6, 7, [-1]), "tail"),
        (m.DraftRequest(1, 2, 3, 4, 5, 6, 7, [1], 0, 0, 0.5, 0, 0, True), "n_max"),
        (m.DraftRequest(1, 2, 3, 4, 5, 6, 7, [1], m.MAX_DRAFT + 1, 0, 0.5, 0, 0, True), "n_max"),
        (m.DraftRequest(1, 2, 3, 4, 5, 6, 7, [1], 3, 0, 1.5, 0, 0, True), "p_min"),
        (m.VerifyRequest(1, 2, 3, 4, 5, 6, 7, [1], [1] * (m.MAX_DRAFT + 1), 0, False), "draft"),
        (m.Accept(1, 2, 3, 4, 5, 2**16, True), "n_accepted"),
        (m.Failure(1, 2, 3, 4, 5, 0, "engine", "x" * 4097), "reason"),
        (m.Failure(1, 2, 3, 4, 5, 0, "other", "x"), "code"),  # type: ignore[arg-type]
    ],
)
def test_values_out_of_bounds_are_refused_on_both_sides(message: m.Message, field: str) -> None:
    with pytest.raises(ProtocolError, match=field):
        encode(message)
    assert field in refused(pack(as_array(message)))


@pytest.mark.parametrize("n_draft", [0, 1, m.MAX_DRAFT])
def test_drafts_of_every_allowed_length_travel(n_draft: int) -> None:
    message = m.VerifyRequest(1, 2, 3, 4, 5, 6, 7, [1], [1] * n_draft, 0, False)
    assert decode(encode(message)) == message


def test_arrays_that_belong_together_have_one_length() -> None:
    draft, verdict = as_array(SAMPLES["DraftTokens"]), as_array(SAMPLES["Verdict"])
    for i in (7, 8, 9):
        assert "differ in length" in refused(pack(replaced(draft, (i,), draft[i][:1])))
    assert "differ in length" in refused(pack(replaced(draft, (10, 0, 2), [0.5])))  # of a branch
    assert "more was accepted" in refused(pack(replaced(verdict, (7,), 0)))  # n_tested
    refused(pack(replaced(verdict, (8,), 2)))  # accepted
    refused(pack(replaced(verdict, (8,), 0)))
    refused(pack(replaced(verdict, (10,), [b"x"])))  # pieces
    refused(pack(replaced(verdict, (12,), [1])))  # row_hashes


def test_a_float_that_is_not_finite_does_not_leave() -> None:
    array: list[Any] = as_array(SAMPLES["DraftTokens"])[1:]
    for value in (NAN, INF, -0.1, 1.1):
        with pytest.raises(ProtocolError, match="probs"):
            encode(m.DraftTokens(*array[:7], [value, 0.5], *array[8:]))


def test_integers_beyond_64_bits_and_lone_surrogates_do_not_leave() -> None:
    with pytest.raises(ProtocolError, match="out of range"):
        encode(m.End(1, 2**64, 3, 4, 5))
    with pytest.raises(ProtocolError, match="surrogates"):
        encode(m.Chunk(1, 2, "\ud800"))


def test_a_message_that_did_not_leave_is_no_part_of_the_next() -> None:
    expected = encode(m.Chunk(1, 2, "text"))
    with pytest.raises(ProtocolError):
        encode(m.Chunk(1, 2, 10_000 * "x" + "\ud800"))
    assert encode(m.Chunk(1, 2, "text")) == expected


def test_unsigned_integers_go_up_to_64_bits() -> None:
    assert decode(encode(m.End(1, 2**64 - 1, 3, 4, 5))) == m.End(1, 2**64 - 1, 3, 4, 5)


def test_bytes_are_no_text_and_text_no_bytes() -> None:
    refused(pack([41, 5, 1, b"text"]))
    assert "texts" in refused(pack([5, 1, 2, 3, ["aGVsbG8="]]))
    refused(b"\x94\x29\x05\x01\xa2\xff\xfe")  # text that is no UTF-8


# --- hostile bytes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\xdd\x7f\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdc\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 1024,
        b"\x91" * 1025,
        b"\x91" * 100_000,
        b"\x81" * 1025,
        b"\xdd\x00\x0f\xff\xff" * 1000,
        b"\xdd\x00\x10\x00\x00" * 1000 + bytes(1 << 20),
        b"\xd4\x05x",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xc7\x00\x01",
        b"\x95\x01\x01\xd4\x01x\xa1d\x01",
        b"\x95\x01\x01\xc7\x00\x05\xa1d\x01",
        b"\x95\x01\x80\xa5draft\xa1d\x01",
        b"\x95\x01\x82\xa1a\x01\xa1a\x02\xa5draft\xa1d\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
    ],
    ids=lambda data: data[:8].hex(),
)
def test_bombs_extension_types_maps_and_foreign_protocols_are_refused(data: bytes) -> None:
    refused(data)


def test_deep_nesting_inside_a_field_is_refused() -> None:
    refused(b"\x99\x0b\x01\x02\x03\x04\x05\x06\x00" + b"\x91" * 1000 + b"\x90")


def test_an_array_of_very_many_arrays_is_refused() -> None:
    n = 1 << 20
    reason = refused(
        b"\x99\x0b\x01\x02\x03\x04\x05\x06\x00\xdd" + n.to_bytes(4, "big") + b"\x97" * 1 + b"\x90" * (n + 6)
    )
    assert str(MAX_ARRAYS) in reason


def test_the_size_is_bounded_on_both_sides() -> None:
    text = "x" * (1 << 22)
    with pytest.raises(ProtocolError, match=str(MAX_MESSAGE_BYTES)):
        encode(m.Tokenize(1, 2, text, [m.ChatMessage("user", text)], True, True, False))
    assert str(MAX_MESSAGE_BYTES) in refused(bytes(MAX_MESSAGE_BYTES + 1))
    refused(bytes(120_000_000))


def test_an_array_longer_than_a_context_is_refused() -> None:
    n = 1 << 20
    head, tail = encode(m.Process(1, 2, 3, 4, 5, 6, 0, [])).split(b"\x90")

    def of_length(n: int) -> bytes:
        return head + b"\xdd" + n.to_bytes(4, "big") + bytes(n) + tail

    assert decode(of_length(n)) == m.Process(1, 2, 3, 4, 5, 6, 0, [0] * n)
    assert f"max_array_len({n})" in refused(of_length(n + 1))  # before room was made for it


@pytest.mark.parametrize("name", NAMES)
def test_flipping_any_bit_and_cutting_anywhere_gives_a_refusal_or_a_valid_message(name: str) -> None:
    data = encode(SAMPLES[name])
    for i in range(len(data)):
        refused(data[:i])
        for bit in range(8):
            valid_or_refused(data[:i] + bytes([data[i] ^ (1 << bit)]) + data[i + 1 :])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_give_a_refusal_or_a_valid_message(data: bytes) -> None:
    valid_or_refused(data)


_JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary() | st.text("aß\n"),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([cls.__struct_config__.tag for cls in MESSAGE_TYPES]), st.lists(_JSONISH, max_size=15))
def test_random_structures_give_a_refusal_or_a_valid_message(tag: int, rest: list[object]) -> None:
    valid_or_refused(pack([tag, *rest]))


def test_reasons_are_one_short_printable_line() -> None:
    for data in (pack([31, 0, 0, 0, 0, 0, 0, "x\n\x1b[31m" * 100, "y"]), b"\x91\xa3\xff\xfe\n", b"\xa5\n\n\n\n\n"):
        reason = refused(data)
        assert reason.isprintable()
        assert len(reason) < 300


# --- memory ------------------------------------------------------------------------------------------------------


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def malformed(rng: random.Random) -> bytes:
    """A valid message, hurt."""
    data = bytearray(encode(rng.choice(list(SAMPLES.values()))))
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        return bytes(data) + rng.randbytes(3)
    if kind == 2:
        return pack({rng.random(): rng.randbytes(20)})
    if kind == 3:
        return b"\xdd" + rng.randbytes(4) + bytes(data) * rng.randrange(20)
    if kind == 4:
        return b"\xdc\x00\xc8" * rng.randrange(1100) + bytes(data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("n", [20_000, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_malformed_messages_leave_no_memory_behind(n: int) -> None:
    rng = random.Random(0)
    for _ in range(2_000):
        valid_or_refused(malformed(rng))
    before = rss_bytes()
    for _ in range(n):
        valid_or_refused(malformed(rng))
    assert rss_bytes() - before < 10_000_000
