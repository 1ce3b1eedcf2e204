"""Messages: their keys and headers; as the application gives them, as they are stored, as the relay reads them back."""

from __future__ import annotations

import base64
import decimal
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headrace.errors import BadArgument
from headrace.model import Headers, NewRecord, partition_of
from headrace.protocol import check_finite

__all__ = [
    "EVENT_ID",
    "EncodedMessage",
    "GivenHeaders",
    "Lane",
    "Message",
    "PendingMessage",
    "as_headers",
    "bucket_of",
    "dump_headers",
    "encode_key",
    "encode_text",
    "event_id_of",
    "event_time_ms",
    "load_headers",
    "record_of",
    "with_event_id",
]

_encoder = msgspec.json.Encoder(order="sorted")
_MOST_DIGITS = 1000
_KEEP_DECIMALS: Any = {"builtin_types": (decimal.Decimal,), "str_keys": True, "order": "sorted"}


def encode_key(key: Any) -> bytes | None:  # noqa: ANN401 - keys are what applications have
    """Return the one encoding of a key: bytes as they are, text, numbers and UUIDs as text, structures as sorted JSON.

    A float is refused: 1.0 and 1 are equal, and would be two keys. Equal Decimals are one key: a database returns 10 as
    10.00 from a column with two places.
    """
    if key is None:
        return None
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    if isinstance(key, str):
        return encode_text("key", key)
    if isinstance(key, bool | float):
        raise BadArgument("key", key, "a key is bytes, text, a whole number, a UUID or a structure of these")
    if isinstance(key, int):
        return _whole_number(key).encode()
    if isinstance(key, uuid.UUID):
        return str(key).encode()
    if isinstance(key, decimal.Decimal):
        return _decimal_text(key).encode()
    try:
        encoded = _encoder.encode(_with_plain_decimals(msgspec.to_builtins(key, **_KEEP_DECIMALS)))
        if b"null" in encoded:
            check_finite(key)  # NaN would be the key of None
        return encoded
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadArgument("key", key, f"it has no JSON form: {error}") from error


def _whole_number(number: int) -> str:
    """Return the digits; an enum of numbers says its member's name as text, though it equals the number."""
    try:
        return str(int(number))
    except ValueError as error:  # more digits than Python turns into text
        raise BadArgument("key", f"a number of {number.bit_length()} bits", str(error)) from error


def _with_plain_decimals(value: Any) -> Any:  # noqa: ANN401 - lists and dicts
    if isinstance(value, decimal.Decimal):
        return _decimal_text(value)
    if isinstance(value, dict):
        return {name: _with_plain_decimals(each) for name, each in value.items()}
    return [_with_plain_decimals(each) for each in value] if isinstance(value, list | tuple) else value


def _decimal_text(number: decimal.Decimal) -> str:
    """Return the one text of a number: without zeros at its end, and without an exponent."""
    if not number.is_finite() or (abs(number.adjusted()) > _MOST_DIGITS and number):
        raise BadArgument("key", number, f"as a key a number has a value of at most {_MOST_DIGITS} digits")
    words = format(number, "f") if number else "0"
    return words.rstrip("0").rstrip(".") if "." in words else words


def encode_text(name: str, words: str) -> bytes:
    """Return the text as UTF-8. Raises BadArgument for what has no UTF-8, as half of a surrogate pair."""
    try:
        return words.encode()
    except UnicodeEncodeError as error:
        raise BadArgument(name, words, f"it has no UTF-8: {error.reason}") from error


def bucket_of(order_key: bytes | None, event_id: str, buckets: int) -> int:
    """Return the bucket: messages of one order key share it, those without a key are spread."""
    return 0 if buckets == 1 else partition_of(event_id.encode() if order_key is None else order_key, buckets)


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


_LAST_MS = 253_402_300_799_999
_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Lane(NamedTuple):
    """One topic's bucket: what a lease is about."""

    topic: str
    bucket: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.bucket}"


class Message(msgspec.Struct, frozen=True):
    """A message as the application gives it.

    `payload` None is a tombstone. `partition_key`, when given, decides partition and bucket instead of the key.
    `event_time` says when it happened: a datetime with a time zone, or milliseconds since 1970.
    """

    payload: Any
    key: Any = None
    partition_key: Any = None
    headers: GivenHeaders = ()
    event_time: datetime | int | None = None


class EncodedMessage(NamedTuple):
    """A row to be: the columns of kafka_messages that are given, in their order."""

    topic: str
    message: bytes | None
    key: bytes | None
    partition_key: bytes | None
    headers: str | None
    event_id: str
    bucket: int
    event_time: int | None


class PendingMessage(NamedTuple):
    """A row of kafka_messages as the relay reads it, in the order of its select."""

    id: int
    message: bytes | None
    key: bytes | None
    partition_key: bytes | None
    headers: str | None
    event_id: str
    event_time: int | None
    created_at: int

    @property
    def order_key(self) -> bytes | None:
        """What the message's order is kept by."""
        return self.key if self.partition_key is None else self.partition_key


def event_time_ms(given: datetime | int | None) -> int | None:
    """Return the event time in milliseconds."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise BadArgument("event_time", given, "it needs a time zone, such as datetime.UTC")
        given = (given - _EPOCH) // _MILLISECOND  # a float of seconds may lie just below the millisecond
    if isinstance(given, bool) or not isinstance(given, int):
        raise BadArgument("event_time", given, "it must be a datetime with a time zone, or milliseconds since 1970")
    if not 1 <= given <= _LAST_MS:
        raise BadArgument("event_time", given, "it lies after 1970 and before the year 10000")
    return given


def record_of(topic: str, row: PendingMessage, *, partition: int | None, now_ms: int) -> NewRecord:
    """Return the record to send. Its timestamp is the event time, but never later than the sender's clock.

    The log refuses timestamps ahead of its own time, and the database's clock may be ahead of the sender's.
    """
    _, message, key, _, headers, event_id, event_time, created_at = row
    timestamp_ms = created_at if event_time is None else event_time
    return NewRecord(
        topic,
        key,
        message,
        with_event_id(headers, event_id) if headers else ((EVENT_ID, event_id.encode()),),
        partition,
        timestamp_ms if timestamp_ms < now_ms else now_ms,
    )
