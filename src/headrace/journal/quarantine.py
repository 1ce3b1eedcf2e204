"""Quarantine: the journals that are held because a record can't be decoded or stored, and the verdicts on them.

Held records are copied to a side table. That is a topic of its own in the store's tables, with a name that no log can
have: a row for each held record, whole, and a meta for each held journal. So it needs no further table, and replays
converge as they do everywhere else.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import BadArgument
from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import Headers, NewRecord, Position, Record
from headrace.protocol import Entry, Poison, Verdict, encode_action, entry_of, record_id_of
from headrace.store import DEFAULT_SEGMENT_SIZE, EventRow, JournalMeta, Place, RowDeletion, Store, why_id_is_refused

__all__ = [
    "Held",
    "held_entries",
    "held_journals",
    "hold",
    "hold_unstorable",
    "let_go",
    "pass_verdict",
    "stand_in_for",
]

_SUFFIX = "#held"
_SHOWN = 60
_ONE_SEGMENT = 1 << 62  # row numbers are places here, so all rows of a journal are in one segment
_OFFSET_BITS = 46


class _HeldRecord(msgspec.Struct, frozen=True, array_like=True):
    """A held record, with the segment size that the topic had there."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    segment_size: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_HeldRecord).decode


@dataclass(frozen=True, slots=True)
class Held:
    """A journal that is held."""

    topic: str
    id: str
    partition: int
    offset: int
    since_ms: int
    reason: str
    records: int


async def hold(store: Store, topic: str, id_: str, entries: Sequence[Entry], *, held_from: Place) -> None:
    """Store the held records. This comes before the journal's meta says that it is held from that place.

    The side table's meta is about the record at `held_from` only. If a later record can't be decoded either, it gets
    its turn after a verdict on the first.
    """
    await store.writer.write_rows(_side(topic), id_, [_row(entry) for entry in entries])
    first = next((entry for entry in entries if entry.place == held_from), None)
    if first is not None:
        reason = first.action.reason if isinstance(first.action, Poison) else ""
        await store.writer.write_meta(_head(topic, id_, first, reason))


async def hold_unstorable(store: Store, topic: str, id_: str, entries: Sequence[Entry], reason: str) -> str:
    """Store the records of a journal whose id can't be stored; return the id they are stored under."""
    stand_in = stand_in_for(id_)
    await store.writer.write_rows(_side(topic), stand_in, [_row(entry) for entry in entries])
    if await store.reader.meta(_side(topic), stand_in) is None:
        await store.writer.write_meta(_head(topic, stand_in, entries[0], reason))
    return stand_in


def stand_in_for(id_: str) -> str:
    """Return the id that the side table uses for a journal whose own id can't be stored."""
    encoded = id_.encode(errors="surrogateescape")
    return f"{id_[:_SHOWN]}…#{hashlib.sha256(encoded).hexdigest()}"


async def let_go(
    store: Store, topic: str, id_: str, *, at: Place, partition: int, held_from: Place | None = None
) -> None:
    """Remove the held records at the place of the verdict: all, or those before `held_from`, which stays held."""
    if held_from is not None:
        await store.writer.delete_rows(_side(topic), id_, [RowDeletion(0, _number(held_from) - 1)], at=at)
        return
    await store.writer.delete_rows(_side(topic), id_, [RowDeletion(0, None)], at=at)
    marker = JournalMeta(
        topic=_side(topic),
        id=id_,
        generation=at.generation,
        partition=partition,
        offset=at.offset,
        seq_nr=0,
        segment_size=DEFAULT_SEGMENT_SIZE,
        is_purged=True,
        purged_at=at,
    )
    await store.writer.write_meta(marker)


async def held_entries(store: Store, topic: str, id_: str) -> list[Entry]:
    """Return the held entries in the order of the log."""
    pages = store.reader.rows(_side(topic), id_, segment_size=_ONE_SEGMENT, first=1, last=_ONE_SEGMENT - 1)
    return [_entry(topic, row) async for page in pages for row in page]


async def held_journals(store: Store, topic: str) -> AsyncIterator[Held]:
    """Yield the journals of a topic that are held."""
    async for page in store.reader.metas(_side(topic)):
        for head in page:
            if not head.is_purged and head.held_from is not None:
                first = Place(head.generation, head.held_from)
                held = [each for each in await held_entries(store, topic, head.id) if each.place >= first]
                since_ms, reason = head.created_ms or 0, head.metadata or ""
                yield Held(topic, head.id, head.partition, head.held_from, since_ms, reason, len(held))


async def pass_verdict(
    log: Log, store: Store, topic: str, id_: str, *, skip: bool, offset: int | None = None
) -> Position:
    """Write a verdict into the journal's partition; replication carries it out.

    `offset` is that of the record that can't be decoded. Raises BadArgument if the journal is not held from there.
    """
    meta, held_from = await _held_from(store, topic, id_)
    # While held entries are being applied, the state lies past the record and does not show its generation.
    generation = meta.generation if meta.offset == held_from else None
    if offset is not None and offset != held_from:
        raise BadArgument("offset", offset, f"journal {id_!r} is held from offset {held_from}; decide about that first")
    verdict = Verdict(
        id=uuid.uuid4().hex, held_from=held_from, is_skip=skip, generation=generation, origin="quarantine"
    )
    topology = Topology(log, store.settings, topic, lease_s=0.0)  # no lease: the route is checked after the write
    while True:
        routed = await topology.find_route(id_)
        record = NewRecord(topic, id_.encode(), None, encode_action(verdict), partition=routed.route.at.partition)
        (position,) = await log.append([record])
        if not await topology.is_stray(id_, routed, position.offset):
            return position


async def _held_from(store: Store, topic: str, id_: str) -> tuple[JournalMeta, int]:
    """Return the state of a journal that is held, and the offset of the record that it is held from."""
    meta = await store.reader.meta(topic, id_) if why_id_is_refused(id_) is None else None
    if meta is not None and meta.held_from is not None:
        return meta, meta.held_from
    aside = await store.reader.meta(_side(topic), id_) if meta is None else None
    if aside is not None and not aside.is_purged:
        raise BadArgument("id", id_, f"{aside.metadata}: its records can only be copied, under another id")
    raise BadArgument("id", id_, f"topic {topic!r} has no journal of that id that is held")


def _side(topic: str) -> str:
    return f"{topic}{_SUFFIX}"


def _number(place: Place) -> int:
    """Return the row number of a held record, in the order of places: a journal that moved has lower offsets."""
    return (place.generation << _OFFSET_BITS) + place.offset + 1


def _row(entry: Entry) -> EventRow:
    record = entry.record
    if record is None:
        raise AssertionError("a record that is held is kept whole")
    kept = _HeldRecord(record.key, record.value, record.headers, entry.segment_size)
    return EventRow(
        segment=0,
        seq_nr=_number(entry.place),
        generation=entry.generation,
        partition=entry.partition,
        offset=entry.offset,
        log_time_ms=entry.log_time_ms,
        timestamp_ms=entry.timestamp_ms,
        record_id=record_id_of(entry.topic, entry.generation, entry.partition, entry.offset),
        payload_type="binary",
        payload=_encode(kept),
    )


def _entry(topic: str, row: EventRow) -> Entry:
    kept = _decode(row.payload or b"")
    record = Record(topic, row.partition, row.offset, row.timestamp_ms, kept.key, kept.value, kept.headers)
    entry = entry_of(record, row.generation, log_time_ms=row.log_time_ms, segment_size=kept.segment_size)
    if entry is None:
        raise AssertionError("only records of a journal are held")
    return entry


def _head(topic: str, id_: str, first: Entry, reason: str) -> JournalMeta:
    return JournalMeta(
        topic=_side(topic),
        id=id_,
        generation=first.generation,
        partition=first.partition,
        offset=first.offset,
        seq_nr=first.offset + 1,
        segment_size=DEFAULT_SEGMENT_SIZE,
        held_from=first.offset,
        created_ms=first.timestamp_ms,
        record_id=record_id_of(topic, first.generation, first.partition, first.offset),
        metadata=reason,
    )
