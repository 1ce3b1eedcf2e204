"""Headers: how they are stored, and those the outbox adds."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from headrace.errors import BadArgument
from headrace.model import Headers
from headrace.outbox.keys import encode_text

__all__ = ["EVENT_ID", "GivenHeaders", "as_headers", "dump_headers", "event_id_of", "load_headers", "with_event_id"]

EVENT_ID = "headrace.event-id"

HeaderValue: TypeAlias = str | bytes | None
GivenHeaders: TypeAlias = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]


def as_headers(given: GivenHeaders) -> Headers:
    """Return the caller's headers in the log's form; text becomes UTF-8."""
    pairs: object = given.items() if isinstance(given, Mapping) else given
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise BadArgument("headers", given, "they are a mapping, or pairs of a name and a value")
    return tuple(_checked_pair(pair) for pair in pairs)


def dump_headers(headers: Headers) -> str | None:
    """Return the headers as JSON for the table: text where it is text, else base64; None when there are none."""
    if not headers:
        return None
    return msgspec.json.encode([[name, _dump(value)] for name, value in headers]).decode()


def load_headers(stored: str | None) -> Headers:
    """Return the headers that `dump_headers` wrote."""
    if not stored:
        return ()
    return tuple((name, _load(value)) for name, value in msgspec.json.decode(stored))


def with_event_id(stored: str | None, event_id: str) -> Headers:
    """Return the headers of a record: the caller's, then the event id."""
    return (*load_headers(stored), (EVENT_ID, event_id.encode()))


def event_id_of(headers: Headers) -> str | None:
    """Return the event id that a record carries, if it came out of an outbox."""
    for name, value in headers:
        if name == EVENT_ID and value is not None:
            return value.decode(errors="backslashreplace")  # so that no two ids become one
    return None


def _dump(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _load(value: Any) -> bytes | None:  # noqa: ANN401 - out of JSON
    if isinstance(value, Mapping):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()


def _checked_pair(pair: object) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise BadArgument("headers", pair, "each of them is a pair of a name and a value")
    return _checked_name(pair[0]), _checked_value(pair[0], pair[1])


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise BadArgument("header", name, "a header's name is text, not empty")
    encode_text("header", name)
    if name == EVENT_ID:
        raise BadArgument("header", name, "the outbox sets it")
    return name


def _checked_value(name: str, value: object) -> bytes | None:
    if isinstance(value, str):
        return encode_text(f"header {name!r}", value)
    if value is None or isinstance(value, bytes):
        return value
    raise BadArgument(f"header {name!r}", value, "its value is bytes, text or None")
