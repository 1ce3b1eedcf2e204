"""Replication of one batch of a partition into the store, and the port of the views that are written with it.

The pipeline calls this inside its tasks; nothing here loops.

The order of the writes makes a crash at any step harmless. Views of the events come first. Then, for each key: new
rows, its state, its deletions, and everything up to a purge before anything after it. The partition's replicated offset
comes last.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.errors import ReadAgain
from headrace.journal.kept_heads import KeptHeads
from headrace.journal.metrics import REPLICATED_ROWS, STRAY_RECORDS, VOID_ACTIONS
from headrace.journal.quarantine import held_entries, hold, hold_unstorable, let_go
from headrace.log import Log
from headrace.model import Record, RecordColumns, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import (
    ColumnBatch,
    Entry,
    KeyFold,
    KeyWrites,
    Layout,
    Mark,
    PartitionBatch,
    Poison,
    RunFold,
    Verdict,
    column_batch,
    decode_action,
    fold_key,
    fold_run,
    held_place,
)
from headrace.runtime import crash_point
from headrace.store import JournalMeta, JournalWrite, Place, ReplicatedOffset, Store, StoreWriter, why_id_is_refused

__all__ = ["Replicated", "Views", "check_no_hole", "replicate_batch", "replicated_up_to"]


class Views(Protocol):
    """Views that are written before the journals of a batch, so that a journal's state implies its views."""

    async def log_time_ms(self, layout: Layout, start: ReplicatedOffset) -> int:
        """Return the log time to go on from after `start`: its own, or a later one if views need that."""
        ...

    async def last_offset(self, start: ReplicatedOffset) -> int | None:
        """Return the last offset that may be applied now; None means any. It is called after `log_time_ms`."""
        ...

    async def write(self, at: TopicPartition, folds: Mapping[str, KeyFold], *, up_to: int) -> None:
        """Write the views of a batch that ends at offset `up_to`.

        The same records may come again, in other batches, and from two processes at once.
        """
        ...


_KEYS_AT_ONCE = 64
MAX_OFFSET = (1 << 62) - 1

_logger = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replicated:
    """The result of a batch."""

    offset: int
    rows: int
    keys: int
    void: int
    skipped: int
    quarantined: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()


async def replicate_batch(
    store: Store,
    layout: Layout,
    at: TopicPartition,
    records: Sequence[Record] | RecordColumns,
    *,
    up_to: int,
    views: Views | None = None,
    heads: KeptHeads | None = None,
) -> Replicated:
    """Apply records to the store, then store that the partition is replicated up to offset `up_to` (inclusive).

    `views` get the events that count before any journal is written. `heads` keeps heads from batch to batch.

    Records that are replicated already change nothing. Batches may overlap, be cut anywhere, be repeated, and be
    applied by two processes at once. Records behind a boundary wait until all old partitions have reached theirs, and
    until the layout has the boundary; views may have to wait too. In these cases the returned offset is below `up_to`,
    and the caller gives the rest again.
    """
    columns = records if isinstance(records, RecordColumns) else RecordColumns.of(at, records)
    start = await _start(store, layout, at)
    if start.generation > layout.generation:
        return Replicated(start.offset, 0, 0, 0, 0)
    if views is not None:
        start = msgspec.structs.replace(start, log_time_ms=await views.log_time_ms(layout, start))
    up_to = await _allowed(store, layout, at, start, views, up_to)
    up_to, run_batch = _known_batch(layout, start, columns, up_to)
    batch = run_batch.general
    _leave_unusual(layout, run_batch)
    strays = _drop_strays(layout, at, batch)
    aside = await _set_aside(store, at.topic, batch)
    kept = heads.after(at, _place_of(start)) if heads is not None else {}
    folds = await _fold_all(store, run_batch, _place_of(start), kept)
    if views is not None:
        await views.write(at, folds.general, up_to=up_to)
        crash_point("replicate.after-views")
    await _write_all(store, at.topic, folds)
    crash_point("replicate.before-offset")
    if up_to > start.offset:
        moved = _moved(start, batch, up_to)
        await store.writer.move_replicated(moved)
        if heads is not None:
            written = {id_: journal.meta for id_, journal in folds.additions().items()}
            heads.keep(at, _place_of(start), _place_of(moved), written, gone=batch.by_id.keys() - written.keys())
    crash_point("replicate.after-offset")
    done = _count(at.topic, folds, max(up_to, start.offset), batch.skipped + len(strays))
    return dataclasses.replace(done, strays=strays, quarantined=(*done.quarantined, *aside))


async def replicated_up_to(store: Store, layout: Layout, at: TopicPartition) -> int:
    """Return the last offset of the partition that the store has; -1 if it has none of this topic."""
    return (await _start(store, layout, at)).offset


async def check_no_hole(log: Log, at: TopicPartition, first: int, end: int) -> None:
    """Raise ReadAgain if the log holds records from `first` up to `end` (exclusive), which a batch would leave out.

    Aborted records and those of the log itself do not count. A batch leaves records out if the store was set back, or
    the topic was made again, after the reader of the batch had begun.
    """
    async for batch in log.read(at, first, end, headers_only=True):
        if batch.records:
            found = f"{at} is replicated up to offset {first - 1} only, and the batch lacks {batch.records[0].offset}"
            raise ReadAgain(at.topic, found)


async def _allowed(
    store: Store, layout: Layout, at: TopicPartition, start: ReplicatedOffset, views: Views | None, up_to: int
) -> int:
    """Return the last offset that may be applied now, as far as views and other partitions allow."""
    limit = await views.last_offset(start) if views is not None else None
    return min(up_to if limit is None else min(up_to, limit), await _limit(store, layout, at))


def _known_batch(
    layout: Layout, start: ReplicatedOffset, columns: RecordColumns, up_to: int
) -> tuple[int, ColumnBatch]:
    """Return the last offset and the records of the batch; it ends before a generation that the layout lacks."""
    batch = _batch(start, columns, up_to)
    if batch.general.generation <= layout.generation:
        return up_to, batch
    up_to = _unknown_boundary(columns, start, layout.generation)
    return up_to, _batch(start, columns, up_to)


def _moved(start: ReplicatedOffset, batch: PartitionBatch, up_to: int) -> ReplicatedOffset:
    """Return the replicated offset after a batch."""
    return msgspec.structs.replace(
        start,
        created_ms=start.created_ms or batch.log_time_ms,
        generation=batch.generation,
        offset=up_to,
        log_time_ms=batch.log_time_ms,
        updated_ms=batch.log_time_ms,
        segment_size=batch.segment_size,
    )


def _batch(start: ReplicatedOffset, columns: RecordColumns, up_to: int) -> ColumnBatch:
    return column_batch(
        columns.between(start.offset, up_to),
        start.generation,
        log_time_ms=start.log_time_ms,
        segment_size=start.segment_size,
    )


def _unknown_boundary(columns: RecordColumns, start: ReplicatedOffset, known: int) -> int:
    """Return the start of a generation that the layout does not have: the topic grew after the layout was read."""
    for record in columns.records():
        action = decode_action(record) if record.offset > start.offset else None
        if isinstance(action, Mark) and (action.generation or 0) > known:
            return record.offset
    raise AssertionError("only a Mark begins a generation")


def _leave_unusual(layout: Layout, batch: ColumnBatch) -> None:
    """Leave the runs of keys that are not stored, or not stored here, to the general fold."""
    generation, at = batch.general.generation, batch.columns.at
    for id_ in list(batch.runs):
        is_home = layout.generation == 0 or layout.is_home(id_, generation, at)
        if not is_home or why_id_is_refused(id_) is not None:
            batch.make_general(id_)


@dataclass(frozen=True, slots=True)
class _Folds:
    """The effect of a batch on all its keys."""

    runs: dict[str, RunFold] = field(default_factory=dict)
    general: dict[str, KeyFold] = field(default_factory=dict)

    def additions(self) -> dict[str, JournalWrite]:
        """Return the keys that only get rows and a head: nothing of them has an order among their other writes."""
        runs = {id_: JournalWrite(fold.meta, fold.rows) for id_, fold in self.runs.items()}
        general = {id_: _addition(fold) for id_, fold in self.general.items()}
        return runs | {id_: journal for id_, journal in general.items() if journal is not None}


def _addition(fold: KeyFold) -> JournalWrite | None:
    """Return the rows and the head of a fold; None if it does more than add them."""
    if len(fold.pieces) != 1 or fold.held or fold.reopened_at is not None:
        return None
    (piece,) = fold.pieces
    if piece.meta is None or not piece.rows or piece.gaps or piece.deletions or piece.purged_at is not None:
        return None
    return None if piece.meta.held_from is not None else JournalWrite(piece.meta, piece.rows)


async def _fold_all(store: Store, batch: ColumnBatch, start: Place, kept: Mapping[str, JournalMeta]) -> _Folds:
    """Fold all keys, on the heads that are kept or on those of the store."""
    folds, topic = _Folds(), batch.columns.at.topic
    unknown = [id_ for id_ in (*batch.runs, *batch.general.by_id) if id_ not in kept]
    metas = {**kept, **await store.reader.metas_of(topic, unknown)}
    for id_, run in list(batch.runs.items()):
        meta = metas.get(id_)
        # Views look at the folds of keys whose head lies beyond the batch's start.
        fold = fold_run(meta, run, id_, batch) if meta is None or meta.place <= start else None
        if fold is None:
            batch.make_general(id_)
        else:
            folds.runs[id_] = fold
    for id_, entries in batch.general.by_id.items():
        folds.general[id_] = await _fold(store, topic, id_, metas.get(id_), entries)
    return folds


async def _fold(store: Store, topic: str, id_: str, meta: JournalMeta | None, entries: Sequence[Entry]) -> KeyFold:
    """Fold a key's entries on its state in the store, with the held entries if there is a verdict among them."""
    is_opened = meta is not None and meta.held_from is not None and any(_is_verdict(entry) for entry in entries)
    return fold_key(meta, entries, await held_entries(store, topic, id_) if is_opened else ())


async def _write_all(store: Store, topic: str, folds: _Folds) -> None:
    """Write all keys. A failure does not stop the other keys, but it fails the batch."""
    additions = folds.additions()

    async def write(id_: str) -> None:
        await _write_key(store, topic, id_, folds.general[id_])

    others = [id_ for id_ in folds.general if id_ not in additions]
    written = _write_additions(store, list(additions.values())), _each(others, write)
    for outcome in await asyncio.gather(*written, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _write_additions(store: Store, journals: Sequence[JournalWrite]) -> None:
    """Write the rows and the heads of all keys. Each key passes the same crash points as one that is written alone."""
    if not journals:
        return
    for _ in journals:
        crash_point("replicate.before-meta")
    await store.writer.write_journals(journals)
    for _ in journals:
        crash_point("replicate.before-deletions")
        crash_point("replicate.after-key")


async def _write_key(store: Store, topic: str, id_: str, fold: KeyFold) -> None:
    held_from = held_place(fold.meta)
    if fold.held and held_from is not None:
        await hold(store, topic, id_, fold.held, held_from=held_from)
    for piece in fold.pieces:
        await _write(store.writer, topic, id_, piece)
    if fold.reopened_at is not None and fold.meta is not None:
        partition = fold.meta.partition
        await let_go(store, topic, id_, at=fold.reopened_at, partition=partition, held_from=held_from)


def _is_verdict(entry: Entry) -> bool:
    return isinstance(entry.action, Verdict)


def _place_of(replicated: ReplicatedOffset) -> Place:
    return Place(replicated.generation, replicated.offset)


async def _each(ids: Iterable[str], do: Callable[[str], Coroutine[Any, Any, T]]) -> list[T]:
    """Do the work for each key, some at once. A failure does not stop the other keys, but it fails the batch."""
    limit = asyncio.Semaphore(_KEYS_AT_ONCE)

    async def one(id_: str) -> T:
        async with limit:
            return await do(id_)

    done = await asyncio.gather(*(one(id_) for id_ in ids), return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in done if not isinstance(outcome, BaseException)]


async def _start(store: Store, layout: Layout, at: TopicPartition) -> ReplicatedOffset:
    """Return the replicated offset of the partition; one before its first record if replication has not begun."""
    replicated = await store.reader.replicated(at)
    first = layout.first_generation(at.partition)
    if replicated is not None and replicated.generation >= first:
        return replicated
    return ReplicatedOffset(at=at, generation=first, offset=-1, log_time_ms=0, created_ms=0, updated_ms=0)


async def _limit(store: Store, layout: Layout, at: TopicPartition) -> int:
    """Return the last offset that may be applied: a boundary, until all partitions have reached theirs.

    Otherwise a key that moved could get its later records before its earlier ones. Keys also move from one old
    partition to another (as from 4 to 6 partitions).
    """
    for generation in layout.growths:
        for partition, boundary in generation.boundaries.items():
            if (await _start(store, layout, TopicPartition(at.topic, partition))).offset < boundary:
                return generation.boundaries.get(at.partition, -1)
    return MAX_OFFSET


def _drop_strays(layout: Layout, at: TopicPartition, batch: PartitionBatch) -> tuple[str, ...]:
    """Drop, and log, the records of keys that had moved away: a producer with old metadata wrote them."""
    if layout.generation == 0:
        return ()
    entries = [entry for of_key in batch.by_id.values() for entry in of_key]
    strays = [entry for entry in entries if not layout.is_home(entry.id, entry.generation, at)]
    for entry in strays:
        batch.by_id[entry.id].remove(entry)
        _logger.error("stray record of a key that moved", key=entry.id, partition=str(at), offset=entry.offset)
    STRAY_RECORDS.labels(at.topic).inc(len(strays))
    return tuple(f"{entry.id} at offset {entry.offset}" for entry in strays)


async def _set_aside(store: Store, topic: str, batch: PartitionBatch) -> tuple[str, ...]:
    """Hold, and log, the journals whose id can't be stored. The batch goes on without them."""
    aside = []
    for id_ in list(batch.by_id):
        if (reason := why_id_is_refused(id_)) is None:
            continue
        entries = batch.by_id.pop(id_)
        if entries:
            aside.append(await hold_unstorable(store, topic, id_, entries, reason))
    return tuple(aside)


async def _write(writer: StoreWriter, topic: str, id_: str, piece: KeyWrites) -> None:
    if piece.rows:
        await writer.write_rows(topic, id_, piece.rows)
    if piece.gaps:
        await writer.write_gaps(topic, id_, piece.gaps)
    crash_point("replicate.before-meta")
    if piece.meta is not None:
        await writer.write_meta(piece.meta)
    crash_point("replicate.before-deletions")
    places = {place for _, place in piece.deletions}
    for place in sorted(places):
        gone = [deletion for deletion, at in piece.deletions if at == place]
        await writer.delete_rows(topic, id_, gone, at=place)
    if piece.purged_at is not None:
        await writer.delete_snapshots(topic, id_, at=piece.purged_at)
    crash_point("replicate.after-key")


def _count(topic: str, folds: _Folds, offset: int, skipped: int) -> Replicated:
    general = folds.general.values()
    rows = sum(len(piece.rows) for fold in general for piece in fold.pieces)
    rows += sum(len(fold.rows) for fold in folds.runs.values())
    void = sum(len(fold.void) for fold in general)
    REPLICATED_ROWS.labels(topic).inc(rows)
    VOID_ACTIONS.labels(topic).inc(void)
    poisoned = [entry.id for fold in general for entry in fold.held if isinstance(entry.action, Poison)]
    keys = len(folds.general) + len(folds.runs)
    return Replicated(offset, rows, keys, void, skipped, tuple(dict.fromkeys(poisoned)))
