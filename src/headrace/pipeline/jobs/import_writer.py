"""The task of an import: rows of another system become appends to the journals of one partition, each exactly once.

An append expects the number before its own. So it counts once, whoever writes it again: a task that Spark repeats, a
second import, or a task that was given up and still runs. What a journal has already is compared with the rows and not
written. The appends of many journals are written in one go, but one of each journal: if another writer was faster with
a number, nothing follows on its event. Then the log is folded up to the last append, which tells those that count
from those that another writer made void.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

import msgspec

from headrace.errors import (
    BadArgument,
    HeadraceError,
    OffsetOutOfRange,
    OperationFailed,
    ReadAgain,
    TargetDiffers,
    TopicShared,
)
from headrace.journal import HeadCache, JournalReader, NewAppend, Topology, WatermarkBarrier, Windows
from headrace.log import Log
from headrace.model import Event, NewRecord, Record, StoredEvent, TopicPartition
from headrace.protocol import (
    MAX_METADATA_BYTES,
    MAX_VALUE_BYTES,
    AppendValue,
    Effect,
    Encoded,
    check_events,
    check_id,
    check_size,
    check_timestamp,
    checked_json,
    decode_payload,
    encode_value,
    entry_of,
    pointer_of,
    step,
)
from headrace.runtime import crash_point
from headrace.store import JournalMeta, Place, Store

__all__ = ["IMPORT_ORIGIN", "ImportCounts", "ImportedRow", "PartitionImport"]

IMPORT_ORIGIN = "headrace-import"
_AT_ONCE = 32
_IN_VAIN_AT_MOST = 20
_EVENTS_AT_ONCE = 500
_BYTES_AT_ONCE = 1024 * 1024
_KNOWN_AT_MOST = 50_000
_MOST_SHOWN = 60  # characters of an id in a message
_READ_TIMEOUT_S = 70.0


class ImportedRow(NamedTuple):
    """An event of another system. `first` is the lowest number of its journal in the import; `metadata` is JSON."""

    id: str
    seq_nr: int
    first: int
    payload_type: str | None = None
    payload: bytes | None = None
    tags: tuple[str, ...] = ()
    metadata: bytes | None = None
    timestamp_ms: int | None = None


class ImportCounts(NamedTuple):
    """How many rows became events now, and how many the journals had already."""

    imported: int = 0
    present: int = 0


@dataclass(slots=True)
class _Known:
    """A journal's state as far as the log was folded. `since` is the log's end before the import first saw it."""

    at: TopicPartition
    meta: JournalMeta | None
    folded_to: int
    since: Place


class PartitionImport:
    """Imports rows into the journals of one topic. The rows of a journal must come in the order of their numbers."""

    def __init__(self, log: Log, store: Store, topology: Topology) -> None:
        self._log = log
        self._topic = topology.topic
        self._topology = topology
        self._cache = HeadCache(log, store.reader)
        self._reader = JournalReader(
            self._topology,
            store.reader,
            Windows(log, self._cache, timeout_s=_READ_TIMEOUT_S),
            WatermarkBarrier(log),
            self._cache,
        )
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._folded: dict[TopicPartition, int] = {}
        self._generation = -1

    async def close(self) -> None:
        """Stop following the log."""
        await self._cache.close()

    async def take(self, rows: Sequence[ImportedRow]) -> ImportCounts:
        """Append the rows that the journals lack, and compare the others.

        Raises TargetDiffers if a journal has something else under a row's number, BadArgument for a row that no journal
        can hold, TopicShared, TopicClaimed, JournalHeld.
        """
        if await self._topology.is_shared():
            raise TopicShared(self._topic, "importing")
        waiting: dict[str, deque[ImportedRow]] = {}
        for row in rows:
            _append_of((row,))
            waiting.setdefault(row.id, deque()).append(row)
        imported = present = in_vain = 0
        while waiting:
            await self._learn(waiting)
            found = await self._compare(self._take_present(waiting))
            wave = {id_: _together(some) for id_, some in waiting.items() if some}
            landed = await self._write(wave)
            for id_ in landed:
                for _ in wave[id_]:
                    waiting[id_].popleft()
            for id_ in wave.keys() - landed:  # another writer was faster, or the topic grew: look at it again
                self._known.pop(id_, None)
            waiting = {id_: some for id_, some in waiting.items() if some}
            imported += sum(len(wave[id_]) for id_ in landed)
            present += found
            in_vain = 0 if landed or found else in_vain + 1
            if in_vain > _IN_VAIN_AT_MOST:
                raise ReadAgain(next(iter(waiting)), "other writers kept overtaking the import")
        self._trim()
        return ImportCounts(imported, present)

    async def _learn(self, ids: Iterable[str]) -> None:
        """Find out what the journals have, where that is not known. Raises JournalHeld."""
        layout = await self._topology.grown()
        if layout.generation != self._generation:
            self._forget_all(layout.generation)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(id_: str) -> None:
            async with limit:
                view = await self._reader.view(id_)
            end = view.barrier.offset
            since = Place(view.barrier.generation, end + 1)
            self._known[id_] = _Known(layout.route(id_), view.meta, end, since)

        await asyncio.gather(*(one(id_) for id_ in ids if id_ not in self._known))

    def _take_present(self, waiting: Mapping[str, deque[ImportedRow]]) -> list[ImportedRow]:
        """Take away the rows that the journals should have already. Raises TargetDiffers if the others can't follow."""
        present = []
        for id_, rows in waiting.items():
            pointer = pointer_of(self._known[id_].meta)
            while rows and rows[0].seq_nr <= pointer:
                present.append(rows.popleft())
            if rows and rows[0].seq_nr != pointer + 1 and (pointer or rows[0].seq_nr != rows[0].first):
                raise self._does_not_follow(rows[0], pointer)
        return present

    def _does_not_follow(self, row: ImportedRow, pointer: int) -> HeadraceError:
        if pointer:
            return TargetDiffers(self._topic, row.id, pointer, f"the rows to import go on with {row.seq_nr}")
        reason = "its journal was purged meanwhile; run the import again to begin the journal again"
        return OperationFailed(f"importing event {row.seq_nr} of {row.id!r}", reason)

    async def _compare(self, rows: Sequence[ImportedRow]) -> int:
        """Return how many rows the journals have. Raises TargetDiffers."""
        by_id: dict[str, list[ImportedRow]] = {}
        for row in rows:
            by_id.setdefault(row.id, []).append(row)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(id_: str, some: Sequence[ImportedRow]) -> None:
            async with limit:
                pages = self._reader.pages(id_, some[0].seq_nr, last=some[-1].seq_nr)
                events = {event.seq_nr: event async for page in pages for event in page}
                deleted_to = await self._deleted_to(id_) if len(events) < len(some) else 0
            for row in some:
                self._check_same(row, events, deleted_to)

        await asyncio.gather(*(one(id_, some) for id_, some in by_id.items()))
        return len(rows)

    async def _deleted_to(self, id_: str) -> int:
        """Return up to which number events are deleted now. Raises ReadAgain if the journal was begun again."""
        meta, known = (await self._reader.view(id_)).meta, self._known[id_].meta
        if meta is None or known is None or meta.record_id != known.record_id:
            raise ReadAgain(id_, "it changed while it was compared with the rows to import")
        return meta.delete_to

    def _check_same(self, row: ImportedRow, events: Mapping[int, StoredEvent], deleted_to: int) -> None:
        """Raise TargetDiffers unless the journal has the row, or had it and has deleted it since."""
        event = events.get(row.seq_nr)
        if event is None:
            if row.seq_nr > deleted_to:
                later = min((n for n in events if n > row.seq_nr), default=pointer_of(self._known[row.id].meta))
                raise TargetDiffers(self._topic, row.id, later, f"not event {row.seq_nr} of the rows to import")
            return
        payload = decode_payload(row.payload_type, row.payload)
        metadata = event.metadata if row.metadata is None else msgspec.json.decode(row.metadata)
        has_same = _is_same(event.payload, payload) and _is_same(event.metadata, metadata)
        if not has_same or event.tags != row.tags:
            raise TargetDiffers(self._topic, row.id, row.seq_nr, "the rows to import have another event there")

    async def _write(self, wave: Mapping[str, Sequence[ImportedRow]]) -> set[str]:
        """Write one append for each journal, in one go; return the journals whose append counts."""
        if not wave:
            return set()
        routes = {id_: await self._topology.find_route(id_) for id_ in wave}
        self._topology.check_unclaimed("importing")
        if any(routed.route.generation != self._generation for routed in routes.values()):
            self._forget_all(-1)  # the topic grew since the journals were looked at
            return set()
        records = [self._record(rows, routes[id_].route.at) for id_, rows in wave.items()]
        positions = dict(zip(wave, await self._log.append(records), strict=True))
        crash_point("import.written")
        landed = await self._fold({(at.partition, at.offset): id_ for id_, at in positions.items()})
        strays = {id_ for id_, at in positions.items() if await self._topology.is_stray(id_, routes[id_], at.offset)}
        if strays:
            self._forget_all(-1)
        return landed - strays

    def _record(self, rows: Sequence[ImportedRow], at: TopicPartition) -> NewRecord:
        known = self._known[rows[0].id]
        expected, append_id = pointer_of(known.meta), uuid4().hex
        record = _append_of(rows).record(at, rows[0].id, expected=expected, append_id=append_id, since=known.since)
        return msgspec.structs.replace(record, timestamp_ms=rows[0].timestamp_ms)

    async def _fold(self, ours: Mapping[tuple[int, int], str]) -> set[str]:
        """Fold the log up to our last record into all known states; return the journals whose append counts.

        The log was folded without a hole into every known state since it became known, so only the rest is read. If
        the store has that rest, and the log does not any more, the journals are looked at again.
        """
        landed: set[str] = set()
        try:
            for partition in sorted({partition for partition, _ in ours}):
                end = max(offset for where, offset in ours if where == partition) + 1
                landed |= await self._fold_partition(TopicPartition(self._topic, partition), end, ours)
        except OffsetOutOfRange:
            self._forget_all(self._generation)
            return set()
        return landed

    async def _fold_partition(self, at: TopicPartition, end: int, ours: Mapping[tuple[int, int], str]) -> set[str]:
        landed: set[str] = set()
        start = self._folded.get(at)
        if start is None:
            start = min(known.folded_to for known in self._known.values() if known.at == at) + 1
        async for batch in self._log.read(at, start, end, headers_only=True, timeout_s=_READ_TIMEOUT_S):
            for record in batch.records:
                id_ = ours.get((at.partition, record.offset))
                if record.offset < end and self._step(record) is Effect.APPENDED and id_ is not None:
                    landed.add(id_)
        self._folded[at] = end
        return landed

    def _step(self, record: Record) -> Effect:
        """Apply a record to the state of its journal, if that is known; return what the record did."""
        known = self._known.get((record.key or b"").decode(errors="surrogateescape"))
        if known is None or record.offset <= known.folded_to:
            return Effect.NOTHING
        entry = entry_of(record, self._generation)
        if entry is None:
            return Effect.NOTHING
        done = step(known.meta, entry)
        known.meta = done.meta
        return done.effect

    def _forget_all(self, generation: int) -> None:
        self._known.clear()
        self._folded.clear()
        self._generation = generation

    def _trim(self) -> None:
        while len(self._known) > _KNOWN_AT_MOST:
            self._known.popitem(last=False)


def _is_same(value: object, other: object) -> bool:
    """Return True if two payloads are the same JSON, text or bytes: Python takes 1, 1.0 and True for equal."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_is_same(value[name], other[name]) for name in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    return type(value) is type(other) and value == other


def _together(rows: Iterable[ImportedRow]) -> list[ImportedRow]:
    """Return the first rows of a journal that have the time and the metadata of the first: they make one append."""
    some: list[ImportedRow] = []
    size_bytes = 0
    for row in rows:
        size_bytes += len(row.payload or b"")
        is_alike = not some or (row.timestamp_ms, row.metadata) == (some[0].timestamp_ms, some[0].metadata)
        is_next = not some or row.seq_nr == some[-1].seq_nr + 1
        if some and not (is_alike and is_next and len(some) < _EVENTS_AT_ONCE and size_bytes < _BYTES_AT_ONCE):
            break
        some.append(row)
    return some


def _append_of(rows: Sequence[ImportedRow]) -> NewAppend:
    """Return rows of one journal as one append. Raises BadArgument, which names the row."""
    kind, value = encode_value(AppendValue(tuple(map(_encoded, rows))))
    return NewAppend(
        first=rows[0].seq_nr,
        last=rows[-1].seq_nr,
        payload_format=kind,
        value=value,
        metadata=rows[0].metadata,
        origin=IMPORT_ORIGIN,
    )


def _encoded(row: ImportedRow) -> Encoded:
    try:
        check_id(row.id)
        (event,) = check_events([Event(row.seq_nr, None, row.tags)])
        _check_time(row.timestamp_ms)
        _check_payload("payload", row.payload_type, row.payload)
        _check_payload("metadata", "json", row.metadata)
        check_size("payload", len(row.payload or b""), MAX_VALUE_BYTES - MAX_METADATA_BYTES)
        check_size("metadata", len(row.metadata or b""), MAX_METADATA_BYTES)
    except BadArgument as error:
        shown = repr(row.id)[:_MOST_SHOWN]  # one that is too long is wrong for that
        of_event = f" of event {row.seq_nr}"  # errors about tags have it already
        name = f"{error.name.removesuffix(of_event)}{of_event} of {shown}"
        raise BadArgument(name, error.value, error.rule) from error
    kind = None if row.payload is None else row.payload_type
    return Encoded(event.seq_nr, event.tags, kind, row.payload)


def _check_time(timestamp_ms: int | None) -> None:
    if timestamp_ms == 0:
        raise BadArgument("timestamp", 0, "a log's times begin 1 ms after 1970")
    if timestamp_ms is not None:
        check_timestamp("timestamp", timestamp_ms)


def _check_payload(name: str, payload_type: str | None, payload: bytes | None) -> None:
    """Raise BadArgument if a reader could not decode the payload, or the metadata."""
    if payload is None:
        return
    if payload_type not in ("json", "text", "binary"):
        raise BadArgument(name, payload_type, "its type is not json, text or binary")
    try:
        if payload_type == "json":
            msgspec.json.decode(checked_json(payload))
        elif payload_type == "text":
            payload.decode()
    except ValueError as error:
        raise BadArgument(name, payload_type, f"its bytes are not that: {error}") from error
