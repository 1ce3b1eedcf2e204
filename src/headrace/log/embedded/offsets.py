"""The committed offsets of groups, and who may move them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from headrace.errors import NotOwner
from headrace.model import TopicPartition

__all__ = ["load_offsets", "store_offsets"]


def store_offsets(db: sqlite3.Connection, group: str, member_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Store offsets of partitions that the member owns; all or, if one is another's, none. Raises NotOwner."""
    for at in offsets:
        row = db.execute(
            "SELECT owner FROM group_partitions WHERE group_name = ? AND topic = ? AND partition = ?", (group, *at)
        ).fetchone()
        if row is None or row[0] != member_id:
            raise NotOwner(group, f"{at} is not {member_id}'s any more")
    db.executemany(
        "INSERT OR REPLACE INTO group_offsets (group_name, topic, partition, offset) VALUES (?, ?, ?, ?)",
        [(group, at.topic, at.partition, offset) for at, offset in offsets.items()],
    )


def load_offsets(db: sqlite3.Connection, group: str, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offsets that were committed, by anybody, ever."""
    rows = db.execute("SELECT topic, partition, offset FROM group_offsets WHERE group_name = ?", (group,))
    committed = {TopicPartition(topic, partition): offset for topic, partition, offset in rows}
    return {at: committed[at] for at in wanted if at in committed}
