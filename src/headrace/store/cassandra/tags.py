"""Views by tag in Cassandra: tables and columns, reads, and writes in unlogged batches of one (tag, timebucket)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from cassandra.query import UNSET_VALUE

from headrace.store.cassandra.columns import split_payload
from headrace.store.cassandra.requests import one_ahead, unlogged
from headrace.store.cassandra.schema import locked
from headrace.store.cassandra.session import Row, Session
from headrace.store.cassandra.writer import ABOVE_CLOCKS, all_of, cut_groups
from headrace.store.limits import check_paging
from headrace.store.metrics import TAG_ROWS_WRITTEN
from headrace.store.rows import (
    EPOCH_TAG,
    FIRST_TAG_TIME,
    LAST_TAG_TIME,
    Place,
    TagNumber,
    TagRow,
    TagTime,
    timeuuid,
    write_time,
)

__all__ = ["NUMBER", "REDACTED", "ROW", "TABLES", "CassandraTags", "number_of", "number_values", "row_of", "row_values"]

TABLES = (
    """CREATE TABLE IF NOT EXISTS {keyspace}.tag_views (
        tag_name text, timebucket bigint, timestamp timeuuid, persistence_id text, tag_pid_sequence_nr bigint,
        sequence_nr bigint, topic text, partition int, offset bigint, generation int, event_time bigint,
        tags frozen<list<text>>, payload_type text, payload_txt text, payload_bin blob, metadata text,
        headers frozen<map<text, text>>, origin text, version text, redacted boolean,
        PRIMARY KEY ((tag_name, timebucket), timestamp, persistence_id, tag_pid_sequence_nr)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.tag_views_buckets (
        tag_name text, timebucket bigint, epoch text, PRIMARY KEY (tag_name, timebucket)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.tag_views_progress (
        topic text, persistence_id text, tag text, sequence_nr bigint, tag_pid_sequence_nr bigint, generation int,
        offset bigint, first_number bigint, epoch text, PRIMARY KEY ((topic, persistence_id), tag)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
)
ROW = (
    "timestamp", "persistence_id", "tag_pid_sequence_nr", "sequence_nr", "topic", "partition", "offset", "generation",
    "event_time", "tags", "payload_type", "payload_txt", "payload_bin", "metadata", "headers", "origin", "version",
)  # fmt: skip
REDACTED = ("payload_type", "payload_txt", "payload_bin", "metadata", "headers")
NUMBER = ("topic", "persistence_id", "tag", "sequence_nr", "tag_pid_sequence_nr", "generation", "offset")


def row_values(row: TagRow, at: Place | None) -> tuple[Any, ...]:
    """Return a row's columns, in the order of ROW, then its write time; what is absent is left unset."""
    text, binary = split_payload(row.payload_type, row.payload)
    return (
        row.timestamp,
        row.pid,
        row.number,
        row.seq_nr,
        row.topic,
        row.partition,
        row.offset,
        row.generation,
        row.timestamp_ms,
        list(row.tags) if row.tags else UNSET_VALUE,
        UNSET_VALUE if row.payload_type is None else row.payload_type,
        UNSET_VALUE if text is None else text,
        UNSET_VALUE if binary is None else binary,
        UNSET_VALUE if row.metadata is None else row.metadata,
        row.headers or UNSET_VALUE,
        UNSET_VALUE if row.origin is None else row.origin,
        UNSET_VALUE if row.version is None else row.version,
        write_time(at or row.place),
    )


def row_of(tag: str, bucket_ms: int, values: Row) -> TagRow:
    """Return the row of a view of its columns, those of ROW and `redacted`.

    A redacted row has no content, also if it was written again.
    """
    (timestamp, pid, number, seq_nr, topic, partition, offset, generation, timestamp_ms, tags, payload_type, text,
     binary, metadata, headers, origin, version, is_redacted) = values  # fmt: skip
    if is_redacted:
        payload_type = text = binary = metadata = headers = None
    return TagRow(
        tag=tag,
        bucket_ms=bucket_ms,
        timestamp=timestamp,
        pid=pid,
        number=number,
        seq_nr=seq_nr,
        topic=topic,
        generation=generation,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        tags=tuple(tags) if tags else (),
        payload_type=payload_type,
        payload=binary if text is None else text.encode(),
        metadata=metadata,
        headers=dict(headers) if headers else {},
        origin=origin,
        version=version,
        is_redacted=bool(is_redacted),
    )


def number_values(number: TagNumber, at: Place | None) -> tuple[Any, ...]:
    """Return the columns of a number, in the order of NUMBER, then its write time."""
    return (
        number.topic,
        number.pid,
        number.tag,
        number.seq_nr,
        number.number,
        number.generation,
        number.offset,
        write_time(at or number.place),
    )


def number_of(values: Row) -> TagNumber:
    """Return the number of its columns; `values` are those of NUMBER and `first_number`."""
    topic, pid, tag, seq_nr, number, generation, offset, first = values
    return TagNumber(
        topic=topic, pid=pid, tag=tag, seq_nr=seq_nr, number=number, generation=generation, offset=offset,
        first=first or 1,
    )  # fmt: skip


_IN_BUCKET = "tag_name = ? AND timebucket = ?"
_THE_ROW = f"{_IN_BUCKET} AND timestamp = ? AND persistence_id = ? AND tag_pid_sequence_nr = ?"
_PUT_ROW = (
    f"INSERT INTO {{keyspace}}.tag_views (tag_name, timebucket, {', '.join(ROW)}) "  # noqa: S608 - names of our own
    f"VALUES ({', '.join('?' * (len(ROW) + 2))}) USING TIMESTAMP ?"
)
_CLEAR_BUCKET = f"DELETE FROM {{keyspace}}.tag_views USING TIMESTAMP ? WHERE {_IN_BUCKET}"  # noqa: S608
_DELETE_ROW = f"DELETE FROM {{keyspace}}.tag_views USING TIMESTAMP ? WHERE {_THE_ROW}"  # noqa: S608
_REDACT_ROW = f"DELETE {', '.join(REDACTED)} FROM {{keyspace}}.tag_views USING TIMESTAMP ? WHERE {_THE_ROW}"
_SAY_REDACTED = f"UPDATE {{keyspace}}.tag_views USING TIMESTAMP ? SET redacted = true WHERE {_THE_ROW}"  # noqa: S608
_ROWS = (
    f"SELECT {', '.join(ROW)}, redacted FROM {{keyspace}}.tag_views "  # noqa: S608
    f"WHERE {_IN_BUCKET} AND timestamp >= ? AND timestamp <= ?"
)
_PUT_BUCKET = "INSERT INTO {keyspace}.tag_views_buckets (tag_name, timebucket) VALUES (?, ?)"
_UNLIST_BUCKET = "DELETE FROM {keyspace}.tag_views_buckets WHERE tag_name = ? AND timebucket = ?"
_BUCKETS = (
    "SELECT timebucket FROM {keyspace}.tag_views_buckets WHERE tag_name = ? AND timebucket >= ? AND timebucket <= ?"
)
_TAGS = "SELECT DISTINCT tag_name FROM {keyspace}.tag_views_buckets"
_PUT_NUMBER = (
    f"INSERT INTO {{keyspace}}.tag_views_progress ({', '.join(NUMBER)}) "  # noqa: S608
    f"VALUES ({', '.join('?' * len(NUMBER))}) USING TIMESTAMP ?"
)
_NUMBERS = (
    f"SELECT {', '.join(NUMBER)}, first_number FROM {{keyspace}}.tag_views_progress "  # noqa: S608
    "WHERE topic = ? AND persistence_id = ?"
)
_BEGIN_AT = (
    "UPDATE {keyspace}.tag_views_progress USING TIMESTAMP ? SET first_number = ? "
    "WHERE topic = ? AND persistence_id = ? AND tag = ?"
)
_DELETE_NUMBER = (
    "DELETE FROM {keyspace}.tag_views_progress USING TIMESTAMP ? WHERE topic = ? AND persistence_id = ? AND tag = ?"
)
_EPOCHS = {
    "tag_views": "SELECT metadata FROM {keyspace}.tag_views WHERE tag_name = ? AND timebucket = 0",
    "tag_views_buckets": "SELECT epoch FROM {keyspace}.tag_views_buckets WHERE tag_name = ? AND timebucket = 0",
    "tag_views_progress": "SELECT epoch FROM {keyspace}.tag_views_progress WHERE topic = ' ' AND persistence_id = ?",
}
_PUT_EPOCHS = (
    """INSERT INTO {keyspace}.tag_views
    (tag_name, timebucket, timestamp, persistence_id, tag_pid_sequence_nr, metadata)
    VALUES (?, 0, 13814000-1dd2-11b2-8080-808080808080, '', 0, ?)""",
    "INSERT INTO {keyspace}.tag_views_buckets (tag_name, timebucket, epoch) VALUES (?, 0, ?)",
    "INSERT INTO {keyspace}.tag_views_progress (topic, persistence_id, tag, epoch) VALUES (' ', ?, '', ?)",
)
_ADD_FIRST_NUMBER = "ALTER TABLE {keyspace}.tag_views_progress ADD IF NOT EXISTS first_number bigint"
QUERIES = (
    _PUT_ROW, _CLEAR_BUCKET, _DELETE_ROW, _REDACT_ROW, _SAY_REDACTED, _ROWS, _PUT_BUCKET, _UNLIST_BUCKET, _BUCKETS,
    _TAGS, _PUT_NUMBER, _NUMBERS, _BEGIN_AT, _DELETE_NUMBER, *_EPOCHS.values(), *_PUT_EPOCHS,
)  # fmt: skip

BATCH_MAX_ROWS = 150
BATCH_MAX_BYTES = 40_000  # estimated; at most 50 kB on the wire
_BATCHES_AT_ONCE = 32  # all go to few partitions, the current buckets of the tags
_REMEMBERED = 20_000
_LAST_MS = (1 << 62) - 1
# Above the write time of every row: a late writer of a bucket that was dropped must not bring some of it back.
_ABOVE_ALL = (1 << 63) - 2


class CassandraTagViews:
    """Cassandra's TagViews."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: set[tuple[str, int]] = set()
        self._free = asyncio.Semaphore(_BATCHES_AT_ONCE)

    async def write(self, rows: Sequence[TagRow], *, at: Place | None = None) -> None:
        """Write rows in batches of one bucket each; a bucket is listed before it gets its first row."""
        self._session.check()
        await self._list({(row.tag, row.bucket_ms) for row in rows} - self._known)
        batches = cut_groups(
            rows,
            key=lambda row: (row.tag, row.bucket_ms),
            size_of=_size_of,
            max_rows=BATCH_MAX_ROWS,
            max_bytes=BATCH_MAX_BYTES,
        )
        await all_of(self._write_batch(batch, at) for batch in batches)
        TAG_ROWS_WRITTEN.labels("cassandra").inc(len(rows))

    async def read(
        self,
        tag: str,
        bucket_ms: int,
        *,
        first: TagTime | None = None,
        last: TagTime | None = None,
        page_size: int = 500,
    ) -> AsyncIterator[Sequence[TagRow]]:
        """Yield pages of a bucket's rows, one fetched ahead."""
        check_paging(segment_size=1, page_size=page_size)
        self._session.check()
        bounds = (timeuuid(first or FIRST_TAG_TIME), timeuuid(last or LAST_TAG_TIME))
        async for page in one_ahead(self._pages(tag, bucket_ms, bounds, page_size)):
            yield page

    async def buckets(self, tag: str, *, first_ms: int = 0, last_ms: int | None = None) -> Sequence[int]:
        """List the buckets of a tag."""
        asked = (tag, first_ms, _LAST_MS if last_ms is None else last_ms)
        pages = self._session.pages("tag_views_buckets", _BUCKETS, asked, page_size=5000)
        return [start_ms async for rows in pages for (start_ms,) in rows]

    async def tags(self) -> Sequence[str]:
        """List all tags."""
        pages = self._session.pages("tag_views_buckets", _TAGS, (), page_size=1000)
        return sorted([tag async for rows in pages for (tag,) in rows if tag != EPOCH_TAG])

    async def redact(self, rows: Sequence[TagRow], *, at: Place) -> None:
        """Remove the content of rows."""
        await self._each(rows, at, _REDACT_ROW, _SAY_REDACTED)

    async def delete(self, rows: Sequence[TagRow], *, at: Place) -> None:
        """Remove rows."""
        await self._each(rows, at, _DELETE_ROW)

    async def drop(self, tag: str, bucket_ms: int) -> None:
        """Remove a bucket, then take it off the list; after a crash in between it is still listed."""
        bind, where = self._session.bind, (tag, bucket_ms)
        await self._session.write("drop tag bucket", bind(_CLEAR_BUCKET, (_ABOVE_ALL, *where)))
        await self._session.write("unlist bucket", bind(_UNLIST_BUCKET, where))
        self._known.discard(where)

    def forget(self) -> None:
        """Forget which buckets are listed: the tables may have been replaced."""
        self._known.clear()

    async def _list(self, buckets: set[tuple[str, int]]) -> None:
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        bind = self._session.bind
        await all_of(self._session.write("list bucket", bind(_PUT_BUCKET, bucket)) for bucket in buckets)
        self._known |= buckets

    async def _write_batch(self, rows: Sequence[TagRow], at: Place | None) -> None:
        where = (rows[0].tag, rows[0].bucket_ms)
        async with self._free:
            batch = unlogged()
            batch.add(self._session.bind(_CLEAR_BUCKET, (ABOVE_CLOCKS, *where)))  # removes what was written by hand
            self._session.fill(batch, _PUT_ROW, where, (row_values(row, at) for row in rows))
            await self._session.write("write tag rows", batch)

    async def _each(self, rows: Sequence[TagRow], at: Place, *queries: str) -> None:
        bind, time = self._session.bind, write_time(at)
        for batch_rows in cut_groups(
            rows,
            key=lambda row: (row.tag, row.bucket_ms),
            size_of=_size_of,
            max_rows=BATCH_MAX_ROWS // 2,
            max_bytes=BATCH_MAX_BYTES,
        ):
            batch = unlogged()
            for row in batch_rows:
                where = (row.tag, row.bucket_ms, row.timestamp, row.pid, row.number)
                for query in queries:
                    batch.add(bind(query, (time, *where)))
            await self._session.write("change tag rows", batch)

    async def _pages(
        self, tag: str, bucket_ms: int, bounds: tuple[object, object], page_size: int
    ) -> AsyncGenerator[Sequence[TagRow], None]:
        asked = (tag, bucket_ms, *bounds)
        async for rows in self._session.pages("tag_views", _ROWS, asked, page_size=page_size):
            # A row without its number in the journal is what a redaction left of one that was deleted.
            yield [row_of(tag, bucket_ms, row) for row in rows if row[3] is not None]


class CassandraTagNumbers:
    """Cassandra's TagNumbers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def of(self, topic: str, pid: str) -> Mapping[str, TagNumber]:
        """Return the numbers of all tags of a pid."""
        pages = self._session.pages("tag_views_progress", _NUMBERS, (topic, pid), page_size=5000)
        return {row[2]: number_of(row) async for rows in pages for row in rows if row[4] is not None}

    async def write(self, numbers: Sequence[TagNumber], *, at: Place | None = None) -> None:
        """Write numbers, those of one pid together."""
        self._session.check()
        groups = cut_groups(
            numbers, key=lambda n: (n.topic, n.pid), size_of=lambda n: 100 + len(n.tag), max_rows=150, max_bytes=40_000
        )
        await all_of(self._write_batch(batch, at) for batch in groups)

    async def begin_at(self, topic: str, pid: str, tag: str, first: int, *, at: Place) -> None:
        """Store where numbers begin."""
        bound = self._session.bind(_BEGIN_AT, (write_time(at), first, topic, pid, tag))
        await self._session.write("write first tag number", bound)

    async def delete(self, topic: str, pid: str, tag: str, *, at: Place) -> None:
        """Forget a number."""
        bound = self._session.bind(_DELETE_NUMBER, (write_time(at), topic, pid, tag))
        await self._session.write("delete tag number", bound)

    async def _write_batch(self, numbers: Sequence[TagNumber], at: Place | None) -> None:
        bound = [self._session.bind(_PUT_NUMBER, number_values(number, at)) for number in numbers]
        statement = bound[0]
        if len(bound) > 1:
            statement = unlogged()
            for one in bound:
                statement.add(one)
        await self._session.write("write tag numbers", statement)


class CassandraTags:
    """Cassandra's Tags."""

    def __init__(self, session: Session, *, gc_grace_s: float) -> None:
        self._session = session
        self._gc_grace_s = gc_grace_s
        self._views = CassandraTagViews(session)
        self._numbers = CassandraTagNumbers(session)
        self._preparing = asyncio.Lock()
        self._is_prepared = False

    @property
    def views(self) -> CassandraTagViews:
        """The events."""
        return self._views

    @property
    def numbers(self) -> CassandraTagNumbers:
        """The numbering."""
        return self._numbers

    async def prepare(self) -> None:
        """Make the tables where they are missing, by one process at a time."""
        self._views.forget()
        async with self._preparing:
            if self._is_prepared:
                return
            if not await self._are_there():
                async with locked(self._session, "schema") as lock:
                    for table in TABLES:
                        await lock.renew()
                        await self._session.define(table % {"gc_grace_s": self._gc_grace_s})
                    if not await self._are_there():  # made by a version that lacked a column
                        await lock.renew()
                        await self._session.define(_ADD_FIRST_NUMBER)
            await self._session.prepare(QUERIES)
            self._is_prepared = True

    async def epochs(self) -> Mapping[str, str | None]:
        """Return the epoch of each table."""
        answers = await asyncio.gather(
            *(self._session.read("read tag epoch", query, (EPOCH_TAG,)) for query in _EPOCHS.values())
        )
        return {table: rows[0][0] if rows else None for table, rows in zip(_EPOCHS, answers, strict=True)}

    async def put_epoch(self, epoch: str) -> None:
        """Write the epoch into every table."""
        bind = self._session.bind
        await all_of(self._session.write("write tag epoch", bind(q, (EPOCH_TAG, epoch))) for q in _PUT_EPOCHS)

    async def drop_bucket(self, tag: str, bucket_ms: int) -> None:
        """Remove a bucket."""
        await self._views.drop(tag, bucket_ms)

    async def _are_there(self) -> bool:
        query = "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = %s"
        found = set(await self._session.ask_once(query, (self._session.address.keyspace,)))
        return set(_EPOCHS) <= {table for table, _ in found} and ("tag_views_progress", "first_number") in found


def _size_of(row: TagRow) -> int:
    """Estimate what a row takes in a request."""
    texts = (row.tag, row.pid, row.topic, row.metadata, row.origin, row.version, *row.tags)
    headers = sum(len(name) + len(value) for name, value in row.headers.items())
    return 200 + len(row.payload or b"") + headers + sum(len(text) for text in texts if text)
