"""What an operator does to the views by tag below Headrace, with SQL or CQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tests.cql import cql_cluster
from tests.pipeline.tier import Tier

from headrace.store import TagNumber, TagRow, write_time
from headrace.store.embedded.tags import order_of
from headrace.store.rows import tag_time_of


class TagOperator(Protocol):
    """Edits rows and numbers, as a person would who means it."""

    def remove(self, row: TagRow) -> None: ...

    def change(self, row: TagRow) -> None: ...

    def add(self, row: TagRow) -> None: ...

    def set_number(self, number: TagNumber) -> None: ...


def tag_operator_of(tier: Tier) -> TagOperator:
    """Return somebody with access to the tier's store."""
    return TagSql(tier) if tier.is_embedded else TagCql(tier)


class TagSql:
    """The sqlite3 command."""

    ROW = "tag = ? AND bucket_ms = ? AND place_in_order = ? AND pid = ? AND number = ?"

    def __init__(self, tier: Tier) -> None:
        self._path = Path(tier.endpoints.store.removeprefix("embedded:")) / "store.db"

    def remove(self, row: TagRow) -> None:
        self._run(f"DELETE FROM tag_views WHERE {self.ROW}", *_embedded_key(row))

    def change(self, row: TagRow) -> None:
        self._run(f"UPDATE tag_views SET origin = 'somebody' WHERE {self.ROW}", *_embedded_key(row))

    def add(self, row: TagRow) -> None:
        self._run(
            "INSERT INTO tag_views (tag, bucket_ms, place_in_order, pid, number, seq_nr, topic, generation, partition,"
            " offset, timestamp_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *_embedded_key(row), row.seq_nr, row.topic, row.generation, row.partition, row.offset, row.timestamp_ms,
        )  # fmt: skip

    def empty(self) -> None:
        with closing(sqlite3.connect(self._path)) as db:
            for table in ("tag_views", "tag_views_buckets", "tag_views_progress"):
                db.execute(f"DELETE FROM {table}")
            db.commit()

    def remove_number(self, row: TagRow) -> None:
        where = "topic = ? AND pid = ? AND tag = ?"
        self._run(f"DELETE FROM tag_views_progress WHERE {where}", row.topic, row.pid, row.tag)

    def set_number(self, number: TagNumber) -> None:
        self._run(
            "UPDATE tag_views_progress SET number = ? WHERE topic = ? AND pid = ? AND tag = ?",
            number.number, number.topic, number.pid, number.tag,
        )  # fmt: skip

    def _run(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self._path, timeout=30)) as db:
            assert db.execute(statement, values).rowcount == 1
            db.commit()


class TagCql:
    """cqlsh, with write times as high as replication's: a plain edit would lose."""

    ROW = "tag_name = %s AND timebucket = %s AND timestamp = %s AND persistence_id = %s AND tag_pid_sequence_nr = %s"

    def __init__(self, tier: Tier) -> None:
        address = urlsplit(tier.endpoints.store)
        self._host, self._port, self._keyspace = address.hostname, address.port or 9042, address.path.strip("/")

    def remove(self, row: TagRow) -> None:
        self._run(f"DELETE FROM {{}}.tag_views USING TIMESTAMP {write_time(row.place)} WHERE {self.ROW}", *_key(row))

    def change(self, row: TagRow) -> None:
        time = write_time(row.place)
        self._run(f"UPDATE {{}}.tag_views USING TIMESTAMP {time} SET origin = 'somebody' WHERE {self.ROW}", *_key(row))

    def add(self, row: TagRow) -> None:
        self._run(
            "INSERT INTO {}.tag_views (tag_name, timebucket, timestamp, persistence_id, tag_pid_sequence_nr,"
            " sequence_nr, topic, generation, partition, offset) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
            f" USING TIMESTAMP {write_time(row.place)}",
            *_key(row), row.seq_nr, row.topic, row.generation, row.partition, row.offset,
        )  # fmt: skip

    def set_number(self, number: TagNumber) -> None:
        time = write_time(number.place) + 1
        self._run(
            f"UPDATE {{}}.tag_views_progress USING TIMESTAMP {time} SET tag_pid_sequence_nr = %s"
            " WHERE topic = %s AND persistence_id = %s AND tag = %s",
            number.number, number.topic, number.pid, number.tag,
        )  # fmt: skip

    def _run(self, statement: str, *values: object) -> None:
        with cql_cluster(self._host, self._port) as cluster:
            cluster.connect().execute(statement.format(self._keyspace), values)


def _key(row: TagRow) -> tuple[object, ...]:
    return row.tag, row.bucket_ms, row.timestamp, row.pid, row.number


def _embedded_key(row: TagRow) -> tuple[object, ...]:
    return row.tag, row.bucket_ms, order_of(tag_time_of(row.timestamp)), row.pid, row.number
