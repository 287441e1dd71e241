"""The bytes of every message, kept in `tests/data/messages.json`: a change of them is a change of the protocol.

`python -m tests.unit.test_messages_golden` writes the file anew, after PROTOCOL_VERSION was raised.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.wire.codec import decode, encode
from outrider.wire.messages import PROTOCOL_VERSION, Accept, Hello, Message
from tests.wire_samples import MESSAGE_TYPES, SAMPLES

GOLDEN = Path(__file__).parent.parent / "data" / "messages.json"
NAMES = [cls.__name__ for cls in MESSAGE_TYPES]


def current() -> dict[str, object]:
    entries = {name: {"message": repr(SAMPLES[name]), "hex": encode(SAMPLES[name]).hex()} for name in NAMES}
    return {"protocol": PROTOCOL_VERSION, "messages": entries}


def test_the_version_is_that_of_the_file() -> None:
    assert json.loads(GOLDEN.read_text())["protocol"] == PROTOCOL_VERSION


def test_the_file_has_every_message() -> None:
    assert sorted(json.loads(GOLDEN.read_text())["messages"]) == sorted(NAMES)


def test_tags_are_unique_and_small() -> None:
    tags = [cls.__struct_config__.tag for cls in MESSAGE_TYPES]
    assert len(set(tags)) == len(tags)
    assert all(isinstance(tag, int) and 0 < tag < 128 for tag in tags)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_the_golden_ones(name: str) -> None:
    golden = bytes.fromhex(json.loads(GOLDEN.read_text())["messages"][name]["hex"])
    assert encode(SAMPLES[name]) == golden
    assert decode(golden) == SAMPLES[name]


@pytest.mark.parametrize(
    ("message", "by_hand"),
    [
        # array of 5; tag 1; protocol 1; "draft"; "d"; u16 258
        (Hello(1, "draft", "d", 258), "950101a5 6472616674a1 64cd 0102"),
        # array of 8; tag 17; 1, 2^32, 3, 4, 5; 6; true
        (Accept(1, 2**32, 3, 4, 5, 6, True), "981101cf 000000010000000003040506c3"),
    ],
)
def test_bytes_written_by_hand(message: Message, by_hand: str) -> None:
    assert encode(message) == bytes.fromhex(by_hand)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(current(), indent=1, ensure_ascii=False) + "\n")
