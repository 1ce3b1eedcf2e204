"""Views by tag in the embedded store: their tables and columns, reads and writes.

`place_in_order` is a row's TagTime as 16 bytes that sort as it does. A deleted row stays as a mark with the place of
its deletion, so that a late writer loses.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from headrace.sqlite import GroupCommit
from headrace.store.embedded.columns import Values, upsert
from headrace.store.embedded.reader import Access
from headrace.store.embedded.schema import BY_HAND, written
from headrace.store.embedded.writer import StoreCall, StoreWork
from headrace.store.limits import check_paging
from headrace.store.metrics import PAGES, TAG_ROWS_WRITTEN
from headrace.store.rows import (
    EPOCH_TAG,
    FIRST_TAG_TIME,
    LAST_TAG_TIME,
    Place,
    TagNumber,
    TagRow,
    TagTime,
    tag_time_of,
    timeuuid,
)

__all__ = [
    "NUMBER",
    "ROW",
    "TABLES",
    "EmbeddedTags",
    "number_of",
    "number_values",
    "order_of",
    "row_of",
    "row_values",
    "upsert_row",
]

TABLES = (
    f"""CREATE TABLE IF NOT EXISTS tag_views (
        tag TEXT NOT NULL, bucket_ms INTEGER NOT NULL, place_in_order BLOB NOT NULL, pid TEXT NOT NULL,
        number INTEGER NOT NULL, written INTEGER NOT NULL DEFAULT {BY_HAND}, seq_nr INTEGER, topic TEXT,
        generation INTEGER, partition INTEGER, offset INTEGER, timestamp_ms INTEGER, tags BLOB, payload_type TEXT,
        payload BLOB, metadata TEXT, headers BLOB, origin TEXT, version TEXT, is_redacted INTEGER NOT NULL DEFAULT 0,
        is_deleted INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (tag, bucket_ms, place_in_order, pid, number)
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS tag_views_buckets (
        tag TEXT NOT NULL, bucket_ms INTEGER NOT NULL, epoch TEXT, PRIMARY KEY (tag, bucket_ms)
    ) WITHOUT ROWID""",
    f"""CREATE TABLE IF NOT EXISTS tag_views_progress (
        topic TEXT NOT NULL, pid TEXT NOT NULL, tag TEXT NOT NULL, written INTEGER NOT NULL DEFAULT {BY_HAND},
        seq_nr INTEGER, number INTEGER, generation INTEGER, offset INTEGER, is_deleted INTEGER NOT NULL DEFAULT 0,
        epoch TEXT, first_number INTEGER, PRIMARY KEY (topic, pid, tag)
    ) WITHOUT ROWID""",
)
ROW = (
    "tag", "bucket_ms", "place_in_order", "pid", "number", "written", "seq_nr", "topic", "generation", "partition",
    "offset", "timestamp_ms", "tags", "payload_type", "payload", "metadata", "headers", "origin", "version",
    "is_redacted", "is_deleted",
)  # fmt: skip
NUMBER = ("topic", "pid", "tag", "written", "seq_nr", "number", "generation", "offset", "is_deleted")

_WORDS = ("payload_type", "payload", "metadata", "headers")

_encode = msgspec.msgpack.Encoder().encode
_decode_tags = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_texts = msgspec.msgpack.Decoder(dict[str, str]).decode


def upsert_row(table: str, key: tuple[str, ...]) -> str:
    """Return the statement that writes a row of a view; a redacted row stays redacted, unless it was deleted."""
    is_kept = f"({table}.is_redacted AND NOT {table}.is_deleted)"
    changed = [f"is_redacted = excluded.is_redacted OR {is_kept}"]
    for column in ROW:
        if column in _WORDS:
            changed.append(f"{column} = CASE WHEN {is_kept} THEN NULL ELSE excluded.{column} END")
        elif column not in key and column != "is_redacted":
            changed.append(f"{column} = excluded.{column}")
    return (
        f"INSERT INTO {table} ({', '.join(ROW)}) VALUES ({', '.join('?' * len(ROW))}) "  # noqa: S608 - names of our own
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {', '.join(changed)} "
        f"WHERE excluded.written >= {table}.written"
    )


def order_of(at: TagTime) -> bytes:
    """Return bytes that sort like TagTimes."""
    ms, topic, partition, offset = at
    return (ms * 10_000 + topic).to_bytes(8) + partition.to_bytes(2) + offset.to_bytes(6)


def row_values(row: TagRow, at: Place | None) -> Values:
    """Return a row's columns, in the order of ROW."""
    return (
        row.tag,
        row.bucket_ms,
        order_of(tag_time_of(row.timestamp)),
        row.pid,
        row.number,
        written(at or row.place),
        row.seq_nr,
        row.topic,
        row.generation,
        row.partition,
        row.offset,
        row.timestamp_ms,
        _encode(row.tags) if row.tags else None,
        row.payload_type,
        row.payload,
        row.metadata,
        _encode(row.headers) if row.headers else None,
        row.origin,
        row.version,
        row.is_redacted,
        False,
    )


def row_of(values: Values) -> TagRow:
    """Return the row of a view of its columns."""
    (tag, bucket_ms, order, pid, number, _, seq_nr, topic, generation, partition, offset, timestamp_ms, tags,
     payload_type, payload, metadata, headers, origin, version, is_redacted, _) = values  # fmt: skip
    return TagRow(
        tag=tag,
        bucket_ms=bucket_ms,
        timestamp=timeuuid(_time_of(order)),
        pid=pid,
        number=number,
        seq_nr=seq_nr,
        topic=topic,
        generation=generation,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        tags=_decode_tags(tags) if tags else (),
        payload_type=payload_type,
        payload=payload,
        metadata=metadata,
        headers=_decode_texts(headers) if headers else {},
        origin=origin,
        version=version,
        is_redacted=bool(is_redacted),
    )


def number_values(number: TagNumber, at: Place | None) -> Values:
    """Return the columns of a number, in the order of NUMBER."""
    return (
        number.topic,
        number.pid,
        number.tag,
        written(at or number.place),
        number.seq_nr,
        number.number,
        number.generation,
        number.offset,
        False,
    )


def number_of(values: Values) -> TagNumber:
    """Return the number of its columns; `values` are those of NUMBER and `first_number`."""
    topic, pid, tag, _, seq_nr, number, generation, offset, _, first = values
    return TagNumber(
        topic=topic, pid=pid, tag=tag, seq_nr=seq_nr, number=number, generation=generation, offset=offset,
        first=first or 1,
    )  # fmt: skip


def _time_of(order: bytes) -> TagTime:
    ticks, partition, offset = (int.from_bytes(part) for part in (order[:8], order[8:10], order[10:]))
    return TagTime(*divmod(ticks, 10_000), partition, offset)


_ROW_KEY = ("tag", "bucket_ms", "place_in_order", "pid", "number")
_PUT_ROW = upsert_row("tag_views", _ROW_KEY)
_PUT_NUMBER = upsert("tag_views_progress", ("topic", "pid", "tag"), NUMBER)
_PUT_BUCKET = "INSERT OR IGNORE INTO tag_views_buckets (tag, bucket_ms) VALUES (?, ?)"
_THE_ROW = "tag = ? AND bucket_ms = ? AND place_in_order = ? AND pid = ? AND number = ? AND written <= ?"
_REDACT = (
    "UPDATE tag_views SET written = ?, is_redacted = 1, payload_type = NULL, payload = NULL, metadata = NULL, "  # noqa: S608
    f"headers = NULL WHERE {_THE_ROW}"
)
_DELETE = (
    "UPDATE tag_views SET written = ?, is_deleted = 1, payload_type = NULL, payload = NULL, metadata = NULL, "  # noqa: S608
    f"headers = NULL WHERE {_THE_ROW}"
)
_DROP_BUCKET = (
    "DELETE FROM tag_views WHERE tag = ? AND bucket_ms = ?",
    "DELETE FROM tag_views_buckets WHERE tag = ? AND bucket_ms = ?",
)
_DELETE_NUMBER = (
    "INSERT INTO tag_views_progress (topic, pid, tag, written, is_deleted) VALUES (?, ?, ?, ?, 1) "
    "ON CONFLICT (topic, pid, tag) DO UPDATE SET written = excluded.written, is_deleted = 1, first_number = NULL "
    "WHERE excluded.written >= tag_views_progress.written"
)
_BEGIN_AT = "UPDATE tag_views_progress SET first_number = ? WHERE topic = ? AND pid = ? AND tag = ? AND is_deleted = 0"
_PAGE = (
    f"SELECT {', '.join(ROW)} FROM tag_views "  # noqa: S608
    "WHERE tag = ? AND bucket_ms = ? AND (place_in_order, pid, number) > (?, ?, ?) AND place_in_order <= ? "
    "AND is_deleted = 0 ORDER BY place_in_order, pid, number LIMIT ?"
)
_BUCKETS = "SELECT bucket_ms FROM tag_views_buckets WHERE tag = ? AND bucket_ms BETWEEN ? AND ? ORDER BY bucket_ms"
_TAGS = "SELECT DISTINCT tag FROM tag_views_buckets WHERE tag <> ? ORDER BY tag"
_NUMBERS = (
    f"SELECT {', '.join(NUMBER)}, first_number FROM tag_views_progress "  # noqa: S608
    "WHERE topic = ? AND pid = ? AND is_deleted = 0 AND number IS NOT NULL"
)
_EPOCHS = {
    "tag_views": "SELECT metadata FROM tag_views WHERE tag = ?",
    "tag_views_buckets": "SELECT epoch FROM tag_views_buckets WHERE tag = ?",
    "tag_views_progress": "SELECT epoch FROM tag_views_progress WHERE topic = '' AND pid = ?",
}
_PUT_EPOCHS = (
    """INSERT OR REPLACE INTO tag_views (tag, metadata, bucket_ms, place_in_order, pid, number)
    VALUES (?, ?, 0, '', '', 0)""",
    "INSERT OR REPLACE INTO tag_views_buckets (tag, bucket_ms, epoch) VALUES (?, 0, ?)",
    "INSERT OR REPLACE INTO tag_views_progress (topic, pid, tag, epoch) VALUES ('', ?, '', ?)",
)
_LAST_MS = (1 << 62) - 1


class _Written:
    """What views and numbers share: changes as pieces of work for the group commit."""

    def __init__(self, commits: GroupCommit[StoreWork], access: Access) -> None:
        self._commits = commits
        self._access = access

    async def _change(self, function: Callable[[sqlite3.Connection], Any]) -> None:
        await self._commits.submit(StoreCall(lambda db, _: function(db)))


class EmbeddedTagViews(_Written):
    """The embedded store's TagViews."""

    async def write(self, rows: Sequence[TagRow], *, at: Place | None = None) -> None:
        """Write rows, and their buckets with them."""
        buckets = {(row.tag, row.bucket_ms) for row in rows}
        values = [row_values(row, at) for row in rows]
        await self._change(lambda db: _write(db, buckets, values))
        TAG_ROWS_WRITTEN.labels("embedded").inc(len(rows))

    async def read(
        self,
        tag: str,
        bucket_ms: int,
        *,
        first: TagTime | None = None,
        last: TagTime | None = None,
        page_size: int = 500,
    ) -> AsyncIterator[Sequence[TagRow]]:
        """Yield pages of a bucket's rows."""
        check_paging(segment_size=1, page_size=page_size)
        after: tuple[Any, ...] = (order_of(first or FIRST_TAG_TIME), "", -1)
        end = order_of(last or LAST_TAG_TIME)
        while True:
            asked = (tag, bucket_ms, *after, end, page_size)
            page = await self._access.ask("read tag views", partial(_rows, asked=asked))
            PAGES.labels("embedded", "tag_views").inc()
            if page:
                yield page
            if len(page) < page_size:
                return
            after = (order_of(tag_time_of(page[-1].timestamp)), page[-1].pid, page[-1].number)

    async def buckets(self, tag: str, *, first_ms: int = 0, last_ms: int | None = None) -> Sequence[int]:
        """List the buckets of a tag."""
        asked = (tag, first_ms, _LAST_MS if last_ms is None else last_ms)
        rows = await self._access.ask("read tag buckets", lambda db: db.execute(_BUCKETS, asked).fetchall())
        return [start_ms for (start_ms,) in rows]

    async def tags(self) -> Sequence[str]:
        """List all tags."""
        rows = await self._access.ask("read tags", lambda db: db.execute(_TAGS, (EPOCH_TAG,)).fetchall())
        return [tag for (tag,) in rows]

    async def redact(self, rows: Sequence[TagRow], *, at: Place) -> None:
        """Remove the content of rows."""
        values = [(written(at), *_key(row), written(at)) for row in rows]
        await self._change(lambda db: db.executemany(_REDACT, values))

    async def delete(self, rows: Sequence[TagRow], *, at: Place) -> None:
        """Remove rows."""
        values = [(written(at), *_key(row), written(at)) for row in rows]
        await self._change(lambda db: db.executemany(_DELETE, values))


class EmbeddedTagNumbers(_Written):
    """The embedded store's TagNumbers."""

    async def of(self, topic: str, pid: str) -> Mapping[str, TagNumber]:
        """Return the numbers of all tags of a pid."""
        rows = await self._access.ask("read tag numbers", lambda db: db.execute(_NUMBERS, (topic, pid)).fetchall())
        return {number.tag: number for number in map(number_of, rows)}

    async def write(self, numbers: Sequence[TagNumber], *, at: Place | None = None) -> None:
        """Write numbers."""
        values = [number_values(number, at) for number in numbers]
        await self._change(lambda db: db.executemany(_PUT_NUMBER, values))

    async def begin_at(self, topic: str, pid: str, tag: str, first: int, *, at: Place) -> None:
        """Store where numbers begin. Repairs run one after the other here, so the last one counts."""
        await self._change(lambda db: db.execute(_BEGIN_AT, (first, topic, pid, tag)))

    async def delete(self, topic: str, pid: str, tag: str, *, at: Place) -> None:
        """Forget a number."""
        await self._change(lambda db: db.execute(_DELETE_NUMBER, (topic, pid, tag, written(at))))


class EmbeddedTags(_Written):
    """The embedded store's Tags."""

    def __init__(self, commits: GroupCommit[StoreWork], access: Access) -> None:
        super().__init__(commits, access)
        self._views = EmbeddedTagViews(commits, access)
        self._numbers = EmbeddedTagNumbers(commits, access)

    @property
    def views(self) -> EmbeddedTagViews:
        """The events."""
        return self._views

    @property
    def numbers(self) -> EmbeddedTagNumbers:
        """The numbering."""
        return self._numbers

    async def prepare(self) -> None:
        """Make the tables."""
        await self._change(_make)

    async def epochs(self) -> Mapping[str, str | None]:
        """Return the epoch of each table."""
        return await self._access.ask("read tag epochs", _epochs)

    async def put_epoch(self, epoch: str) -> None:
        """Write the epoch into every table."""
        await self._change(lambda db: [db.execute(statement, (EPOCH_TAG, epoch)) for statement in _PUT_EPOCHS])

    async def drop_bucket(self, tag: str, bucket_ms: int) -> None:
        """Remove a bucket."""
        await self._change(lambda db: [db.execute(statement, (tag, bucket_ms)) for statement in _DROP_BUCKET])


def _make(db: sqlite3.Connection) -> None:
    for statement in TABLES:
        db.execute(statement)
    columns = {name for _, name, *_ in db.execute("PRAGMA table_info(tag_views_progress)")}
    if "first_number" not in columns:  # made by a version that lacked it
        db.execute("ALTER TABLE tag_views_progress ADD COLUMN first_number INTEGER")


def _write(db: sqlite3.Connection, buckets: set[tuple[str, int]], values: Sequence[Values]) -> None:
    db.executemany(_PUT_BUCKET, buckets)
    db.executemany(_PUT_ROW, values)


def _rows(db: sqlite3.Connection, asked: tuple[Any, ...]) -> list[TagRow]:
    return [row_of(row) for row in db.execute(_PAGE, asked)]


def _key(row: TagRow) -> Values:
    return row.tag, row.bucket_ms, order_of(tag_time_of(row.timestamp)), row.pid, row.number


def _epochs(db: sqlite3.Connection) -> dict[str, str | None]:
    found = {table: db.execute(query, (EPOCH_TAG,)).fetchone() for table, query in _EPOCHS.items()}
    return {table: row[0] if row is not None else None for table, row in found.items()}
