"""Record headers: `journal.action`, as kafka-journal writes it, and those of Headrace, with the prefix `headrace.`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from headrace.errors import BadArgument
from headrace.model import MAX_SEQ_NR, Headers, Record
from headrace.protocol.actions import Action, Append, Delete, Mark, PayloadFormat, Poison, Purge, Verdict, raw_json
from headrace.protocol.limits import MAX_HEADERS_BYTES, check_headers, check_size, check_text
from headrace.protocol.payloads import MAX_JSON_DEPTH, checked_depth, checked_numbers
from headrace.store import Place

__all__ = [
    "ACTION_HEADER",
    "OWN_PREFIX",
    "AppendTemplate",
    "append_headers",
    "decode_action",
    "encode_action",
    "encode_user_headers",
    "lone_append",
    "plain_append",
    "user_headers",
]

ACTION_HEADER = "journal.action"
OWN_PREFIX = "headrace."

_EXPECTED = "headrace.expected"
_APPEND_ID = "headrace.append-id"
_SINCE = "headrace.since"
_DIGEST = "headrace.append-digest"
_GENERATION = "headrace.generation"
_SEGMENT_SIZE = "headrace.segment-size"
_LAYOUT = "headrace.layout"
_LAST_APPEND = "headrace.last-append"
_INCARNATION = "headrace.incarnation"
_VERDICT = "headrace.verdict"
_HELD_FROM = "headrace.held-from"
_HELD_GENERATION = "headrace.held-generation"
_VERDICTS = {b"skip": True, b"release": False}

Written: TypeAlias = Append | Mark | Delete | Purge | Verdict

_MOST_LEVELS = MAX_JSON_DEPTH + 3  # the header, its action, the metadata, and what the application gave
_MAX_SEGMENT_SIZE = (1 << 31) - 1  # the store keeps it as an int


class _Range(msgspec.Struct, frozen=True, rename={"first": "from", "last": "to"}):
    first: int
    last: int


class _Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Append(msgspec.Struct, frozen=True, rename={"payload_type": "payloadType"}):
    """The fields in kafka-journal's order; absent options are left out."""

    range: _Range
    origin: str | msgspec.UnsetType | None = msgspec.UNSET
    version: str | msgspec.UnsetType | None = msgspec.UNSET
    payload_type: str = "json"
    metadata: _Metadata | None = _Metadata()


class _Mark(msgspec.Struct, frozen=True):
    id: str
    origin: str | msgspec.UnsetType | None = msgspec.UNSET
    version: str | msgspec.UnsetType | None = msgspec.UNSET


class _Delete(msgspec.Struct, frozen=True):
    to: int
    origin: str | msgspec.UnsetType | None = msgspec.UNSET
    version: str | msgspec.UnsetType | None = msgspec.UNSET


class _Purge(msgspec.Struct, frozen=True):
    origin: str | msgspec.UnsetType | None = msgspec.UNSET
    version: str | msgspec.UnsetType | None = msgspec.UNSET


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    append: _Append | None = None
    mark: _Mark | None = None
    delete: _Delete | None = None
    purge: _Purge | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Header).decode

# The appends of one writer differ only in their range: the rest of the header is encoded and decoded once.
_RANGE = b'{"append":{"range":{"from":%d,"to":%d}'
_RANGED = re.compile(rb'\{"append":\{"range":\{"from":([1-9]\d{0,17}),"to":([1-9]\d{0,17})\}(.{0,300})', re.DOTALL)
_AROUND_AT_MOST = 1024


class AppendTemplate(NamedTuple):
    """What the action headers of some appends have in common: `header % (first, last)` is the header of each."""

    header: bytes
    payload_format: PayloadFormat
    origin: str | None
    version: str | None


def plain_append(written: bytes) -> tuple[Append, AppendTemplate] | None:
    """Return the append of an action header that has no metadata, and its template; None for any other header."""
    match = _RANGED.fullmatch(written)
    template = _template(match[3]) if match is not None else None
    append = lone_append(written) if template is not None else None
    return (append, template) if append is not None and template is not None else None


@lru_cache(maxsize=_AROUND_AT_MOST)
def _template(around: bytes) -> AppendTemplate | None:
    append = _decoded_around(around)
    if append is None or append.metadata is not None:
        return None
    header = _RANGE + around.replace(b"%", b"%%")
    return AppendTemplate(header, append.payload_format, append.origin, append.version)


def append_headers(
    first: int,
    last: int,
    payload_format: PayloadFormat,
    origin: str | None,
    version: str | None,
    expected: int | None = None,
) -> Headers:
    """Return the headers of an append that has only these fields, as `encode_action` would, but faster."""
    try:
        around = _encoded_around(payload_format, origin, version)
    except TypeError as error:  # no hash: no text
        raise BadArgument("origin or version", (origin, version), "it must be text that UTF-8 can carry") from error
    header = (ACTION_HEADER, _RANGE % (first, last) + around)
    return (header,) if expected is None else (header, (_EXPECTED, b"%d" % expected))


@lru_cache(maxsize=_AROUND_AT_MOST)
def _encoded_around(payload_format: PayloadFormat, origin: str | None, version: str | None) -> bytes:
    append = Append(first=1, last=1, payload_format=payload_format, origin=origin, version=version)
    return _encode(_header(append))[len(_RANGE % (1, 1)) :]


def encode_action(action: Written, user: Mapping[str, str] | None = None) -> Headers:
    """Return the headers of a record: the action, what Headrace adds to it, and the user's own."""
    own: list[tuple[str, bytes | None]] = [(ACTION_HEADER, _encode(_header(action)))]
    own += [(name, str(value).encode()) for name, value in _extras(action) if value is not None]
    return (*own, *encode_user_headers(user)) if user else tuple(own)


def encode_user_headers(headers: Mapping[str, str] | None) -> Headers:
    """Return an application's headers as bytes. Raises BadArgument if one is not text, or has a reserved name."""
    encoded = []
    for name, value in check_headers(headers).items():
        if name == ACTION_HEADER or name.startswith(OWN_PREFIX):
            raise BadArgument("header", name, f"{ACTION_HEADER} and names with the prefix {OWN_PREFIX} are taken")
        encoded.append((name, value.encode()))
    check_size("headers", sum(len(name) + len(value) for name, value in encoded), MAX_HEADERS_BYTES)
    return tuple(encoded)


def decode_action(record: Record) -> Action | None:
    """Return the record's action; None if the record is not a journal's or its kind is unknown to this version."""
    if record.key is None:
        return None
    headers = _own_headers(record.headers)
    written = headers.get(ACTION_HEADER)
    if written is None or not _is_text(record.key):
        return None
    try:
        if len(headers) == 1 and (append := lone_append(written)) is not None:
            return append
        written.decode()  # what is carried as it is must be text as well
        return _action(_decode(checked_depth(written, _MOST_LEVELS)), headers)
    except (msgspec.DecodeError, ValueError) as error:
        return Poison(f"header {ACTION_HEADER}: {error}")


def user_headers(record: Record) -> dict[str, str]:
    """Return the headers that the application gave."""
    if len(record.headers) == 1:  # the action's
        return {}
    return {
        name: (value or b"").decode(errors="replace")
        for name, value in record.headers
        if name != ACTION_HEADER and not name.startswith(OWN_PREFIX)
    }


def _own_headers(headers: Headers) -> Mapping[str, bytes | None]:
    if len(headers) == 1:
        return dict(headers)
    return {name: value for name, value in headers if name.startswith((ACTION_HEADER, OWN_PREFIX))}


def lone_append(written: bytes) -> Append | None:
    """Return the append of an action header without others of ours beside it; None if it must be decoded in full.

    It is one that we wrote, and that differs from a known one only in its range.
    """
    match = _RANGED.fullmatch(written)
    if match is None:
        return None
    first_text, last_text, rest = match.groups()
    around = _decoded_around(rest)
    first, last = int(first_text), int(last_text)
    if around is None or first > last:
        return None
    return Append(
        first=first,
        last=last,
        payload_format=around.payload_format,
        metadata=around.metadata,
        origin=around.origin,
        version=around.version,
    )


@lru_cache(maxsize=_AROUND_AT_MOST)
def _decoded_around(around: bytes) -> Append | None:
    """Decode what stands around the range; None if it may hold another range or is malformed."""
    if any(part in around for part in (b"range", b"append", b"\\")):
        return None
    written = _RANGE % (1, 1) + around
    try:
        written.decode()
        action = _action(_decode(checked_depth(written, _MOST_LEVELS)), {})
    except (msgspec.DecodeError, ValueError):
        return None
    return action if isinstance(action, Append) else None


def _header(action: Written) -> _Header:
    origin, version = _option("origin", action.origin), _option("version", action.version)
    match action:
        case Append():
            data = _Metadata(msgspec.Raw(action.metadata)) if action.metadata else _Metadata()
            written = _Append(_Range(action.first, action.last), origin, version, action.payload_format, data)
            return _Header(append=written)
        case Mark() | Verdict():
            return _Header(mark=_Mark(check_text("id of the mark", action.id), origin, version))
        case Delete():
            return _Header(delete=_Delete(action.to, origin, version))
        case Purge():
            return _Header(purge=_Purge(origin, version))


def _extras(action: Written) -> list[tuple[str, object]]:
    match action:
        case Append():
            once = [(_APPEND_ID, action.append_id), (_DIGEST, action.digest), (_SINCE, _written(action.since))]
            return [(_EXPECTED, action.expected), *once]
        case Mark():
            return [
                (_GENERATION, action.generation),
                (_SEGMENT_SIZE, action.segment_size),
                (_LAYOUT, action.layout),
            ]
        case Delete():
            return [(_INCARNATION, action.incarnation)]
        case Purge():
            return [(_LAST_APPEND, _written(action.last_append))]
        case Verdict():
            held = [(_HELD_FROM, action.held_from), (_HELD_GENERATION, action.generation)]
            return [(_VERDICT, "skip" if action.is_skip else "release"), *held]


def _action(header: _Header, headers: Mapping[str, bytes | None]) -> Action | None:
    if header.append is not None:
        return _append(header.append, headers)
    if header.mark is not None:
        mark = header.mark
        if (verdict := headers.get(_VERDICT)) is not None:
            return _verdict(mark, verdict, _number(headers, _HELD_FROM), _number(headers, _HELD_GENERATION))
        generation, segment_size = _number(headers, _GENERATION), _number(headers, _SEGMENT_SIZE)
        if segment_size is not None and not 1 <= segment_size <= _MAX_SEGMENT_SIZE:
            raise ValueError(f"no journal has segments of {segment_size}")
        layout = headers.get(_LAYOUT)
        stated = layout.decode() if layout is not None else None
        return Mark(id=mark.id, **_by(mark), generation=generation, segment_size=segment_size, layout=stated)
    if header.delete is not None:
        if not 1 <= header.delete.to <= MAX_SEQ_NR:
            raise ValueError(f"no journal has an event {header.delete.to} to delete")
        incarnation = _decoded_text(headers.get(_INCARNATION))
        return Delete(
            to=header.delete.to,
            **_by(header.delete),
            incarnation=UUID(incarnation) if incarnation is not None else None,
        )
    if header.purge is not None:
        return Purge(**_by(header.purge), last_append=_place(headers.get(_LAST_APPEND)))
    return None


def _verdict(mark: _Mark, verdict: bytes, held_from: int | None, generation: int | None) -> Verdict:
    if verdict not in _VERDICTS or held_from is None:
        raise ValueError(f"unknown verdict {verdict!r}")
    is_skip = _VERDICTS[verdict]
    return Verdict(id=mark.id, held_from=held_from, is_skip=is_skip, generation=generation, **_by(mark))


def _append(append: _Append, headers: Mapping[str, bytes | None]) -> Append:
    if append.payload_type not in ("json", "binary"):
        raise ValueError(f"unknown payloadType {append.payload_type!r}")
    if not 1 <= append.range.first <= append.range.last <= MAX_SEQ_NR:
        raise ValueError(f"range {append.range.first} to {append.range.last} is none")
    metadata = raw_json(append.metadata.data) if append.metadata is not None else None
    return Append(
        first=append.range.first,
        last=append.range.last,
        payload_format=append.payload_type,  # type: ignore[arg-type]
        metadata=metadata if metadata is None else checked_numbers(metadata),
        **_by(append),
        expected=_number(headers, _EXPECTED),
        append_id=_decoded_text(headers.get(_APPEND_ID)),
        since=_place(headers.get(_SINCE)),
        digest=_decoded_text(headers.get(_DIGEST)),
    )


def _is_text(key: bytes) -> bool:
    """Return True if a key can be a journal's id: text that clients can ask for and tables can hold."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _option(name: str, value: str | None) -> Any:  # noqa: ANN401  (str or UNSET)
    return msgspec.UNSET if value is None else check_text(name, value)


def _by(written: _Append | _Mark | _Delete | _Purge) -> dict[str, Any]:
    return {
        "origin": None if written.origin is msgspec.UNSET else written.origin,
        "version": None if written.version is msgspec.UNSET else written.version,
    }


def _number(headers: Mapping[str, bytes | None], name: str) -> int | None:
    value = headers.get(name)
    return int(value) if value is not None else None


def _decoded_text(value: bytes | None) -> str | None:
    return value.decode() if value is not None else None


def _written(place: Place | None) -> str | None:
    return f"{place.generation}:{place.offset}" if place is not None else None


def _place(value: bytes | None) -> Place | None:
    if value is None:
        return None
    generation, _, offset = value.decode().partition(":")
    return Place(int(generation), int(offset))
