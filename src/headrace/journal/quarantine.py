"""Journals that are held because a record of theirs can't be decoded: the side table, and the verdicts that end it.

The side table is a topic of its own in the store's tables, named so that no log can have it: a row for each record
held, whole, and a head for each journal held. It needs no other table, and converges as all else does.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import BadArgument
from headrace.journal.actions import Poison, Verdict
from headrace.journal.folding import Entry, record_id_of
from headrace.journal.headers import encode_action
from headrace.journal.partition_batch import entry_of
from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import Headers, NewRecord, Position, Record
from headrace.store import DEFAULT_SEGMENT_SIZE, EventRow, JournalMeta, Place, RowDeletion, Store

__all__ = ["Held", "held_entries", "held_journals", "hold", "let_go", "pass_verdict"]

_SUFFIX = "#held"
_ONE_SEGMENT = 1 << 62  # numbers are offsets here: all rows of a journal are in one segment


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A record as it was, with what the partition was like there."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    segment_size: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


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


async def hold(store: Store, topic: str, id_: str, entries: Sequence[Entry]) -> None:
    """Keep the records that wait. To be done before the journal's head says that it is held."""
    await store.writer.write_rows(_side(topic), id_, [_row(entry) for entry in entries])
    poison = next((entry for entry in entries if isinstance(entry.action, Poison)), None)
    if poison is not None:
        await store.writer.write_meta(_head(topic, poison))


async def let_go(store: Store, topic: str, id_: str, *, at: Place, partition: int) -> None:
    """Forget what waited, at the place of the verdict."""
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
    """Return what waits, in the order of the log."""
    pages = store.reader.rows(_side(topic), id_, segment_size=_ONE_SEGMENT, first=1, last=_ONE_SEGMENT - 1)
    return [_entry(topic, row) async for page in pages for row in page]


async def held_journals(store: Store, topic: str) -> AsyncIterator[Held]:
    """Yield the journals of a topic that are held."""
    async for page in store.reader.metas(_side(topic)):
        for head in page:
            if not head.is_purged and head.held_from is not None:
                entries = await held_entries(store, topic, head.id)
                since_ms, reason = head.created_ms or 0, head.metadata or ""
                yield Held(topic, head.id, head.partition, head.held_from, since_ms, reason, len(entries))


async def pass_verdict(log: Log, store: Store, topic: str, id_: str, *, skip: bool) -> Position:
    """Write a verdict into the journal's partition; replication carries it out. Raises BadArgument if none is due."""
    meta = await store.reader.meta(topic, id_)
    if meta is None or meta.held_from is None:
        raise BadArgument("id", id_, f"topic {topic!r} has no journal of that id that is held")
    verdict = Verdict(id=uuid.uuid4().hex, held_from=meta.held_from, is_skip=skip, origin="quarantine")
    route = await Topology(log, store.settings, topic).route(id_)
    record = NewRecord(topic, id_.encode(), None, encode_action(verdict), partition=route.at.partition)
    (position,) = await log.append([record])
    return position


def _side(topic: str) -> str:
    return f"{topic}{_SUFFIX}"


def _row(entry: Entry) -> EventRow:
    record = entry.record
    if record is None:
        raise AssertionError("a record that is held is kept whole")
    kept = _Kept(record.key, record.value, record.headers, entry.segment_size)
    return EventRow(
        segment=0,
        seq_nr=entry.offset + 1,
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


def _head(topic: str, poison: Entry) -> JournalMeta:
    reason = poison.action.reason if isinstance(poison.action, Poison) else ""
    return JournalMeta(
        topic=_side(topic),
        id=poison.id,
        generation=poison.generation,
        partition=poison.partition,
        offset=poison.offset,
        seq_nr=poison.offset + 1,
        segment_size=DEFAULT_SEGMENT_SIZE,
        held_from=poison.offset,
        created_ms=poison.timestamp_ms,
        record_id=record_id_of(topic, poison.generation, poison.partition, poison.offset),
        metadata=reason,
    )
