"""The changelog of a state: what its records look like, and how its topic is set up.

A record's key is the state's key, its value the state's value, no value a deletion. Headers, each only where it is
needed: `headrace.ttl` (milliseconds, as text) if the write has a time to live of its own, `headrace.delta` if
subscribers get an increment, `headrace.cause` = `expired` on the tombstone of a value that was due, and
`headrace.batch` (`epoch:number`), which the owner adds to all it writes. Records under reserved keys belong to the
machinery of ownership and are not shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

from headrace.errors import ImpossibleTopicChange, WrongPartitionCount, WrongStateTopic
from headrace.log import Admin, ensure_topic
from headrace.model import Cleanup, Headers, NewRecord, Record, Topic, TopicConfig, TopicPartition
from headrace.state.keys import RESERVED_PREFIX

__all__ = [
    "BATCH_HEADER",
    "BatchName",
    "ChangelogRecord",
    "StateWrite",
    "batch_header_of",
    "changelog_config",
    "ensure_changelog",
    "is_reserved",
    "new_record",
    "parse_batch",
    "parse_record",
    "plain_change",
    "plain_write",
]

BATCH_HEADER = "headrace.batch"
_TTL_HEADER = "headrace.ttl"
_DELTA_HEADER = "headrace.delta"
_CAUSE_HEADER = "headrace.cause"
_EXPIRED = b"expired"

HOUR_MS = 3_600_000
# A copy that was away for less than three quarters of this sees every change.
MIN_COMPACTION_LAG_MS = HOUR_MS
# A copy that was away for less than three quarters of this need not start over.
TOMBSTONE_RETENTION_MS = 24 * HOUR_MS
# An owner never stamps earlier than its partition; so a clock that was put back by less than this does not stop it.
TIMESTAMP_AHEAD_MS = 24 * HOUR_MS


class StateWrite(NamedTuple):
    """A change to one key on its way into the changelog; no value deletes."""

    value: bytes | None
    ttl_ms: int | None = None
    delta: bytes | None = None
    is_expiry: bool = False


class ChangelogRecord(NamedTuple):
    """A change to one key as the changelog holds it."""

    key: bytes
    offset: int
    timestamp_ms: int
    write: StateWrite


# Both do what `_make` does, without a call of a Python function: there is one for each write.
_write: Callable[[tuple[bytes | None, None, None, bool]], StateWrite] = partial(tuple.__new__, StateWrite)
_change: Callable[[tuple[bytes, int, int, StateWrite]], ChangelogRecord] = partial(tuple.__new__, ChangelogRecord)


def plain_write(value: bytes | None) -> StateWrite:
    """Return a write that is only a value."""
    return _write((value, None, None, False))


def plain_change(key: bytes, offset: int, timestamp_ms: int, value: bytes | None) -> ChangelogRecord:
    """Return a change that is only a value."""
    return _change((key, offset, timestamp_ms, _write((value, None, None, False))))


def new_record(at: TopicPartition, key: bytes, write: StateWrite, *, timestamp_ms: int) -> NewRecord:
    """Return the record of a change."""
    if write.ttl_ms is None and write.delta is None and not write.is_expiry:
        return NewRecord(at.topic, key, write.value, (), at.partition, timestamp_ms)
    headers: list[tuple[str, bytes | None]] = []
    if write.ttl_ms is not None:
        headers.append((_TTL_HEADER, b"%d" % write.ttl_ms))
    if write.delta is not None:
        headers.append((_DELTA_HEADER, write.delta))
    if write.is_expiry:
        headers.append((_CAUSE_HEADER, _EXPIRED))
    return NewRecord(at.topic, key, write.value, tuple(headers), at.partition, timestamp_ms)


def parse_record(record: Record) -> ChangelogRecord | None:
    """Return the change that a record stands for; None if it is reserved, or has no key."""
    key, headers = record.key, record.headers
    if key is None or key.startswith(RESERVED_PREFIX):
        return None
    if not headers or (len(headers) == 1 and headers[0][0] == BATCH_HEADER):
        return plain_change(key, record.offset, record.timestamp_ms, record.value)
    return ChangelogRecord(key, record.offset, record.timestamp_ms, _write_of(record))


def _write_of(record: Record) -> StateWrite:
    """Return the write that a record with headers of its own stands for."""
    headers = dict(record.headers)
    return StateWrite(
        record.value,
        _number(headers.get(_TTL_HEADER)),
        headers.get(_DELTA_HEADER),
        is_expiry=headers.get(_CAUSE_HEADER) == _EXPIRED,
    )


class BatchName(NamedTuple):
    """The name of one transaction of an owner: its epoch, and a number that grows within it."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.number}"


def is_reserved(key: bytes | None) -> bool:
    """Return True if a record with this key is about ownership, and holds no value of the application."""
    return key is not None and key.startswith(RESERVED_PREFIX)


def batch_header_of(headers: Headers) -> bytes | None:
    """Return the header that names a record's batch; None if the record was not written by an owner."""
    for name, value in headers:
        if name == BATCH_HEADER:
            return value
    return None


@lru_cache(maxsize=256)
def parse_batch(header: bytes | None) -> BatchName | None:
    """Return the name in the header; None if there is none, or if it is not `epoch:number`."""
    epoch, _, number = (header or b"").partition(b":")
    return BatchName(int(epoch), int(number)) if epoch.isdigit() and number.isdigit() else None


def _number(value: bytes | None) -> int | None:
    """Return a header's number; what is none was not written by a state, and says nothing."""
    if value is None or not value.removeprefix(b"-").isdigit():
        return None
    return int(value)


def changelog_config(*, longest_ttl_ms: int | None, base: TopicConfig | None = None) -> TopicConfig:
    """Return the settings of a changelog: compacted; deleted by age only if every value has a time to live.

    A minimum lag of 0 becomes an hour: without one no copy could be sure to see every change. A record outlives the
    longest time to live by as long as tombstones stay: clocks of brokers and owners differ.
    """
    kept = base or TopicConfig(
        min_compaction_lag_ms=MIN_COMPACTION_LAG_MS,
        tombstone_retention_ms=TOMBSTONE_RETENTION_MS,
        timestamp_ahead_ms=TIMESTAMP_AHEAD_MS,
    )
    is_all_due = longest_ttl_ms is not None
    return TopicConfig(
        cleanup=Cleanup.COMPACT_DELETE if is_all_due else Cleanup.COMPACT,
        retention_ms=longest_ttl_ms + kept.tombstone_retention_ms if longest_ttl_ms is not None else None,
        tombstone_retention_ms=kept.tombstone_retention_ms,
        min_compaction_lag_ms=kept.min_compaction_lag_ms or MIN_COMPACTION_LAG_MS,
        max_record_bytes=kept.max_record_bytes,
        timestamp_ahead_ms=kept.timestamp_ahead_ms,
        extra=kept.extra,
    )


async def ensure_changelog(admin: Admin, topic: str, *, partitions: int, config: TopicConfig) -> Topic:
    """Return the topic, created or re-configured. Raises WrongStateTopic for what can't be changed."""
    try:
        return await ensure_topic(admin, topic, partitions=partitions, config=config)
    except WrongPartitionCount as error:
        problem = f"it has {error.actual} partitions, the state is declared with {error.expected}"
        step = f"declare {error.actual} partitions, or copy the state into a new topic; keys would move in this one"
        raise WrongStateTopic(topic, problem, step) from error
    except ImpossibleTopicChange as error:
        raise WrongStateTopic(topic, error.change, error.next_step) from error
