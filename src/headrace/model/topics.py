"""Topics and their configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from headrace.errors import BadArgument

__all__ = ["Cleanup", "Topic", "TopicConfig", "check_topic_name"]

DAY_MS = 24 * 60 * 60 * 1000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Cleanup(StrEnum):
    """What happens to old records."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"

    @property
    def compacts(self) -> bool:
        """True if only the newest record of a key is kept."""
        return self is not Cleanup.DELETE

    @property
    def deletes(self) -> bool:
        """True if records go when they are older than the retention."""
        return self is not Cleanup.COMPACT


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic that can be changed while it is in use.

    `retention_ms` None keeps records forever. `tombstone_retention_ms` is how long a deletion stays visible
    in a compacted topic, counted from when compaction first passed it. Compaction leaves a record alone, and whatever
    it replaces, until it is `min_compaction_lag_ms` old: so a reader that is not further behind sees every change.
    `timestamp_ahead_ms` bounds how far a record's timestamp may lie in the future.
    `keep_until_released` makes the embedded log hold back retention until `Retention.release` said that the
    records are safe elsewhere; Kafka has no such thing and deletes by time alone.
    `extra` goes to Kafka as it is (for example {"min.insync.replicas": "2"}).
    """

    cleanup: Cleanup = Cleanup.DELETE
    retention_ms: int | None = 7 * DAY_MS
    tombstone_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_record_bytes: int = 1_048_588
    timestamp_ahead_ms: int = 60_000
    keep_until_released: bool = False
    extra: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        _at_least(1, "retention_ms", self.retention_ms)
        _at_least(0, "tombstone_retention_ms", self.tombstone_retention_ms)
        _at_least(0, "min_compaction_lag_ms", self.min_compaction_lag_ms)
        _at_least(1, "max_record_bytes", self.max_record_bytes)
        _at_least(1, "timestamp_ahead_ms", self.timestamp_ahead_ms)


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as the log describes it. `topic_id` changes when the topic is deleted and created again."""

    name: str
    topic_id: str
    partitions: int
    config: TopicConfig


def check_topic_name(name: str) -> str:
    """Return the name if Kafka would take it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise BadArgument("topic", name, "a topic name is 1 to 249 letters, digits, '.', '_' and '-', not '.' or '..'")
    return name


def _at_least(least: int, name: str, value: int | None) -> None:
    if value is not None and value < least:
        raise BadArgument(name, value, f"it must be at least {least}")
