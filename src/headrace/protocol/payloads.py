"""The value of an Append record: its events as JSON, or in a binary form if at least one payload is binary.

Both forms are kafka-journal's, byte for byte. Payloads are kept as bytes (`Encoded`): those of the JSON, of the text,
or the binary itself. So carrying them from the log to the store decodes nothing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec

from headrace.errors import BadArgument
from headrace.model import Event, Payload
from headrace.protocol.actions import PayloadFormat, raw_json

__all__ = [
    "MAX_JSON_DEPTH",
    "AppendValue",
    "Encoded",
    "binary_event",
    "binary_payload",
    "check_finite",
    "checked_depth",
    "checked_json",
    "checked_numbers",
    "decode_payload",
    "decode_value",
    "encode_binary_events",
    "encode_events",
    "encode_json",
    "encode_json_payload",
    "encode_value",
]

# Decoders call themselves for each level, and Python ends them at 1000 calls, those of the program included. A depth
# that only some readers can decode would hold a journal in one process and not in another.
MAX_JSON_DEPTH: Final = 500

_KINDS = (None, "binary", "json", "text")
_INT = struct.Struct(">i")
_HEAD = struct.Struct(">qi")
_COUNT = struct.Struct(">Bi")
# An event without tags: size of what follows, seq_nr, size of the tags, kind, size of the payload.
_UNTAGGED = struct.Struct(">iqiBi")
_UNTAGGED_BODY = _UNTAGGED.size - 4
_BINARY = 1
# A whole value of one such event, up to its payload: version, count, and the event as above.
_ONE = struct.Struct(">BiiqiBi")
_NO_METADATA = b"{}"
_ENVELOPE_DEPTH = 3  # of a value around its payloads: the value, its list of events, the event
_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_AS_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
# Numbers with every digit as 0. JSON is copied without decoding its numbers, but only those with an exponent of three
# digits, or with so many digits that one of two is enough, can be out of range: such JSON is decoded to see.
_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS = b"0" * 200
_ONE_JSON = b'{"events":[{"seqNr":%d,"tags":[],"payloadType":"json","payload":%b}],"metadata":{}}'
_json_encode = msgspec.json.Encoder().encode


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An event with its payload as bytes; `payload_type` is None, "binary", "json" or "text"."""

    seq_nr: int
    tags: tuple[str, ...] = ()
    payload_type: str | None = None
    payload: bytes | None = None


class AppendValue(msgspec.Struct, frozen=True, gc=False):
    """The value of an Append record: its events, and what applies to all of them. `metadata` is JSON."""

    events: tuple[Encoded, ...]
    expire_after: str | None = None
    metadata: bytes | None = None


class _Metadata(msgspec.Struct, frozen=True, omit_defaults=True, rename={"expire_after": "expireAfter"}):
    expire_after: str | int | None = None  # kafka-journal writes text, and reads a number as milliseconds
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _JsonEvent(msgspec.Struct, frozen=True):
    """The fields in kafka-journal's order; absent options are left out."""

    seqNr: int  # noqa: N815
    tags: tuple[str, ...] = ()
    payloadType: str | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _JsonValue(msgspec.Struct, frozen=True):
    events: tuple[_JsonEvent, ...]
    metadata: _Metadata | None = _Metadata()


_decode_json_value = msgspec.json.Decoder(_JsonValue).decode
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def encode_events(events: Sequence[Event]) -> tuple[Encoded, ...]:
    """Encode payloads as bytes. Raises BadArgument for what JSON can't carry."""
    return tuple(Encoded(event.seq_nr, event.tags, *_encode_payload(event)) for event in events)


def encode_binary_events(events: Sequence[Event]) -> bytes | None:
    """Return the value of an append of plain binary events; None if one has a tag or another payload.

    It returns the same bytes as `encode_value`, ten times faster; most appends are of this kind.
    """
    if len(events) == 1:
        return _encode_binary_event(events[0])
    parts = [_COUNT.pack(1, len(events))]
    for event in events:
        payload: object = event.payload
        if type(payload) is not bytes or event.tags != ():
            return None
        size = len(payload)
        parts += (_UNTAGGED.pack(_UNTAGGED_BODY + size, event.seq_nr, 0, _BINARY, size), payload)
    parts.append(_NO_METADATA)
    return b"".join(parts)


def _encode_binary_event(event: Event) -> bytes | None:
    payload: object = event.payload
    if type(payload) is not bytes or event.tags != ():
        return None
    size = len(payload)
    return _ONE.pack(1, 1, _UNTAGGED_BODY + size, event.seq_nr, 0, _BINARY, size) + payload + _NO_METADATA


def decode_payload(payload_type: str | None, payload: bytes | None) -> Payload:
    """Decode a payload's bytes to what the application gave."""
    if payload_type is None or payload is None:
        return None
    if payload_type == "binary":
        return payload
    return payload.decode() if payload_type == "text" else msgspec.json.decode(payload)


def binary_event(value: bytes) -> tuple[int, bytes] | None:
    """Return seq_nr and payload of a value that holds exactly one plain binary event; None for any other value."""
    if len(value) < _ONE.size or not value.endswith(_NO_METADATA):
        return None
    version, count, size, seq_nr, tags_size, kind, payload_size = _ONE.unpack_from(value)
    is_plain = version == 1 and count == 1 and tags_size == 0 and kind == _BINARY and payload_size >= 0
    if not is_plain or size != _UNTAGGED_BODY + payload_size or len(value) != _ONE.size + payload_size + 2:
        return None
    return seq_nr, value[_ONE.size : -2]


def binary_payload(value: bytes, seq_nr: int) -> bytes | None:
    """Return the payload of a value that holds exactly one plain binary event of that number, else None."""
    size = len(value) - _ONE.size - len(_NO_METADATA)
    if size < 0 or not value.endswith(_NO_METADATA):
        return None
    if not value.startswith(_ONE.pack(1, 1, _UNTAGGED_BODY + size, seq_nr, 0, _BINARY, size)):
        return None
    return value[_ONE.size : -2]


def encode_value(value: AppendValue) -> tuple[PayloadFormat, bytes]:
    """Return the form of the record's value, and its bytes."""
    if any(event.payload_type == "binary" for event in value.events):
        return "binary", _encode_binary(value)
    events = tuple(map(_json_event, value.events))
    return "json", _json_encode(_JsonValue(events, _metadata(value)))


def encode_json_payload(seq_nr: int, payload: bytes) -> bytes:
    """Return the value of an append of one event without tags whose payload is JSON already.

    It returns the same bytes as `encode_value`, and does not look at the payload: whoever made it has.
    """
    return _ONE_JSON % (seq_nr, checked_json(payload))


def decode_value(payload_format: PayloadFormat, value: bytes | None) -> AppendValue:
    """Decode the value of an Append record. Raises ValueError if it is malformed."""
    if value is None:
        raise ValueError("an append has no value")
    try:
        return _decode_json(value) if payload_format == "json" else _decode_binary(value)
    except (struct.error, IndexError) as error:
        raise ValueError(f"the binary value is cut off: {error}") from error


def _encode_payload(event: Event) -> tuple[str | None, bytes | None]:
    payload: Any = event.payload
    if payload is None:
        return None, None
    if isinstance(payload, bytes | bytearray | memoryview):
        return "binary", bytes(payload)
    try:
        return ("text", payload.encode()) if isinstance(payload, str) else ("json", encode_json(payload))
    except (TypeError, ValueError, RecursionError) as error:
        rule = f"a payload is None, bytes, str or what JSON can carry ({error})"
        raise BadArgument(f"payload of event {event.seq_nr}", type(payload).__name__, rule) from error


def _metadata(value: AppendValue) -> _Metadata:
    data = msgspec.UNSET if value.metadata is None else msgspec.Raw(value.metadata)
    return _Metadata(value.expire_after, data)


def _value_of(events: tuple[Encoded, ...], metadata: _Metadata | None) -> AppendValue:
    if metadata is None:
        return AppendValue(events)
    data = raw_json(metadata.data)
    return AppendValue(events, _duration(metadata.expire_after), data if data is None else checked_json(data))


def _duration(written: str | int | None) -> str | None:
    if isinstance(written, int):
        if written < 0:
            raise ValueError(f"expireAfter is {written}")
        return f"{written} milliseconds"
    return written


def _json_event(event: Encoded) -> _JsonEvent:
    if event.payload_type is None or event.payload is None:
        return _JsonEvent(event.seq_nr, event.tags)
    raw = event.payload if event.payload_type == "json" else _json_encode(event.payload.decode())
    return _JsonEvent(event.seq_nr, event.tags, event.payload_type, msgspec.Raw(raw))


def encode_json(value: object) -> bytes:
    """Encode a value as JSON that decodes to the same value. Raises TypeError, ValueError, RecursionError."""
    raw = _json_encode(value)
    raw.decode()
    _decode_raw(checked_json(raw))  # raw JSON inside the value was copied without a check
    if b"null" in raw and type(value) is not msgspec.Raw:  # JSON that is given as it is has no such numbers
        check_finite(value)
    return raw


def check_finite(value: object) -> None:
    """Raise ValueError for numbers that JSON does not have: they would be read as null."""
    left = [msgspec.to_builtins(value)]
    while left:
        one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"JSON has no {one}")
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            left.extend(one)


def checked_json(raw: bytes) -> bytes:
    """Return the JSON if every reader can decode it.

    Raises ValueError if it is nested deeper than MAX_JSON_DEPTH, or a number in it is out of range.
    """
    return checked_numbers(checked_depth(raw, MAX_JSON_DEPTH))


def checked_numbers(raw: bytes) -> bytes:
    """Return the JSON if every reader can decode its numbers, else raise ValueError: 1e400 is JSON, but no float."""
    zeros = raw.translate(_AS_ZEROS)
    if b"0e000" in zeros or b"0e+000" in zeros or _MANY_DIGITS in zeros:
        msgspec.json.decode(raw)
    return raw


def checked_depth(raw: bytes, most: int) -> bytes:
    """Count the levels without decoding: a decoder's own limit depends on how many calls lead to it."""
    if raw.count(b"[") + raw.count(b"{") > most:
        escaped = raw.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in raw else raw
        # Quotes side by side are a text without brackets, or two texts that become one.
        parts = escaped.translate(None, _NO_BRACKETS).replace(b'""', b"").split(b'"')
        steps = b"".join(parts[::2]).translate(_AS_STEPS)
        if max(accumulate(memoryview(steps).cast("b")), default=0) > most:
            raise ValueError(f"its JSON is nested too deeply, by more than {MAX_JSON_DEPTH} levels")
    return raw


def _decode_json(value: bytes) -> AppendValue:
    value.decode()  # payloads are copied without decoding, but must be UTF-8
    try:
        decoded = _decode_json_value(value)
    except RecursionError:  # its own depth, or that of the program around it, which is no fault of the record
        checked_depth(value, MAX_JSON_DEPTH + _ENVELOPE_DEPTH)
        raise
    return _value_of(tuple(map(_encoded, decoded.events)), decoded.metadata)


def _encoded(event: _JsonEvent) -> Encoded:
    if isinstance(event.payload, msgspec.UnsetType):
        return Encoded(event.seqNr, event.tags)
    raw = bytes(event.payload)
    if event.payloadType == "text":
        if raw == b"null":
            return Encoded(event.seqNr, event.tags)
        return Encoded(event.seqNr, event.tags, "text", _decode_text(raw).encode())
    if event.payloadType not in ("json", None, msgspec.UNSET):
        raise ValueError(f"unknown payloadType {event.payloadType!r}")
    return Encoded(event.seqNr, event.tags, "json", checked_json(raw))


def _encode_binary(value: AppendValue) -> bytes:
    parts = [b"\x01", _INT.pack(len(value.events))]
    for event in value.events:
        tags = b"".join(_INT.pack(len(tag)) + tag for tag in (tag.encode() for tag in event.tags))
        payload = event.payload or b""
        kind = _KINDS.index(event.payload_type)
        body = _HEAD.pack(event.seq_nr, len(tags)) + tags + bytes((kind,)) + _INT.pack(len(payload)) + payload
        parts += [_INT.pack(len(body)), body]
    return b"".join(parts) + _json_encode(_metadata(value))


def _decode_binary(value: bytes) -> AppendValue:
    """Decode the binary form. All versions begin with the events; only of version 1 is it known what follows."""
    version, at = value[0], 5
    (count,) = _INT.unpack_from(value, 1)
    if count < 0:
        raise ValueError(f"the binary value says it holds {count} events")
    events = []
    for _ in range(count):
        size, seq_nr, tags_size, kind, payload_size = _UNTAGGED.unpack_from(value, at)
        if size < 0 or at + 4 + size > len(value):
            raise ValueError("the binary value is cut off")
        start, at = at + 4, at + 4 + size
        if kind == _BINARY and tags_size == 0 and payload_size >= 0 and size == _UNTAGGED_BODY + payload_size:
            events.append(Encoded(seq_nr, (), "binary", value[at - payload_size : at]))
        else:
            events.append(_decode_binary_event(value[start:at]))
    metadata = value[at:]
    if version != 1 or metadata == _NO_METADATA:
        return AppendValue(tuple(events))
    metadata.decode()
    return _value_of(tuple(events), _decode_metadata(checked_json(metadata)))


def _decode_binary_event(body: bytes) -> Encoded:
    seq_nr, tags_size = _HEAD.unpack_from(body)
    end = _HEAD.size + tags_size
    tags = _decode_tags(body, end)
    kind = _KINDS[body[end]]
    (size,) = _INT.unpack_from(body, end + 1)
    payload = body[end + 5 : end + 5 + size]
    if len(payload) != size:
        raise ValueError("the binary value is cut off")
    if kind in ("json", "text"):
        payload.decode()
    if kind == "json":
        _decode_raw(checked_json(payload))
    return Encoded(seq_nr, tags, kind, None if kind is None else payload)


def _decode_tags(body: bytes, end: int) -> tuple[str, ...]:
    at, tags = _HEAD.size, []
    while at < end:
        (size,) = _INT.unpack_from(body, at)
        if size < 0 or at + 4 + size > end:
            raise ValueError("a tag of the binary value does not fit into the tags")
        tags.append(body[at + 4 : at + 4 + size].decode())
        at += 4 + size
    if at != end:
        raise ValueError("the tags of the binary value have no length")
    return tuple(tags)
