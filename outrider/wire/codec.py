"""Bytes to messages and back. `msgpack` makes and reads the bytes, `msgspec` checks every value.

    encode    message → builtins → check → msgpack bytes
    decode    msgpack bytes → builtins → check → message

Both run the same check, so nothing leaves that would not arrive: NaN from a broken model, an integer beyond its range
or a text that is no Unicode is an error where it is made. Whatever goes wrong is a ProtocolError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgpack
import msgspec

from outrider.errors import ProtocolError
from outrider.types import MAX_TOKENS
from outrider.wire.messages import AnyMessage, Begin, Message

#: The longest message, in bytes: a context of MAX_TOKENS tokens takes 5 MiB.
MAX_MESSAGE_BYTES = 8 << 20
#: The most arrays in one message (4,096 chat messages are the most that a valid one has). 8 MiB can hold eight million
#: empty arrays, which would take half a gigabyte of objects.
MAX_ARRAYS = 1 << 14
#: Shorter messages cannot do harm by their number of arrays.
_SMALL = 1 << 16

#: Kept, for making its buffer costs as much as all the rest. Any thread may use it: it packs under the interpreter's lock.
_packer = msgpack.Packer()  # type: ignore[attr-defined, no-untyped-call]

#: They hold values that may be left out in Python (the sampler's settings), and not on the wire.
_HAVE_DEFAULTS = (Begin,)

_CLASSES: dict[int, type[Message]] = {cls.__struct_config__.tag: cls for cls in get_args(AnyMessage)}
_MessageT = TypeVar("_MessageT", bound=Message)
_PATH = re.compile(r"\$\[(\d+)\]")


def encode(message: Message) -> bytes:
    """Raises ProtocolError if a value does not fit its field or the message is longer than MAX_MESSAGE_BYTES."""
    fields = _builtins(message)
    _check(fields, type(message))
    try:
        data: bytes = _packer.pack(fields)  # type: ignore[no-untyped-call]
    except (ValueError, OverflowError) as error:  # a lone surrogate; an integer beyond 64 bits
        raise ProtocolError(f"{type(message).__name__}: {_printable(error)}") from None
    _check_size(len(data), type(message).__name__)
    return data


def decode(data: bytes) -> Message:
    """Raises ProtocolError, and nothing else, for anything but the bytes of one valid message."""
    fields = _unpack(data)
    cls = _class_of(fields)
    message = _check(fields, cls)
    if cls in _HAVE_DEFAULTS and _builtins(message) != fields:
        raise ProtocolError(f"{cls.__name__}: fields are missing")
    return message


def _builtins(message: Message) -> list[Any]:
    fields: list[Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    return fields


def _check(fields: list[Any], cls: type[_MessageT]) -> _MessageT:
    try:
        return msgspec.convert(fields, cls, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{cls.__name__}: {_printable(_with_field_name(str(error), cls))}") from None


def _check_size(n_bytes: int, what: str) -> None:
    if n_bytes > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"{what}: {n_bytes} bytes, at most {MAX_MESSAGE_BYTES} are allowed")


def _unpack(data: bytes) -> Any:
    if type(data) is not bytes:
        raise ProtocolError(f"a message is bytes, not {type(data).__name__}")
    _check_size(len(data), "message")
    try:
        return msgpack.unpackb(  # type: ignore[attr-defined, no-untyped-call]
            data,
            # Room is made for the length that an array claims: never for more than there are bytes.
            max_array_len=min(MAX_TOKENS, len(data)),
            max_str_len=MAX_MESSAGE_BYTES,
            max_bin_len=MAX_MESSAGE_BYTES,
            max_map_len=0,
            max_ext_len=0,
            ext_hook=_refuse_ext,
            list_hook=None if len(data) < _SMALL else _array_counter(),
        )
    except (ValueError, MemoryError, RecursionError) as error:
        raise ProtocolError(f"no msgpack: {_printable(error) or type(error).__name__}") from None


def _refuse_ext(code: int, _: bytes) -> None:
    raise ValueError(f"extension type {code}")


def _array_counter() -> Callable[[list[Any]], list[Any]]:
    """A hook that fails once an array too many is finished."""
    n_arrays = 0

    def count(array: list[Any]) -> list[Any]:
        nonlocal n_arrays
        n_arrays += 1
        if n_arrays > MAX_ARRAYS:
            raise ValueError(f"more than {MAX_ARRAYS} arrays")
        return array

    return count


def _class_of(fields: Any) -> type[Message]:
    # `type(...) is int`: True and 1.0 are keys equal to 1.
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise ProtocolError("a message is an array that begins with an integer tag")
    cls = _CLASSES.get(fields[0])
    if cls is None:
        raise ProtocolError(f"no message has tag {fields[0]}")
    return cls


def _with_field_name(error: str, cls: type[Message]) -> str:
    """`… at `$[2]`` speaks of positions in the array; name the field instead."""

    def name(match: re.Match[str]) -> str:
        index = int(match[1]) - 1  # behind the tag
        names = cls.__struct_fields__
        return names[index] if 0 <= index < len(names) else match[0]

    return _PATH.sub(name, error, count=1)


def _printable(error: object) -> str:
    """One short line that is safe in a log, whatever the peer wrote into its message."""
    return str(error).encode("unicode_escape").decode()[:200]
