"""The columns of Cassandra's tables, from values and back. Times are read as milliseconds, not as datetimes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from cassandra.query import UNSET_VALUE
from cassandra.util import Date

from headrace.model import TopicPartition
from headrace.store.cassandra.session import Row
from headrace.store.plain_rows import PlainRows
from headrace.store.rows import (
    DEFAULT_SEGMENT_SIZE,
    EventRow,
    JournalMeta,
    Place,
    ReplicatedOffset,
    SnapshotRow,
    write_time,
)

__all__ = [
    "EVENT",
    "META",
    "POINTER",
    "SNAPSHOT",
    "event_of",
    "event_values",
    "meta_of",
    "meta_values",
    "plain_values",
    "pointer_of",
    "pointer_values",
    "selected",
    "snapshot_of",
    "snapshot_values",
    "split_payload",
]

EVENT = (
    "seq_nr", "timestamp", "generation", "partition", "offset", "log_time", "meta_record_id", "tags", "payload_type",
    "payload_txt", "payload_bin", "metadata", "headers", "origin", "version",
)  # fmt: skip
META = (
    "id", "generation", "partition", "offset", "seq_nr", "segment_size", "delete_to", "last_append", "purged",
    "purged_at", "held_from", "created", "updated", "expire_after", "expire_on", "record_id", "origin", "properties",
    "metadata",
)  # fmt: skip
POINTER = ("topic", "partition", "generation", "offset", "log_time", "created", "updated", "segment_size")
SNAPSHOT = (
    "buffer_idx", "seq_nr", "generation", "offset", "timestamp", "record_id", "payload_type", "payload_txt",
    "payload_bin", "metadata", "origin", "version",
)  # fmt: skip

_TIMES = frozenset({"timestamp", "log_time", "created", "updated", "expire_on"})
_TEXTS = frozenset({"json", "text"})
_DAY_MS = 24 * 60 * 60 * 1000
_INT = struct.Struct(">i").pack
_LONG = struct.Struct(">q").pack


def selected(columns: tuple[str, ...]) -> str:
    """Return the columns for a SELECT."""
    return ", ".join(f"toUnixTimestamp({name})" if name in _TIMES else name for name in columns)


def event_values(row: EventRow) -> tuple[Any, ...]:
    """Return a row's columns, in the order of EVENT, then its write time.

    Absent values are left unset instead of written as null: each null is a tombstone, which slows down readers.
    """
    text, binary = split_payload(row.payload_type, row.payload)
    return (
        row.seq_nr,
        row.timestamp_ms,
        row.generation,
        row.partition,
        row.offset,
        row.log_time_ms,
        row.record_id,
        list(row.tags) if row.tags else UNSET_VALUE,
        UNSET_VALUE if row.payload_type is None else row.payload_type,
        UNSET_VALUE if text is None else text,
        UNSET_VALUE if binary is None else binary,
        UNSET_VALUE if row.metadata is None else row.metadata,
        row.headers or UNSET_VALUE,
        UNSET_VALUE if row.origin is None else row.origin,
        UNSET_VALUE if row.version is None else row.version,
        write_time(Place(row.generation, row.offset)),
    )


def plain_values(rows: PlainRows) -> Iterator[list[Any]]:
    """Yield the columns of plain rows as `event_values` returns them, encoded for the wire."""
    generation, partition = _INT(rows.generation), _INT(rows.partition)
    record_id, first = rows.record_id.bytes, write_time(Place(rows.generation, 0))
    origin, version = _encoded_text(rows.origin), _encoded_text(rows.version)
    for seq_nr, timestamp_ms, offset, log_time_ms, payload_type, payload in zip(
        rows.seq_nrs,
        rows.timestamps_ms,
        rows.offsets,
        rows.log_times_ms,
        rows.payload_types,
        rows.payloads,
        strict=True,
    ):
        is_text = payload_type in _TEXTS
        yield [
            _LONG(seq_nr),
            _LONG(timestamp_ms),
            generation,
            partition,
            _LONG(offset),
            _LONG(log_time_ms),
            record_id,
            UNSET_VALUE,
            _encoded_text(payload_type),
            payload if is_text else UNSET_VALUE,
            UNSET_VALUE if is_text or payload is None else payload,
            UNSET_VALUE,
            UNSET_VALUE,
            origin,
            version,
            _LONG(first + offset),
        ]


def event_of(segment: int, values: Row) -> EventRow:
    """Return the event row of its columns."""
    (seq_nr, timestamp_ms, generation, partition, offset, log_time_ms, record_id, tags, payload_type,
     text, binary, metadata, headers, origin, version) = values  # fmt: skip
    return EventRow(
        segment=segment,
        seq_nr=seq_nr,
        generation=generation,
        partition=partition,
        offset=offset,
        log_time_ms=log_time_ms,
        timestamp_ms=timestamp_ms,
        record_id=record_id,
        tags=tuple(tags) if tags else (),
        payload_type=payload_type,
        payload=binary if text is None else text.encode(),
        metadata=metadata,
        headers=dict(headers) if headers else {},
        origin=origin,
        version=version,
    )


def meta_values(meta: JournalMeta) -> tuple[Any, ...]:
    """Return a head's columns, in the order of META, then created_date; absent ones as null, to clear what was."""
    return (
        meta.id,
        meta.generation,
        meta.partition,
        meta.offset,
        meta.seq_nr,
        meta.segment_size,
        meta.delete_to or None,
        meta.last_append,
        meta.is_purged,
        meta.purged_at,
        meta.held_from,
        meta.created_ms,
        meta.updated_ms,
        meta.expire_after,
        meta.expire_on_ms,
        meta.record_id,
        meta.origin,
        meta.properties or None,
        meta.metadata,
        None if meta.created_ms is None else Date(meta.created_ms // _DAY_MS),
    )


def meta_of(topic: str, values: Row) -> JournalMeta:
    """Return the head of its columns."""
    (id_, generation, partition, offset, seq_nr, segment_size, delete_to, last_append, purged, purged_at, held_from,
     created_ms, updated_ms, expire_after, expire_on_ms, record_id, origin, properties, metadata) = values  # fmt: skip
    return JournalMeta(
        topic=topic,
        id=id_,
        generation=generation,
        partition=partition,
        offset=offset,
        seq_nr=seq_nr,
        segment_size=segment_size,
        delete_to=delete_to or 0,
        last_append=_place(last_append),
        is_purged=bool(purged),
        purged_at=_place(purged_at),
        held_from=held_from,
        created_ms=created_ms,
        updated_ms=updated_ms,
        expire_after=expire_after,
        expire_on_ms=expire_on_ms,
        record_id=record_id,
        origin=origin,
        properties=dict(properties) if properties else {},
        metadata=metadata,
    )


def pointer_values(offset: ReplicatedOffset) -> tuple[Any, ...]:
    """Return the columns of a replicated offset, in the order of POINTER, then its write time."""
    place = Place(offset.generation, offset.offset)
    times = (offset.log_time_ms, offset.created_ms, offset.updated_ms)
    return (*offset.at, *place, *times, offset.segment_size, write_time(place))


def pointer_of(values: Row) -> ReplicatedOffset:
    """Return the replicated offset of its columns."""
    topic, partition, generation, offset, log_time_ms, created_ms, updated_ms, segment_size = values
    return ReplicatedOffset(
        at=TopicPartition(topic, partition),
        generation=generation,
        offset=offset,
        log_time_ms=log_time_ms,
        created_ms=created_ms,
        updated_ms=updated_ms,
        segment_size=segment_size or DEFAULT_SEGMENT_SIZE,
    )


def snapshot_values(row: SnapshotRow) -> tuple[Any, ...]:
    """Return a snapshot's columns, in the order of SNAPSHOT, then its write time."""
    text, binary = split_payload(row.payload_type, row.payload)
    return (
        row.slot,
        row.seq_nr,
        row.generation,
        row.offset,
        row.timestamp_ms,
        row.record_id,
        row.payload_type,
        text,
        binary,
        row.metadata,
        row.origin,
        row.version,
        write_time(Place(row.generation, row.offset)),
    )


def snapshot_of(values: Row) -> SnapshotRow:
    """Return the snapshot of its columns."""
    slot, seq_nr, generation, offset, timestamp_ms, record_id, payload_type, text, binary, *rest = values
    metadata, origin, version = rest
    return SnapshotRow(
        slot=slot,
        seq_nr=seq_nr,
        generation=generation,
        offset=offset,
        timestamp_ms=timestamp_ms,
        record_id=record_id,
        payload_type=payload_type,
        payload=binary if text is None else text.encode(),
        metadata=metadata,
        origin=origin,
        version=version,
    )


def split_payload(payload_type: str | None, payload: bytes | None) -> tuple[str | None, bytes | None]:
    """Return the payload as text or as bytes; text that is not UTF-8 is kept as bytes."""
    if payload is None or payload_type not in _TEXTS:
        return None, payload
    try:
        return payload.decode(), None
    except UnicodeDecodeError:
        return None, payload


def _encoded_text(text: str | None) -> Any:  # noqa: ANN401 - bytes, or the driver's mark of what is absent
    return UNSET_VALUE if text is None else text.encode()


def _place(found: tuple[int, int] | None) -> Place | None:
    return None if found is None else Place(*found)
