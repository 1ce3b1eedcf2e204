"""The columns of the embedded tables, from values and back."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any
from uuid import UUID

import msgspec

from headrace.model import TopicPartition
from headrace.store.embedded.schema import written
from headrace.store.plain_rows import PlainRows
from headrace.store.rows import EventRow, JournalMeta, Place, ReplicatedOffset, SnapshotRow

__all__ = [
    "EVENT",
    "HEAD",
    "REPLICATED",
    "SNAPSHOT",
    "event_of",
    "event_values",
    "head_of",
    "head_values",
    "plain_values",
    "replicated_of",
    "replicated_values",
    "snapshot_of",
    "snapshot_values",
    "upsert",
]

EVENT = (
    "segment", "seq_nr", "timestamp_ms", "written", "generation", "partition", "offset", "log_time_ms", "record_id",
    "tags", "payload_type", "payload", "metadata", "headers", "origin", "version",
)  # fmt: skip
HEAD = (
    "written", "expires_ms", "generation", "partition", "offset", "seq_nr", "segment_size", "delete_to",
    "append_generation", "append_offset", "is_purged", "purged_generation", "purged_offset", "held_from",
    "created_ms", "updated_ms", "expire_after", "expire_on_ms", "record_id", "origin", "properties", "metadata",
)  # fmt: skip
REPLICATED = (
    "topic",
    "partition",
    "written",
    "generation",
    "offset",
    "log_time_ms",
    "created_ms",
    "updated_ms",
    "segment_size",
)
SNAPSHOT = (
    "slot", "written", "seq_nr", "generation", "offset", "timestamp_ms", "record_id", "payload_type", "payload",
    "metadata", "origin", "version",
)  # fmt: skip

Values = tuple[Any, ...]

_encode = msgspec.msgpack.Encoder().encode
_decode_tags = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_texts = msgspec.msgpack.Decoder(dict[str, str]).decode


def upsert(table: str, key: tuple[str, ...], columns: tuple[str, ...], *, rows: int = 1) -> str:
    """Return the statement that writes rows unless what is there comes from a later place.

    A row of the same place is replaced: that is how a repair wins over an edit by hand.
    """
    values = ", ".join([f"({', '.join('?' * len(columns))})"] * rows)
    changed = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in key)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values} "  # noqa: S608 - names of our own
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed} WHERE excluded.written >= {table}.written"
    )


def event_values(row: EventRow) -> Values:
    """Return a row's columns, in the order of EVENT."""
    return (
        row.segment,
        row.seq_nr,
        row.timestamp_ms,
        written(Place(row.generation, row.offset)),
        row.generation,
        row.partition,
        row.offset,
        row.log_time_ms,
        row.record_id.bytes,
        _encode(row.tags) if row.tags else None,
        row.payload_type,
        row.payload,
        row.metadata,
        _encode(row.headers) if row.headers else None,
        row.origin,
        row.version,
    )


def plain_values(rows: PlainRows) -> Iterable[Values]:
    """Return the columns of plain rows, as `event_values` does, from column to column."""
    first, absent = written(Place(rows.generation, 0)), repeat(None)
    return zip(
        rows.segments(),
        rows.seq_nrs,
        rows.timestamps_ms,
        [first + offset for offset in rows.offsets],
        repeat(rows.generation),
        repeat(rows.partition),
        rows.offsets,
        rows.log_times_ms,
        repeat(rows.record_id.bytes),
        absent,
        rows.payload_types,
        rows.payloads,
        absent,
        absent,
        repeat(rows.origin),
        repeat(rows.version),
        strict=False,
    )


def event_of(values: Values) -> EventRow:
    """Return the event row of its columns."""
    (segment, seq_nr, timestamp_ms, _, generation, partition, offset, log_time_ms, record_id,
     tags, payload_type, payload, metadata, headers, origin, version) = values  # fmt: skip
    return EventRow(
        segment=segment,
        seq_nr=seq_nr,
        generation=generation,
        partition=partition,
        offset=offset,
        log_time_ms=log_time_ms,
        timestamp_ms=timestamp_ms,
        record_id=UUID(bytes=record_id),
        tags=_decode_tags(tags) if tags else (),
        payload_type=payload_type,
        payload=payload,
        metadata=metadata,
        headers=_decode_texts(headers) if headers else {},
        origin=origin,
        version=version,
    )


def head_values(meta: JournalMeta, expires_ms: int | None) -> Values:
    """Return a head's columns, in the order of HEAD."""
    return (
        written(meta.place),
        expires_ms,
        meta.generation,
        meta.partition,
        meta.offset,
        meta.seq_nr,
        meta.segment_size,
        meta.delete_to,
        *(meta.last_append or (None, None)),
        meta.is_purged,
        *(meta.purged_at or (None, None)),
        meta.held_from,
        meta.created_ms,
        meta.updated_ms,
        meta.expire_after,
        meta.expire_on_ms,
        meta.record_id.bytes if meta.record_id else None,
        meta.origin,
        _encode(meta.properties) if meta.properties else None,
        meta.metadata,
    )


def head_of(topic: str, id_: str, values: Values) -> JournalMeta:
    """Return the head of its columns."""
    found = dict(zip(HEAD, values, strict=True))
    return JournalMeta(
        topic=topic,
        id=id_,
        last_append=_place(found.pop("append_generation"), found.pop("append_offset")),
        is_purged=bool(found.pop("is_purged")),
        purged_at=_place(found.pop("purged_generation"), found.pop("purged_offset")),
        record_id=_uuid(found.pop("record_id")),
        properties=_texts(found.pop("properties")),
        **{name: value for name, value in found.items() if name not in {"written", "expires_ms"}},
    )


def replicated_values(offset: ReplicatedOffset) -> Values:
    """Return the columns of a replicated offset, in the order of REPLICATED."""
    place = Place(offset.generation, offset.offset)
    times = (offset.log_time_ms, offset.created_ms, offset.updated_ms)
    return (*offset.at, written(place), *place, *times, offset.segment_size)


def replicated_of(values: Values) -> ReplicatedOffset:
    """Return the replicated offset of its columns."""
    topic, partition, _, generation, offset, log_time_ms, created_ms, updated_ms, segment_size = values
    return ReplicatedOffset(
        at=TopicPartition(topic, partition),
        generation=generation,
        offset=offset,
        log_time_ms=log_time_ms,
        created_ms=created_ms,
        updated_ms=updated_ms,
        segment_size=segment_size,
    )


def snapshot_values(row: SnapshotRow) -> Values:
    """Return a snapshot's columns, in the order of SNAPSHOT."""
    return (
        row.slot,
        written(Place(row.generation, row.offset)),
        row.seq_nr,
        row.generation,
        row.offset,
        row.timestamp_ms,
        row.record_id.bytes,
        row.payload_type,
        row.payload,
        row.metadata,
        row.origin,
        row.version,
    )


def snapshot_of(values: Values) -> SnapshotRow:
    """Return the snapshot of its columns."""
    found = dict(zip(SNAPSHOT, values, strict=True))
    del found["written"]
    return SnapshotRow(record_id=UUID(bytes=found.pop("record_id")), **found)


def _place(generation: int | None, offset: int | None) -> Place | None:
    return None if generation is None or offset is None else Place(generation, offset)


def _uuid(found: bytes | None) -> UUID | None:
    return UUID(bytes=found) if found else None


def _texts(found: bytes | None) -> dict[str, str]:
    return _decode_texts(found) if found else {}
