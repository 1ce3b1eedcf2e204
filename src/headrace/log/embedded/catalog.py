"""The writer's cache of topics and partitions, kept between two commits."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import msgspec

from headrace.errors import UnknownPartition, UnknownTopic
from headrace.log.embedded.schema import place_of
from headrace.log.metrics import APPENDED
from headrace.model import Topic, TopicConfig, TopicPartition

__all__ = ["Catalog", "KnownTopic", "PartitionTail", "load_topic", "partition_row"]


@dataclass(slots=True)
class PartitionTail:
    """Where the next record of a partition goes."""

    id: int
    next_offset: int
    stored_offset: int
    first_place: int
    is_changed: bool = False


class KnownTopic:
    """A topic and the tails of its partitions, in a form that is fast to use for each record."""

    __slots__ = ("max_record_bytes", "name", "needs_keys", "partitions", "tails", "timestamp_ahead_ms")

    def __init__(self, topic: Topic, tails: list[PartitionTail]) -> None:
        self.name = topic.name
        self.partitions = topic.partitions
        self.needs_keys = topic.config.cleanup.compacts
        self.max_record_bytes = topic.config.max_record_bytes
        self.timestamp_ahead_ms = topic.config.timestamp_ahead_ms
        self.tails = tails

    def tail(self, partition: int) -> PartitionTail:
        """Return the tail of one partition."""
        if not 0 <= partition < self.partitions:
            raise UnknownPartition(self.name, partition, self.partitions)
        return self.tails[partition]


class Catalog:
    """Topics by name, up to date in the write transaction in which `refresh` was called."""

    def __init__(self) -> None:
        self._topics: dict[str, KnownTopic] = {}
        self._version = -1

    def refresh(self, db: sqlite3.Connection) -> None:
        """Forget everything if another connection has written since."""
        version = db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self.forget()
            self._version = version

    def forget(self) -> None:
        """Forget everything."""
        self._topics.clear()

    def find(self, db: sqlite3.Connection, name: str) -> KnownTopic:
        """Return the topic. Raises UnknownTopic."""
        known = self._topics.get(name)
        if known is None:
            known = self._topics[name] = self._load(db, name)
        return known

    def store_tails(self, db: sqlite3.Connection) -> None:
        """Write the next offsets that have changed."""
        for known in self._topics.values():
            for tail in known.tails:
                if tail.is_changed:
                    db.execute("UPDATE partitions SET next_offset = ? WHERE id = ?", (tail.next_offset, tail.id))
                    APPENDED.labels("embedded", known.name).inc(tail.next_offset - tail.stored_offset)
                    tail.stored_offset = tail.next_offset
                    tail.is_changed = False

    def _load(self, db: sqlite3.Connection, name: str) -> KnownTopic:
        rows = db.execute("SELECT id, next_offset FROM partitions WHERE topic = ? ORDER BY partition", (name,))
        return KnownTopic(
            load_topic(db, name), [PartitionTail(id_, offset, offset, place_of(id_, 0)) for id_, offset in rows]
        )


def load_topic(db: sqlite3.Connection, name: str) -> Topic:
    """Read a topic. Raises UnknownTopic."""
    row = db.execute("SELECT topic_id, partitions, config FROM topics WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise UnknownTopic(name)
    topic_id, partitions, config = row
    return Topic(
        name=name, topic_id=topic_id, partitions=partitions, config=msgspec.json.decode(config, type=TopicConfig)
    )


def partition_row(db: sqlite3.Connection, at: TopicPartition) -> tuple[int, int, int]:
    """Return id, start and next offset of a partition. Raises UnknownTopic, UnknownPartition."""
    row: tuple[int, int, int] | None = db.execute(
        "SELECT id, start_offset, next_offset FROM partitions WHERE topic = ? AND partition = ?", at
    ).fetchone()
    if row is None:
        raise UnknownPartition(at.topic, at.partition, load_topic(db, at.topic).partitions)
    return row
