"""The task of replication: it writes the records of one partition into the store, in the order of the log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import HeadraceError, IntegrityBroken, ReadAgain
from headrace.journal import Layout, Replicated, check_no_hole, layout_key, replicate_batch, replicated_up_to
from headrace.model import RecordColumns, TopicPartition
from headrace.pipeline.logs.records import columns_of_batches
from headrace.pipeline.replication.outcomes import TaskOutcome
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import kept_heads_of, log_of, one_line, run, store_of, tag_writer_of
from headrace.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["chunks", "replicate_partition"]

_NAMED = 20  # the outcome stays small; the store has all names
_CHUNK_RECORDS = 50_000
_CHUNK_BYTES = 32_000_000

_decode_layout = msgspec.json.Decoder(Layout).decode


class OnePartition:
    """Checks what replication relies on: a task has one partition, and its offsets rise."""

    def __init__(self) -> None:
        self.at: TopicPartition | None = None
        self.first = -1
        self.last = -1

    def check(self, batches: Sequence[pa.RecordBatch]) -> RecordColumns:
        """Check the next records of the task and return them. Raises IntegrityBroken."""
        found = {at for batch in batches for at in _partitions_of(batch)}
        at = self.at or min(found)
        columns = columns_of_batches(at, batches)
        if self.at is None:
            self.at, self.first, self.last = at, columns.offsets[0], columns.offsets[0] - 1
        if others := found - {at}:
            raise IntegrityBroken(str(at), columns.offsets[0], f"the task was also given {min(others)}")
        if columns.offsets[0] <= self.last or not columns.are_rising():
            ends = f"{columns.offsets[0]} to {columns.offsets[-1]}"
            raise IntegrityBroken(
                str(at), columns.offsets[0], f"the task was given offsets {ends}, which do not rise, after {self.last}"
            )
        self.last = columns.offsets[-1]
        return columns


def replicate_partition(endpoints: Endpoints, batches: Iterator[pa.RecordBatch]) -> TaskOutcome | None:
    """Replicate a task's records and return the outcome, errors included; None if there were no records."""
    started = time.perf_counter()
    partition, totals = OnePartition(), Totals()
    for some in chunks(batches):
        if totals.is_stopped:
            totals.records += sum(batch.num_rows for batch in some)  # Spark expects that all batches are consumed
            partition.last = max(partition.last, some[-1].column("offset")[-1].as_py())
            continue
        try:
            records = partition.check(some)
            totals.add(records, run(_replicate(endpoints, records)))
        except Exception as error:
            totals.stop(error)
    if partition.at is None:
        return None
    return totals.outcome(partition, time.perf_counter() - started)


def chunks(
    batches: Iterable[pa.RecordBatch], *, max_records: int = _CHUNK_RECORDS, max_bytes: int = _CHUNK_BYTES
) -> Iterator[list[pa.RecordBatch]]:
    """Combine batches into chunks: a key's state is read and written once a chunk, and rows go in larger batches.

    A chunk ends behind the batch that reaches a limit. Empty batches are left out.
    """
    some: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            some.append(batch)
        if sum(one.num_rows for one in some) >= max_records or sum(one.nbytes for one in some) >= max_bytes:
            yield some
            some = []
    if some:
        yield some


class Totals:
    """Adds up what the chunks of a task did."""

    def __init__(self) -> None:
        self.records = 0
        self._done: list[Replicated] = []
        self._is_held = False
        self._error: BaseException | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether no more may be replicated: something failed, or the rest must wait."""
        return self._is_held or self._error is not None

    def add(self, records: RecordColumns, done: Replicated) -> None:
        """Add a chunk."""
        self.records += len(records)
        self._done.append(done)
        self._is_held = done.offset < records.offsets[-1]

    def stop(self, error: BaseException) -> None:
        """Stop with an error, which the outcome reports."""
        self._error = error

    def outcome(self, partition: OnePartition, took_s: float) -> TaskOutcome:
        """Return the outcome of the task."""
        if partition.at is None:
            raise AssertionError("a task without records has no outcome")
        return TaskOutcome(
            topic=partition.at.topic,
            partition=partition.at.partition,
            task=_task_number(),
            first=partition.first,
            seen=partition.last,
            applied=self._done[-1].offset if self._done else -1,
            records=self.records,
            rows=sum(done.rows for done in self._done),
            void=sum(done.void for done in self._done),
            skipped=sum(done.skipped for done in self._done),
            quarantined=tuple(key for done in self._done for key in done.quarantined)[:_NAMED],
            strays=tuple(stray for done in self._done for stray in done.strays)[:_NAMED],
            is_held=self._is_held,
            error=one_line(self._error) if self._error is not None else None,
            is_fault=self._error is not None and not isinstance(self._error, HeadraceError),
            took_s=took_s,
        )


async def _replicate(endpoints: Endpoints, records: RecordColumns) -> Replicated:
    """Replicate one chunk. The layout is read after the records: it was stored before records were written by it."""
    store = await store_of(endpoints)
    layout = await _layout(store, records.at.topic)
    await _check_follows(endpoints, store, layout, records)
    views, heads = await tag_writer_of(endpoints), kept_heads_of(endpoints)
    last = records.offsets[-1]
    return await replicate_batch(store, layout, records.at, records, up_to=last, views=views, heads=heads)


async def _check_follows(endpoints: Endpoints, store: Store, layout: Layout, records: RecordColumns) -> None:
    """Raise ReadAgain if the store lacks records before these: the driver starts again from where the store is."""
    behind = await replicated_up_to(store, layout, records.at) + 1
    if behind < records.offsets[0]:
        await check_no_hole(await log_of(endpoints), records.at, behind, records.offsets[0])


def _partitions_of(batch: pa.RecordBatch) -> set[TopicPartition]:
    topics, partitions = (batch.column(name).unique().to_pylist() for name in ("topic", "partition"))
    return {TopicPartition(topic, partition) for topic in topics for partition in partitions}


async def _layout(store: Store, topic: str) -> Layout:
    stored = await store.settings.get(layout_key(topic))
    if stored is None:
        raise ReadAgain(topic, "its layout is gone from the store")
    return _decode_layout(stored)


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else -1
