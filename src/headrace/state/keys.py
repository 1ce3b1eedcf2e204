"""Keys of a state as bytes: in the order of the keys, so that ranges of keys are ranges of bytes.

A key that is one text or one value of bytes is its own bytes (UTF-8), so that any Kafka producer writes the same key
and agrees on its partition. Any other key, and every part of a compound key, begins with a byte for its type and
marks its own end; parts follow one another. Text and bytes in it end with 00, and a 00 inside becomes
00 FF. The partition of a compound key is that of its first part: keys that share it lie together.
"""

from __future__ import annotations

import datetime
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.errors import BadArgument, NotReadable, NotStorable

__all__ = [
    "OWNERSHIP_KEY",
    "RESERVED_PREFIX",
    "OrderedKeys",
    "after_prefix",
    "decode_parts",
    "encode_part",
    "encode_parts",
]

K = TypeVar("K")

# Records under such keys belong to the machinery: epochs, releases, positions. States never show them.
RESERVED_PREFIX = b"\x00hr"
OWNERSHIP_KEY = RESERVED_PREFIX + b".owner"

_BYTES, _TEXT, _ZERO, _FALSE, _TRUE, _UUID, _DATE, _TIME = 0x01, 0x02, 0x14, 0x26, 0x27, 0x30, 0x40, 0x41
_MAX_INT_BYTES = 8
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_TIME_OFFSET = 1 << 63
_FIRST_TIME = datetime.datetime.min.replace(tzinfo=datetime.UTC) - _EPOCH
_LAST_TIME = datetime.datetime.max.replace(tzinfo=datetime.UTC) - _EPOCH


def encode_part(value: Any) -> bytes:  # noqa: ANN401
    """Return one part of a key: its type, its bytes, its end. Raises NotStorable."""
    encode = _ENCODERS.get(type(value))
    if encode is None:
        raise NotStorable("the key", repr(value), f"keys are made of {_KINDS}, not of {type(value).__name__}")
    return encode(value)


def encode_parts(values: tuple[Any, ...]) -> bytes:
    """Return a compound key, or the beginning of one."""
    return b"".join(map(encode_part, values))


def decode_parts(data: bytes) -> tuple[Any, ...]:
    """Return the parts of a compound key. Raises NotReadable."""
    parts, at = [], 0
    while at < len(data):
        part, at = _decode_part(data, at)
        parts.append(part)
    return tuple(parts)


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first bytes behind all that begin with `prefix`; None if there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class OrderedKeys(Generic[K]):
    """Keys of one type: str, bytes, int, bool, UUID, date, datetime with a time zone, or a tuple of these."""

    def __init__(self, hint: type[K] | Any) -> None:  # noqa: ANN401
        self._parts = _parts_of(hint)
        self._hint = hint
        self._is_text = hint is str
        self.is_compound = self._parts is not None

    @property
    def type_name(self) -> str:
        """The type of the keys, as it is declared."""
        return _name(self._hint)

    def encode(self, key: K) -> bytes:
        """Return the key's bytes. Raises NotStorable, or BadArgument for a key that is reserved."""
        if self._is_text and isinstance(key, str) and key.isascii() and key[:1] != "\x00" and type(key) is str:
            return key.encode()  # the usual case
        if self._parts is not None:
            self._check_parts(key, is_whole=True)
            return encode_parts(key)  # type: ignore[arg-type]
        return self._encode_single(key)

    def decode(self, data: bytes) -> K:
        """Return the key. Raises NotReadable."""
        if self._parts is not None:
            found: Any = decode_parts(data)
        elif self._hint is bytes:
            found = data
        elif self._hint is str:
            found = _text(data)
        else:
            found = next(iter(decode_parts(data)), None)
        if not self._fits(found):
            raise NotReadable("a key", repr(data), f"it is {found!r}, not {_name(self._hint)}")
        return typing.cast("K", found)

    def routing_bytes(self, key: K) -> bytes:
        """Return the bytes that decide the key's partition: of its first part, if it is compound."""
        if self._parts is None:
            return self.encode(key)
        self._check_parts(key, is_whole=True)
        return _plain(typing.cast("tuple[Any, ...]", key)[0])

    def encode_routed(self, key: K) -> tuple[bytes, bytes]:
        """Return the bytes that decide the key's partition, and the key's own."""
        data = self.encode(key)
        return (data if self._parts is None else self.routing_bytes(key)), data

    def prefix_range(self, prefix: Any) -> tuple[bytes, bytes | None]:  # noqa: ANN401
        """Return the range of all keys with this prefix: the first parts, or a text, or bytes."""
        if self._parts is not None:
            parts = prefix if isinstance(prefix, tuple) else (prefix,)
            self._check_parts(parts, is_whole=False)
            start = encode_parts(parts)
            # A part begins with its type, which is below ff; behind the end of a text ff means that it goes on.
            return start, (start + b"\xff" if parts else None)
        if self._hint not in (str, bytes):
            raise BadArgument("prefix", prefix, f"keys of type {_name(self._hint)} have no prefixes; use a range")
        start = b"" if type(prefix) is self._hint and not prefix else self._encode_single(prefix)
        return start, after_prefix(start)

    def bound(self, key: Any) -> bytes:  # noqa: ANN401
        """Return the bytes of a range's end: of a key, or of the first parts of one."""
        if self._parts is None:
            return self._encode_single(key)
        parts = key if isinstance(key, tuple) else (key,)
        self._check_parts(parts, is_whole=False)
        return encode_parts(parts)

    def _encode_single(self, key: Any) -> bytes:  # noqa: ANN401
        if not self._fits(key):
            raise NotStorable("the key", repr(key), f"this state's keys are {_name(self._hint)}")
        data = _plain(key)
        if data.startswith(RESERVED_PREFIX):
            raise BadArgument("key", key, "keys that begin with the bytes 00 68 72 are reserved; choose another")
        return data

    def _check_parts(self, key: Any, *, is_whole: bool) -> None:  # noqa: ANN401
        kinds = self._parts or ()
        is_long_enough = isinstance(key, tuple) and (len(key) == len(kinds) if is_whole else len(key) <= len(kinds))
        if not is_long_enough or any(type(part) is not kind for part, kind in zip(key, kinds, strict=False)):
            raise NotStorable("the key", repr(key), f"this state's keys are {_name(self._hint)}")

    def _fits(self, key: Any) -> bool:  # noqa: ANN401
        if self._parts is None:
            return type(key) is self._hint
        return len(key) == len(self._parts) and all(type(p) is k for p, k in zip(key, self._parts, strict=True))


def _parts_of(hint: Any) -> tuple[type, ...] | None:  # noqa: ANN401
    """Return the types of a compound key's parts; None for a single one. Raises BadArgument."""
    if isinstance(hint, types.GenericAlias) and hint.__origin__ is tuple:
        parts: tuple[type, ...] = hint.__args__
        if parts and all(part in _ENCODERS for part in parts):
            return parts
    elif hint in _ENCODERS:
        return None
    raise BadArgument("key", hint, f"keys are of type {_KINDS}, or tuple[…] of these")


def _plain(value: Any) -> bytes:  # noqa: ANN401
    """Return a key that stands alone."""
    if isinstance(value, bytes):
        return value
    return _utf8(value) if isinstance(value, str) else encode_part(value)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise NotStorable("the key", repr(text), "it must be text that UTF-8 can hold") from error


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotReadable("a key", repr(data), str(error)) from error


def _ended(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + data.replace(b"\x00", b"\x00\xff") + b"\x00"


def _encode_int(value: int) -> bytes:
    """Return a whole number: its length stands in the type, a negative one is counted from below."""
    size = (abs(value).bit_length() + 7) // 8
    if size > _MAX_INT_BYTES:
        raise NotStorable("the key", repr(value), f"a whole number in a key has at most {_MAX_INT_BYTES} bytes")
    if value >= 0:
        return bytes([_ZERO + size]) + value.to_bytes(size, "big")
    return bytes([_ZERO - size]) + (value + (1 << 8 * size) - 1).to_bytes(size, "big")


def _encode_time(value: datetime.datetime) -> bytes:
    if value.tzinfo is None:
        raise NotStorable("the key", repr(value), "a time needs a time zone")
    since = value - _EPOCH
    if not _FIRST_TIME <= since <= _LAST_TIME:  # it is kept in UTC: whoever lists the keys could not read it
        raise NotStorable("the key", repr(value), "a time lies in the years 1 to 9999 of UTC")
    return bytes([_TIME]) + (since // _MICROSECOND + _TIME_OFFSET).to_bytes(8, "big")


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    bytes: lambda value: _ended(_BYTES, value),
    str: lambda value: _ended(_TEXT, _utf8(value)),
    int: _encode_int,
    bool: lambda value: bytes([_TRUE if value else _FALSE]),
    uuid.UUID: lambda value: bytes([_UUID]) + value.bytes,
    datetime.date: lambda value: bytes([_DATE]) + value.toordinal().to_bytes(4, "big"),
    datetime.datetime: _encode_time,
}
_KINDS = ", ".join(kind.__name__ for kind in _ENCODERS)


def _decode_part(data: bytes, at: int) -> tuple[Any, int]:
    """Return the part that begins at `at`, and where the next one does."""
    tag, at = data[at], at + 1
    if tag in (_BYTES, _TEXT):
        content, at = _until_end(data, at)
        return (content if tag == _BYTES else _text(content)), at
    if _ZERO - _MAX_INT_BYTES <= tag <= _ZERO + _MAX_INT_BYTES:
        size = abs(tag - _ZERO)
        number = int.from_bytes(_take(data, at, size), "big")
        return (number if tag >= _ZERO else number - (1 << 8 * size) + 1), at + size
    if tag in (_FALSE, _TRUE):
        return tag == _TRUE, at
    if tag == _UUID:
        return uuid.UUID(bytes=_take(data, at, 16)), at + 16
    return _decode_day(data, tag, at)


def _decode_day(data: bytes, tag: int, at: int) -> tuple[Any, int]:
    try:
        if tag == _DATE:
            return datetime.date.fromordinal(int.from_bytes(_take(data, at, 4), "big")), at + 4
        if tag == _TIME:
            ticks = int.from_bytes(_take(data, at, 8), "big") - _TIME_OFFSET
            return _EPOCH + ticks * _MICROSECOND, at + 8
    except (ValueError, OverflowError) as error:
        raise NotReadable("a key", repr(data), str(error)) from error
    raise NotReadable("a key", repr(data), f"no part of a key begins with the byte {tag:#04x}")


def _until_end(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\x00", at)
    while end >= 0 and data[end + 1 : end + 2] == b"\xff":
        end = data.find(b"\x00", end + 2)
    if end < 0:
        raise NotReadable("a key", repr(data), "a text in it has no end")
    return data[at:end].replace(b"\x00\xff", b"\x00"), end + 1


def _take(data: bytes, at: int, size: int) -> bytes:
    if len(data) < at + size:
        raise NotReadable("a key", repr(data), "it ends too early")
    return data[at : at + size]


def _name(hint: Any) -> str:  # noqa: ANN401
    return str(hint) if isinstance(hint, types.GenericAlias) else str(getattr(hint, "__name__", hint))
