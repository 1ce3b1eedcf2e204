"""Cassandra's tables of events by tag, and how values become their columns."""

from __future__ import annotations

from typing import Any

from cassandra.query import UNSET_VALUE

from headrace.store.cassandra.columns import split_payload
from headrace.store.cassandra.session import Row
from headrace.store.rows import Place, write_time
from headrace.store.tag_rows import TagNumber, TagRow

__all__ = ["NUMBER", "REDACTED", "ROW", "TABLES", "number_of", "number_values", "row_of", "row_values"]

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
    """Do the reverse; `values` are those of ROW and `redacted`. A redacted row says nothing, whoever wrote it again."""
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
    """Do the reverse; `values` are those of NUMBER and `first_number`."""
    topic, pid, tag, seq_nr, number, generation, offset, first = values
    return TagNumber(
        topic=topic, pid=pid, tag=tag, seq_nr=seq_nr, number=number, generation=generation, offset=offset,
        first=first or 1,
    )  # fmt: skip
