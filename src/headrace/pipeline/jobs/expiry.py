"""The expiry job: each task looks for expired journals of its partition and writes their purges.

A task finds expired journals in the store, checks that the log has not changed them since, and writes a Purge that
names the last append it saw. The fold ignores that Purge if an append came after it. So a client that appends at the
same time wins, and so does one that starts the next incarnation before a second run. A run also purges the journals
that expired while the job did not run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import JournalHeld
from headrace.journal import HeadCache, JournalReader, Topology, View, WatermarkBarrier, Windows
from headrace.log import Log
from headrace.model import NewRecord, Position, TopicPartition
from headrace.pipeline.jobs.job_reports import ExpiryReport, partitions_ever, report_batch, reports_of
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
from headrace.protocol import Effect, Purge, encode_action, entry_of, exists, step
from headrace.store import JournalMeta, Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.pipeline.jobs.partition_jobs import Arguments

__all__ = ["ExpirySummary", "is_expired", "purge_expired", "purge_expired_of", "purge_partition"]

ORIGIN = "headrace-purge-expired"
_READ_TIMEOUT_S = 70.0


def is_expired(meta: JournalMeta, now_ms: int) -> bool:
    """Return True if the journal has expired. A held journal does not expire until it is released."""
    return (
        exists(meta)
        and meta.held_from is None
        and meta.last_append is not None
        and meta.expire_on_ms is not None
        and meta.expire_on_ms <= now_ms
    )


def purge_partition(endpoints: Endpoints, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Purge the expired journals of one partition, in a worker."""
    started_s = time.perf_counter()
    report = ExpiryReport(topic=at.topic, partition=at.partition)
    try:
        report = run(_purge(endpoints, at, arguments["now_ms"]))
    except Exception as error:
        report = msgspec.structs.replace(report, error=one_line(error))
    yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))


async def _purge(endpoints: Endpoints, at: TopicPartition, now_ms: int) -> ExpiryReport:
    return await purge_expired_of(await log_of(endpoints), await store_of(endpoints), at, now_ms)


async def purge_expired_of(log: Log, store: Store, at: TopicPartition, now_ms: int) -> ExpiryReport:
    """Purge the expired journals of one partition, and count the purges that took effect."""
    topology = Topology(log, store.settings, at.topic)
    cache = HeadCache(log, store.reader)
    reader = JournalReader(
        topology, store.reader, Windows(log, cache, timeout_s=_READ_TIMEOUT_S), WatermarkBarrier(log), cache
    )
    journals = purged = 0
    try:
        async for page in store.reader.metas(at.topic, partition=at.partition):
            journals += sum(exists(meta) for meta in page)
            expired = [meta for meta in page if is_expired(meta, now_ms)]
            purged += await _purge_all(log, topology, reader, expired)
    finally:
        await cache.close()
    return ExpiryReport(topic=at.topic, partition=at.partition, journals=journals, purged=purged)


async def _purge_all(log: Log, topology: Topology, reader: JournalReader, expired: Sequence[JournalMeta]) -> int:
    """Write the purges of a page. A purge that landed behind the boundary of a growth is written again."""
    count = 0
    while expired:
        due = {meta.id: view for meta in expired if (view := await _due(reader, meta)) is not None}
        expired = [meta for meta in expired if meta.id in due]
        routes = {id_: await topology.find_route(id_) for id_ in due}
        topology.check_unclaimed("purge_expired")
        records = [_record(meta, routes[meta.id].route.at) for meta in expired]
        positions = dict(zip(due, await log.append(records), strict=True)) if records else {}
        strays = {id_ for id_, at in positions.items() if await topology.is_stray(id_, routes[id_], at.offset)}
        count += await _count_effective(log, due, {id_: at for id_, at in positions.items() if id_ not in strays})
        expired = [meta for meta in expired if meta.id in strays]
    return count


async def _due(reader: JournalReader, expired: JournalMeta) -> View | None:
    """Return the journal as the log has it; None if it was appended to, purged or held since it was replicated.

    Only the store knows when a journal expires: headers of appends that are not replicated yet don't say it.
    """
    try:
        view = await reader.view(expired.id)
    except JournalHeld:
        return None
    meta = view.meta
    return view if meta is not None and exists(meta) and meta.last_append == expired.last_append else None


async def _count_effective(log: Log, due: Mapping[str, View], written: Mapping[str, Position]) -> int:
    """Count the purges that changed something: an append or another purge may have been written just before."""
    effective = 0
    for at in {view.windows[-1].at for view in due.values()}:
        # A journal that a growth moved in this very moment is left out, so the count is never too high.
        here = {id_: p for id_, p in written.items() if due[id_].windows[-1].at == at and p.partition == at.partition}
        if not here:
            continue
        metas = {id_: due[id_].meta for id_ in here}
        first = min(due[id_].barrier.offset for id_ in here) + 1
        last = max(position.offset for position in here.values())
        async for batch in log.read(at, first, last + 1, headers_only=True, timeout_s=_READ_TIMEOUT_S):
            for record in batch.records:
                id_ = (record.key or b"").decode(errors="replace")
                if id_ not in here or not due[id_].barrier.offset < record.offset <= here[id_].offset:
                    continue
                if (entry := entry_of(record, due[id_].barrier.generation)) is None:
                    continue
                done = step(metas[id_], entry)
                is_ours = record.offset == here[id_].offset
                effective += is_ours and done.effect is Effect.PURGED and exists(metas[id_])
                metas[id_] = done.meta
    return effective


def _record(meta: JournalMeta, at: TopicPartition) -> NewRecord:
    headers = encode_action(Purge(last_append=meta.last_append, origin=ORIGIN))
    return NewRecord(at.topic, meta.id.encode(), None, headers, at.partition)


@dataclass(frozen=True, slots=True)
class ExpirySummary:
    """The result of a run: how many journals it checked and purged. Purges without effect are not counted."""

    journals: int
    purged: int
    partitions: int


def purge_expired(
    spark: SparkSession, endpoints: Endpoints, selection: Selection | None = None, *, now: datetime | None = None
) -> ExpirySummary:
    """Write a Purge for each replicated journal that expires at `now` or before; without a zone that is UTC.

    The purges take effect like any other record of the log: at once for readers, and in the store when they are
    replicated. Raises OperationFailed; some purges may have been written then, and running the job again is safe.
    """
    from headrace.pipeline.jobs.partition_jobs import PurgeExpiredJob, job_frame

    now = now or datetime.now(UTC)
    now = now if now.tzinfo is not None else now.replace(tzinfo=UTC)
    partitions = partitions_ever(endpoints, selection or Selection())
    if not partitions:
        return ExpirySummary(0, 0, 0)
    frame = job_frame(spark, PurgeExpiredJob, endpoints, partitions, {"now_ms": int(now.timestamp() * 1000)})
    reports = reports_of(frame, ExpiryReport, "purging the expired journals of")
    return ExpirySummary(
        journals=sum(report.journals for report in reports),
        purged=sum(report.purged for report in reports),
        partitions=len(reports),
    )
