"""Topics of the embedded log."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from headrace.errors import ImpossibleTopicChange, TopicExists
from headrace.log import checks
from headrace.log.embedded.append import LogCall, LogWork
from headrace.log.embedded.schema import MAX_OFFSET, load_topic, partition_row, place_of
from headrace.model import Topic, TopicConfig, TopicPartition
from headrace.sqlite import GroupCommit, Readers

__all__ = ["EmbeddedAdmin"]

T = TypeVar("T")

INTERNAL_PREFIX = "__"


class EmbeddedAdmin:
    """The embedded log's Admin."""

    def __init__(self, commits: GroupCommit[LogWork], readers: Readers) -> None:
        self._commits = commits
        self._readers = readers

    async def create(self, topic: str, *, partitions: int, config: TopicConfig) -> Topic:
        """Create a topic."""
        checks.check_topic(topic)
        checks.check_partitions(partitions)
        wanted = checks.check_config(config)
        return await self._call(lambda db: _create(db, topic, partitions, wanted))

    async def configure(self, topic: str, config: TopicConfig) -> Topic:
        """Set the topic's configuration, whole."""
        checks.check_topic(topic)
        wanted = checks.check_config(config)
        return await self._call(lambda db: _configure(db, topic, wanted))

    async def describe(self, topic: str) -> Topic:
        """Return the topic."""
        checks.check_topic(topic)
        return await self._readers.run(lambda db: load_topic(db, topic))

    async def topics(self) -> Sequence[str]:
        """List all names but the internal ones, which begin with two underscores as Kafka's do."""
        return await self._readers.run(
            lambda db: [
                name
                for (name,) in db.execute("SELECT name FROM topics ORDER BY name")
                if not name.startswith(INTERNAL_PREFIX)
            ]
        )

    async def delete(self, topic: str) -> None:
        """Remove the topic, its records and what groups stored about it."""
        checks.check_topic(topic)
        await self._call(lambda db: _delete(db, topic))

    async def add_partitions(self, topic: str, *, total: int) -> Topic:
        """Give the topic more partitions."""
        checks.check_topic(topic)
        checks.check_partitions(total)
        return await self._call(lambda db: _add_partitions(db, topic, total))

    async def _call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        result: T = await self._commits.submit(LogCall(function))
        return result


def _create(db: sqlite3.Connection, topic: str, partitions: int, config: TopicConfig) -> Topic:
    row = (topic, str(uuid.uuid4()), partitions, msgspec.json.encode(config).decode())
    try:
        db.execute("INSERT INTO topics VALUES (?, ?, ?, ?)", row)
    except sqlite3.IntegrityError as error:
        raise TopicExists(topic) from error
    _insert_partitions(db, topic, range(partitions))
    return load_topic(db, topic)


def _configure(db: sqlite3.Connection, topic: str, config: TopicConfig) -> Topic:
    load_topic(db, topic)
    db.execute("UPDATE topics SET config = ? WHERE name = ?", (msgspec.json.encode(config).decode(), topic))
    return load_topic(db, topic)


def _delete(db: sqlite3.Connection, topic: str) -> None:
    for partition in range(load_topic(db, topic).partitions):
        partition_id, _, _ = partition_row(db, TopicPartition(topic, partition))
        db.execute(
            "DELETE FROM records WHERE place BETWEEN ? AND ?",
            (place_of(partition_id, 0), place_of(partition_id, MAX_OFFSET)),
        )
        db.execute("DELETE FROM cleanings WHERE partition_id = ?", (partition_id,))
    for table in ("partitions", "group_partitions", "group_offsets"):
        db.execute(f"DELETE FROM {table} WHERE topic = ?", (topic,))  # noqa: S608
    db.execute("DELETE FROM topics WHERE name = ?", (topic,))


def _add_partitions(db: sqlite3.Connection, topic: str, total: int) -> Topic:
    have = load_topic(db, topic).partitions
    if total <= have:
        change = f"it has {have} partitions, {total} were requested"
        raise ImpossibleTopicChange(topic, change, "ask for more than it has; partitions can't be removed")
    _insert_partitions(db, topic, range(have, total))
    db.execute("UPDATE topics SET partitions = ? WHERE name = ?", (total, topic))
    return load_topic(db, topic)


def _insert_partitions(db: sqlite3.Connection, topic: str, numbers: range) -> None:
    db.executemany("INSERT INTO partitions (topic, partition) VALUES (?, ?)", [(topic, number) for number in numbers])
