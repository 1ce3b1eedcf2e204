"""What an operator does to the store below Headrace, with SQL or CQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tests.cql import cql_cluster
from tests.pipeline.tier import Tier

from headrace.store import EventRow, meta_segment, write_time

META_SEGMENTS = 10_000


class Operator(Protocol):
    """Edits rows and heads. What is removed is gone; the rest is typed in as a person would."""

    def remove(self, topic: str, id_: str, row: EventRow) -> None: ...

    def change(self, topic: str, id_: str, row: EventRow) -> None: ...

    def add(self, topic: str, id_: str, row: EventRow) -> None: ...

    def lose_rows(self, topic: str, ids: Iterable[str]) -> None: ...

    def add_head(self, topic: str, id_: str) -> None: ...

    def close(self) -> None: ...


def operator_of(tier: Tier) -> Operator:
    """Return somebody with access to the tier's store."""
    return Sql(tier) if tier.is_embedded else Cql(tier)


class Sql:
    """The sqlite3 command."""

    ROW = "journal = (SELECT number FROM journals WHERE topic = ? AND id = ?) AND seq_nr = ?"

    def __init__(self, tier: Tier) -> None:
        self._path = Path(tier.endpoints.store.removeprefix("embedded:")) / "store.db"

    def remove(self, topic: str, id_: str, row: EventRow) -> None:
        self._run(f"DELETE FROM events WHERE {self.ROW}", topic, id_, row.seq_nr)

    def change(self, topic: str, id_: str, row: EventRow) -> None:
        self._run(f"UPDATE events SET origin = 'somebody' WHERE {self.ROW}", topic, id_, row.seq_nr)

    def add(self, topic: str, id_: str, row: EventRow) -> None:
        self._run(
            "INSERT INTO events (journal, segment, seq_nr, timestamp_ms, generation, partition, offset, log_time_ms,"
            " record_id) SELECT number, ?, ?, ?, ?, ?, ?, ?, ? FROM journals WHERE topic = ? AND id = ?",
            row.segment, row.seq_nr, row.timestamp_ms, row.generation, row.partition, row.offset, row.log_time_ms,
            row.record_id.bytes, topic, id_,
        )  # fmt: skip

    def lose_rows(self, topic: str, ids: Iterable[str]) -> None:
        """Lose all rows of some journals, without a trace."""
        of = "journal = (SELECT number FROM journals WHERE topic = ? AND id = ?)"
        with closing(sqlite3.connect(self._path, timeout=30)) as db:
            db.executemany(f"DELETE FROM events WHERE {of}", [(topic, id_) for id_ in ids])
            db.commit()

    def close(self) -> None:
        """Nothing is open."""

    def change_head(self, topic: str, id_: str) -> None:
        where = "journal = (SELECT number FROM journals WHERE topic = ? AND id = ?)"
        self._run(f"UPDATE heads SET seq_nr = seq_nr + 7, delete_to = 1 WHERE {where}", topic, id_)

    def add_head(self, topic: str, id_: str) -> None:
        self._run("INSERT INTO journals (topic, id) VALUES (?, ?)", topic, id_)
        self._run(
            "INSERT INTO heads (journal, generation, partition, offset, seq_nr, segment_size)"
            " SELECT number, 0, 0, 3, 5, 10000 FROM journals WHERE topic = ? AND id = ?", topic, id_,
        )  # fmt: skip

    def _run(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self._path, timeout=30)) as db:
            assert db.execute(statement, values).rowcount == 1
            db.commit()


class Cql:
    """cqlsh. A plain edit of a row loses to what replication wrote: this one gives write times as high as those."""

    ROW = "id = %s AND topic = %s AND segment = %s AND seq_nr = %s AND timestamp = %s"

    def __init__(self, tier: Tier) -> None:
        address = urlsplit(tier.endpoints.store)
        self._keyspace = address.path.strip("/")
        self._cluster = cql_cluster(address.hostname or "", address.port or 9042)

    def remove(self, topic: str, id_: str, row: EventRow) -> None:
        time = write_time(row.place)
        self._run(f"DELETE FROM {{}}.journal USING TIMESTAMP {time} WHERE {self.ROW}", *_key(topic, id_, row))

    def change(self, topic: str, id_: str, row: EventRow) -> None:
        """Set a column that the row leaves unset."""
        time = write_time(row.place)
        statement = f"UPDATE {{}}.journal USING TIMESTAMP {time} SET origin = 'somebody' WHERE {self.ROW}"
        self._run(statement, *_key(topic, id_, row))

    def lose_rows(self, topic: str, ids: Iterable[str]) -> None:
        """Lose all rows there are, without a trace: a deletion would be one."""
        self._run("TRUNCATE {}.journal")

    def add(self, topic: str, id_: str, row: EventRow) -> None:
        self._run(
            "INSERT INTO {}.journal (id, topic, segment, seq_nr, timestamp, generation, partition, offset, log_time,"
            " meta_record_id) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            *_key(topic, id_, row), row.generation, row.partition, row.offset, row.log_time_ms, row.record_id,
        )  # fmt: skip

    def add_head(self, topic: str, id_: str) -> None:
        self._run(
            "INSERT INTO {}.metajournal (topic, segment, id, generation, partition, offset, seq_nr, segment_size)"
            " VALUES (%s, %s, %s, 0, 0, 3, 5, 10000)", topic, meta_segment(id_, META_SEGMENTS), id_,
        )  # fmt: skip

    def _run(self, statement: str, *values: object) -> None:
        session = self._cluster.connect()
        try:
            session.execute(statement.format(self._keyspace), values)
        finally:
            session.shutdown()

    def close(self) -> None:
        self._cluster.shutdown()


def _key(topic: str, id_: str, row: EventRow) -> tuple[object, ...]:
    return id_, topic, row.segment, row.seq_nr, row.timestamp_ms
