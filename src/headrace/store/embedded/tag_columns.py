"""The embedded tables of events by tag, and how values become their columns.

`place_in_order` is a row's TagTime as 16 bytes that sort as it does. A row that was deleted stays as a mark with the
place of its deletion, so that a late writer loses.
"""

from __future__ import annotations

import msgspec

from headrace.store.embedded.columns import Values
from headrace.store.embedded.schema import BY_HAND, written
from headrace.store.rows import Place
from headrace.store.tag_rows import TagNumber, TagRow, TagTime, tag_time_of, timeuuid

__all__ = ["NUMBER", "ROW", "TABLES", "number_of", "number_values", "order_of", "row_of", "row_values", "upsert_row"]

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
    """Return the statement that writes a row of a view; one that is redacted stays so, unless it was deleted."""
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
    """Return bytes that sort as the TagTimes do."""
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
    """Do the reverse."""
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
    """Do the reverse; `values` are those of NUMBER and `first_number`."""
    topic, pid, tag, _, seq_nr, number, generation, offset, _, first = values
    return TagNumber(
        topic=topic, pid=pid, tag=tag, seq_nr=seq_nr, number=number, generation=generation, offset=offset,
        first=first or 1,
    )  # fmt: skip


def _time_of(order: bytes) -> TagTime:
    ticks, partition, offset = (int.from_bytes(part) for part in (order[:8], order[8:10], order[10:]))
    return TagTime(*divmod(ticks, 10_000), partition, offset)
