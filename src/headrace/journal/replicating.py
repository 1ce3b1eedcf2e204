"""Carrying one run of a partition into the store. The pipeline calls this inside its tasks; nothing here loops.

The order of the writes is what makes a crash at any step harmless: for each key new rows, its state, then deletions,
and everything up to a purge before anything after it; the partition's replicated offset comes last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.journal.key_writes import KeyFold, KeyWrites, fold_key
from headrace.journal.layout import Layout
from headrace.journal.metrics import REPLICATED_ROWS, STRAY_RECORDS, VOID_ACTIONS
from headrace.journal.partition_batch import PartitionBatch, batch_of
from headrace.model import Record, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import crash_point
from headrace.store import ReplicatedOffset, Store, StoreWriter

__all__ = ["Replicated", "replicate_batch"]

_KEYS_AT_ONCE = 64
MAX_OFFSET = (1 << 62) - 1

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Replicated:
    """What a run did."""

    offset: int
    rows: int
    keys: int
    void: int
    skipped: int


async def replicate_batch(
    store: Store, layout: Layout, at: TopicPartition, records: Sequence[Record], *, up_to: int
) -> Replicated:
    """Apply records to the store and say that the partition is replicated up to offset `up_to` (inclusive).

    Records at or below what is replicated already change nothing. Runs may overlap, be cut anywhere, be repeated, and
    be applied by two processes at once. What lies behind a boundary waits until all old partitions are at theirs: then
    the answer's offset is below `up_to`, and the rest is to be given again.
    """
    start = await _start(store, layout, at)
    up_to = min(up_to, await _limit(store, layout, at))
    batch = batch_of(
        [record for record in records if start.offset < record.offset <= up_to],
        start.generation,
        log_time_ms=start.log_time_ms,
        segment_size=start.segment_size,
    )
    strays = _drop_strays(layout, at, batch)
    folds = await _apply(store, at.topic, batch)
    crash_point("replicate.before-offset")
    if up_to > start.offset:
        moved = msgspec.structs.replace(
            start,
            created_ms=start.created_ms or batch.log_time_ms,
            generation=batch.generation,
            offset=up_to,
            log_time_ms=batch.log_time_ms,
            updated_ms=batch.log_time_ms,
            segment_size=batch.segment_size,
        )
        await store.writer.move_replicated(moved)
    crash_point("replicate.after-offset")
    return _count(at.topic, folds, max(up_to, start.offset), batch.skipped + strays)


async def _apply(store: Store, topic: str, batch: PartitionBatch) -> list[KeyFold]:
    limit = asyncio.Semaphore(_KEYS_AT_ONCE)

    async def one(id_: str) -> KeyFold:
        async with limit:
            fold = fold_key(await store.reader.meta(topic, id_), batch.by_id[id_])
            for piece in fold.pieces:
                await _write(store.writer, topic, id_, piece)
            return fold

    # One key that fails does not stop the others; it stops the replicated offset.
    done = await asyncio.gather(*(one(id_) for id_ in batch.by_id), return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in done if isinstance(outcome, KeyFold)]


async def _start(store: Store, layout: Layout, at: TopicPartition) -> ReplicatedOffset:
    """Return where replication of the partition stands; before its beginning if it has not begun."""
    replicated = await store.reader.replicated(at)
    first = layout.first_generation(at.partition)
    if replicated is not None and replicated.generation >= first:
        return replicated
    return ReplicatedOffset(at=at, generation=first, offset=-1, log_time_ms=0, created_ms=0, updated_ms=0)


async def _limit(store: Store, layout: Layout, at: TopicPartition) -> int:
    """Return the last offset that may be applied: a boundary, until all partitions have reached theirs.

    A key that moved would otherwise meet its later records before its earlier ones, also when it moved from one old
    partition to another (as from 4 to 6 partitions).
    """
    for generation in layout.generations:
        for partition, boundary in generation.boundaries.items():
            replicated = await store.reader.replicated(TopicPartition(at.topic, partition))
            if replicated is None or replicated.offset < boundary:
                return generation.boundaries.get(at.partition, -1)
    return MAX_OFFSET


def _drop_strays(layout: Layout, at: TopicPartition, batch: PartitionBatch) -> int:
    """Drop records of keys that had moved away: a producer with old metadata wrote them. Each is named."""
    if layout.generation == 0:
        return 0
    entries = [entry for of_key in batch.by_id.values() for entry in of_key]
    strays = [entry for entry in entries if not layout.is_home(entry.id, entry.generation, at)]
    for entry in strays:
        batch.by_id[entry.id].remove(entry)
        _logger.error("stray record of a key that moved", key=entry.id, partition=str(at), offset=entry.offset)
    STRAY_RECORDS.labels(at.topic).inc(len(strays))
    return len(strays)


async def _write(writer: StoreWriter, topic: str, id_: str, piece: KeyWrites) -> None:
    if piece.rows:
        await writer.write_rows(topic, id_, piece.rows)
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


def _count(topic: str, folds: Sequence[KeyFold], offset: int, skipped: int) -> Replicated:
    rows = sum(len(piece.rows) for fold in folds for piece in fold.pieces)
    void = sum(len(fold.void) for fold in folds)
    REPLICATED_ROWS.labels(topic).inc(rows)
    VOID_ACTIONS.labels(topic).inc(void)
    return Replicated(offset, rows, len(folds), void, skipped)
