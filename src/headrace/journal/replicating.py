"""Carrying one run of a partition into the store. The pipeline calls this inside its tasks; nothing here loops.

The order of the writes is what makes a crash at any step harmless: for each key new rows, its state, then deletions,
and everything up to a purge before anything after it; the partition's replicated offset comes last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.journal.key_writes import KeyFold, KeyWrites, fold_key
from headrace.journal.metrics import REPLICATED_ROWS, VOID_ACTIONS
from headrace.journal.partition_batch import batch_of
from headrace.model import Record, TopicPartition
from headrace.runtime import crash_point
from headrace.store import DEFAULT_SEGMENT_SIZE, JournalMeta, ReplicatedOffset, Store, StoreWriter

__all__ = ["Replicated", "replicate_batch"]

_KEYS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Replicated:
    """What a run did."""

    offset: int
    rows: int
    keys: int
    void: int
    skipped: int


async def replicate_batch(
    store: Store, at: TopicPartition, generation: int, records: Sequence[Record], *, up_to: int
) -> Replicated:
    """Apply records to the store and say that the partition is replicated up to offset `up_to` (inclusive).

    Records at or below what is replicated already change nothing. Runs may overlap, be cut anywhere, be repeated, and
    be applied by two processes at once.
    """
    replicated = await store.reader.replicated(at)
    done_to = replicated.offset if replicated is not None and replicated.generation >= generation else -1
    batch = batch_of(
        [record for record in records if done_to < record.offset <= up_to],
        generation,
        log_time_ms=replicated.log_time_ms if replicated else 0,
        segment_size=replicated.segment_size if replicated else DEFAULT_SEGMENT_SIZE,
    )
    limit = asyncio.Semaphore(_KEYS_AT_ONCE)

    async def one(id_: str) -> KeyFold:
        async with limit:
            meta: JournalMeta | None = await store.reader.meta(at.topic, id_)
            fold = fold_key(meta, batch.by_id[id_])
            for piece in fold.pieces:
                await _write(store.writer, at.topic, id_, piece)
            return fold

    folds = await asyncio.gather(*(one(id_) for id_ in batch.by_id))
    crash_point("replicate.before-offset")
    if up_to > done_to:
        await store.writer.move_replicated(
            ReplicatedOffset(
                at=at,
                generation=generation,
                offset=up_to,
                log_time_ms=batch.log_time_ms,
                created_ms=replicated.created_ms if replicated else batch.log_time_ms,
                updated_ms=batch.log_time_ms,
                segment_size=batch.segment_size,
            )
        )
    crash_point("replicate.after-offset")
    return _count(at.topic, folds, max(up_to, done_to), batch.skipped)


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
