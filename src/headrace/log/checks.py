"""Argument checks of every log: wrong types, and sizes that one of the backends can't hold, are refused first.

Promises: each function raises BadArgument, or returns what it was given in the form that the backends use. All
backends call them first, so that a program that works on one tier is not refused, or partly accepted, by another.
Does not promise: that the topic exists or takes the record; the log checks that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from headrace.errors import BadArgument
from headrace.log.ports import Listener, StartAt
from headrace.model import NewRecord, SoundRecords, TopicConfig, TopicPartition, check_topic_name

__all__ = [
    "check_config",
    "check_join",
    "check_name",
    "check_offset",
    "check_offsets",
    "check_partitions",
    "check_place",
    "check_places",
    "check_poll",
    "check_read",
    "check_records",
    "check_timestamp",
    "check_topic",
    "check_transactional",
]

MAX_PARTITIONS = 10_000
MAX_NAME_BYTES = 32_767  # the longest short string of Kafka's protocol
MAX_BATCH_RECORDS = 1_000_000  # the most that Kafka's driver returns at once
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_MAX_TIMEOUT_S = _MAX_INT32 / 1000  # Kafka counts milliseconds in 32 bits
_MAX_SESSION_S = 3600.0
_MANY = (list, tuple)
_BYTES = (bytes, type(None))
_LISTENER_CALLS = ("assigned", "revoked", "lost")

_known_name = lru_cache(maxsize=4096)(check_topic_name)


def check_records(records: Sequence[NewRecord]) -> tuple[NewRecord, ...]:
    """Return a copy of the records, all of them valid.

    It is a copy because the caller could change a list while another thread writes it. Those of SoundRecords are valid.
    """
    if type(records) is SoundRecords:
        return records
    if not isinstance(records, _MANY) and not isinstance(records, Sequence):
        raise BadArgument("records", records, "it must be a sequence of NewRecord, such as a list")
    for record in records:
        _check_record(record)
    return tuple(records)


def check_topic(topic: str) -> str:
    """Return the name of a topic that every log could have."""
    if not isinstance(topic, str):
        raise BadArgument("topic", topic, "it must be a str")
    return _known_name(topic)


def check_place(at: TopicPartition) -> TopicPartition:
    """Return a partition of a topic; whether it exists is checked later."""
    if not isinstance(at, TopicPartition):
        raise BadArgument("at", at, "it must be a TopicPartition")
    check_topic(at.topic)
    _check_partition(at.partition)
    return at


def check_places(partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Return partitions, possibly none."""
    if not isinstance(partitions, Iterable):
        raise BadArgument("partitions", partitions, "it must be some TopicPartitions")
    return tuple(check_place(at) for at in partitions)


def check_offset(name: str, offset: int) -> int:
    """Return an offset that a partition could have."""
    return _whole(name, offset, 0, _MAX_INT64, "offsets start at 0 and have 63 bits")


def check_offsets(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return a copy of the offsets that a member wants to commit."""
    if not isinstance(offsets, Mapping):
        raise BadArgument("offsets", offsets, "it must be a mapping of TopicPartition to offset")
    return {check_place(at): check_offset(f"offset of {at}", offset) for at, offset in offsets.items()}


def check_read(start: int, end: int | None, *, headers_only: bool, max_records: int, timeout_s: float) -> None:
    """Refuse a read with impossible arguments."""
    check_offset("start", start)
    if end is not None and check_offset("end", end) < start:
        raise BadArgument("end", end, f"it must not be below start, {start}")
    if not isinstance(headers_only, bool):
        raise BadArgument("headers_only", headers_only, "it must be True or False")
    check_poll(max_records, timeout_s)


def check_poll(max_records: int, timeout_s: float) -> None:
    """Refuse an impossible number of records or time to wait."""
    rule = f"a batch holds at least 1 record and at most {MAX_BATCH_RECORDS}"
    _whole("max_records", max_records, 1, MAX_BATCH_RECORDS, rule)
    _seconds("timeout_s", timeout_s, _MAX_TIMEOUT_S, may_be_zero=True)


def check_timestamp(timestamp_ms: int) -> int:
    """Return a timestamp to search for; it may be before 1970."""
    return _whole("timestamp_ms", timestamp_ms, -_MAX_INT64, _MAX_INT64, "it must be milliseconds since 1970, an int")


def check_transactional(transactional_id: str, timeout_s: float) -> None:
    """Refuse an id or a time-out that no log could take."""
    check_name("transactional_id", transactional_id)
    _seconds("timeout_s", timeout_s, _MAX_TIMEOUT_S)


def check_join(
    group: str, topics: Sequence[str], listener: Listener | None, start_at: StartAt, session_timeout_s: float
) -> tuple[str, ...]:
    """Return the topics that a member subscribes to."""
    check_name("group", group)
    if not isinstance(topics, Sequence) or isinstance(topics, str) or not topics:
        raise BadArgument("topics", topics, "a member needs a sequence of at least one topic's name")
    if listener is not None and not all(callable(getattr(listener, call, None)) for call in _LISTENER_CALLS):
        raise BadArgument("listener", listener, "it must have the calls assigned, revoked and lost")
    if start_at not in ("earliest", "latest"):
        raise BadArgument("start_at", start_at, "it must be 'earliest' or 'latest'")
    _seconds("session_timeout_s", session_timeout_s, _MAX_SESSION_S)
    return tuple(check_topic(topic) for topic in topics)


def check_name(name: str, value: str) -> str:
    """Return the name of a group or a transactional id."""
    if not isinstance(value, str) or not value:
        raise BadArgument(name, value, "it must be a str of at least one character")
    if len(_utf8(name, value)) > MAX_NAME_BYTES:
        raise BadArgument(name, f"{value[:20]}…", f"it must not take more than {MAX_NAME_BYTES} bytes of UTF-8")
    return value


def check_partitions(count: int) -> int:
    """Return a number of partitions that a topic can have."""
    rule = f"a topic has 1 to {MAX_PARTITIONS} partitions"
    return _whole("partitions", count, 1, MAX_PARTITIONS, rule)


def check_config(config: TopicConfig) -> TopicConfig:
    """Return a topic's configuration whose fields all have their types, so that it can be read again."""
    if not isinstance(config, TopicConfig):
        raise BadArgument("config", config, "it must be a TopicConfig")
    try:
        sound = msgspec.convert(msgspec.to_builtins(config), TopicConfig)
        sound_json = msgspec.json.encode(sound)
    except (TypeError, ValueError) as error:
        raise BadArgument("config", config, f"its fields must have their types: {error}") from error
    if b"\\u0000" in sound_json:
        raise BadArgument("config", config, "its texts must not hold the character NUL")
    for name in ("retention_ms", "tombstone_retention_ms", "min_compaction_lag_ms", "timestamp_ahead_ms"):
        _at_most(name, getattr(sound, name), _MAX_INT64)
    _at_most("max_record_bytes", sound.max_record_bytes, _MAX_INT32)
    return sound


def _check_record(record: NewRecord) -> None:
    """Refuse a record that the log could not return unchanged."""
    if type(record) is not NewRecord and not isinstance(record, NewRecord):
        raise BadArgument("records", record, "each of them must be a NewRecord")
    if type(record.topic) is str:
        _known_name(record.topic)
    else:
        check_topic(record.topic)
    if type(record.key) is not bytes and not isinstance(record.key, _BYTES):
        _refuse(record, "key", record.key, "it must be bytes or None")
    if type(record.value) is not bytes and not isinstance(record.value, _BYTES):
        _refuse(record, "value", record.value, "it must be bytes or None")
    headers = record.headers
    if headers != ():
        if type(headers) is tuple and len(headers) == 1 and _is_usual(headers[0]):
            _known_header(headers[0][0])
        else:
            _check_headers(record)
    partition = record.partition
    if partition is not None and not (type(partition) is int and 0 <= partition <= MAX_PARTITIONS):
        _check_partition(partition)
    timestamp_ms = record.timestamp_ms
    # Kafka's producers take 0 for "now".
    if timestamp_ms is not None and (type(timestamp_ms) is not int or not 1 <= timestamp_ms <= _MAX_INT64):
        _refuse(record, "timestamp_ms", timestamp_ms, "it must be milliseconds since 1970, an int above 0")


def _check_headers(record: NewRecord) -> None:
    if not isinstance(record.headers, _MANY):
        _refuse(record, "headers", record.headers, "they must be a tuple of (name, value)")
    for header in record.headers:
        if _is_usual(header):
            _known_header(header[0])
            continue
        if not isinstance(header, tuple) or len(header) != 2:
            _refuse(record, "header", header, "it must be a tuple of a name and a value")
        name, value = header
        if not isinstance(name, str):
            _refuse(record, "header name", name, "it must be a str")
        _utf8("header name", name)
        if not isinstance(value, _BYTES):
            _refuse(record, f"header {name!r}", value, "its value must be bytes or None; encode text first")


def _is_usual(header: object) -> bool:
    return type(header) is tuple and len(header) == 2 and type(header[0]) is str and type(header[1]) is bytes


@lru_cache(maxsize=1024)
def _known_header(name: str) -> None:
    """Refuse a header's name that no log can carry; few names are used again and again."""
    _utf8("header name", name)


def _utf8(what: str, text: str) -> bytes:
    """Return a text's bytes; the drivers are written in C and would silently cut it at a NUL."""
    if "\0" in text:
        raise BadArgument(what, text, "it must not hold the character NUL")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadArgument(what, text, "it must be text that UTF-8 can hold") from error


def _check_partition(partition: int) -> None:
    rule = f"a partition's number is an int of 32 bits, at most {_MAX_INT32}"
    _whole("partition", partition, -_MAX_INT32, _MAX_INT32, rule)


def _whole(name: str, value: int, least: int, most: int, rule: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadArgument(name, value, rule)
    return value


def _at_most(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise BadArgument(name, value, f"it must be at most {most}")


def _seconds(name: str, value: float, most: float, *, may_be_zero: bool = False) -> None:
    rule = f"it must be seconds, {'0 or more' if may_be_zero else 'above 0'} and at most {most:g}"
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise BadArgument(name, value, rule)
    if not 0 <= value <= most or (value == 0 and not may_be_zero):
        raise BadArgument(name, value, rule)


def _refuse(record: NewRecord, name: str, value: Any, rule: str) -> NoReturn:  # noqa: ANN401
    raise BadArgument(f"{name} of a record for topic {record.topic!r}", value, rule)
