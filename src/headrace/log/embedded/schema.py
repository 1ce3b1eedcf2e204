"""The tables of the embedded log, in one file, and the rows of its topics and partitions.

A record's `place` is its partition's id and its offset in one integer, so that a partition is one range of the
table's own B-tree: appends go to its end and reads are scans.
"""

from __future__ import annotations

import sqlite3

import msgspec

from headrace.errors import UnknownPartition, UnknownTopic
from headrace.model import Topic, TopicConfig, TopicPartition
from headrace.sqlite import SCHEMA as LEASES

__all__ = ["FORMAT", "MAX_OFFSET", "TABLES", "UPGRADES", "load_topic", "offset_of", "partition_row", "place_of"]

FORMAT = 3
OFFSET_BITS = 40
MAX_OFFSET = (1 << OFFSET_BITS) - 1

# How far a partition reached, and how far it was compacted, each time that compaction came by. Ages are measured by the
# time since the boot; the wall clock is for rows of an earlier boot.
CLEANINGS = """
CREATE TABLE cleanings (
    partition_id INTEGER NOT NULL, number INTEGER NOT NULL, reached INTEGER NOT NULL, cleaned INTEGER NOT NULL,
    boot_id TEXT NOT NULL, boot_ms INTEGER NOT NULL, wall_ms INTEGER NOT NULL, PRIMARY KEY (partition_id, number)
) WITHOUT ROWID"""

TABLES = f"""
CREATE TABLE topics (
    name TEXT PRIMARY KEY, topic_id TEXT NOT NULL, partitions INTEGER NOT NULL, config TEXT NOT NULL
);
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    start_offset INTEGER NOT NULL DEFAULT 0, next_offset INTEGER NOT NULL DEFAULT 0,
    released INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, partition)
);
CREATE TABLE records (
    place INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB
);
CREATE TABLE producers (transactional_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL);
CREATE TABLE group_members (
    group_name TEXT NOT NULL, member_id TEXT NOT NULL, topics TEXT NOT NULL, boot_id TEXT NOT NULL,
    expires_ms INTEGER NOT NULL, PRIMARY KEY (group_name, member_id)
) WITHOUT ROWID;
CREATE TABLE group_partitions (
    group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, owner TEXT, wanted_by TEXT,
    PRIMARY KEY (group_name, topic, partition)
) WITHOUT ROWID;
CREATE TABLE group_offsets (
    group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    PRIMARY KEY (group_name, topic, partition)
) WITHOUT ROWID;
{CLEANINGS};
{LEASES};
"""


# By the format that a file has. 1 timed sessions by the wall clock; members that still run join again. 2 told a
# tombstone's age by its timestamp, which its writer chose.
UPGRADES = {
    1: """
DELETE FROM group_members;
ALTER TABLE group_members ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';
UPDATE group_partitions SET owner = NULL
""",
    2: CLEANINGS,
}


def place_of(partition_id: int, offset: int) -> int:
    """Return the place of an offset in a partition."""
    return partition_id << OFFSET_BITS | offset


def offset_of(place: int) -> int:
    """Return the offset that a place stands for."""
    return place & MAX_OFFSET


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
