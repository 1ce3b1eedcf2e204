"""What one task of the expiry does: look through the heads of its partition and write the purges."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.journal import Topology
from headrace.journal.actions import Purge
from headrace.journal.folding import exists
from headrace.journal.headers import encode_action
from headrace.log import Log
from headrace.model import NewRecord, TopicPartition
from headrace.pipeline.jobs.job_reports import ExpiryReport, report_batch
from headrace.pipeline.spark.errors_told import told
from headrace.pipeline.spark.opened import log_of, run, store_of
from headrace.pipeline.spark.places import Places
from headrace.store import JournalMeta

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline.jobs.partition_jobs import Arguments

__all__ = ["is_expired", "purge_partition"]

ORIGIN = "headrace-purge-expired"


def is_expired(meta: JournalMeta, now_ms: int) -> bool:
    """Say whether a journal's time is up. One that is held is left to whoever releases it."""
    return (
        exists(meta)
        and meta.held_from is None
        and meta.last_append is not None
        and meta.expire_on_ms is not None
        and meta.expire_on_ms <= now_ms
    )


def purge_partition(places: Places, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Purge what is expired of one partition; in a worker."""
    started_s = time.perf_counter()
    report = ExpiryReport(topic=at.topic, partition=at.partition)
    try:
        report = run(_purge(places, at, arguments["now_ms"]))
    except Exception as error:
        report = msgspec.structs.replace(report, error=told(error))
    yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))


async def _purge(places: Places, at: TopicPartition, now_ms: int) -> ExpiryReport:
    log, store = await log_of(places), await store_of(places)
    topology = Topology(log, store.settings, at.topic)
    journals = purged = 0
    async for page in store.reader.metas(at.topic, partition=at.partition):
        journals += sum(exists(meta) for meta in page)
        expired = [meta for meta in page if is_expired(meta, now_ms)]
        await _write(log, topology, expired)
        purged += len(expired)
    return ExpiryReport(topic=at.topic, partition=at.partition, journals=journals, purged=purged)


async def _write(log: Log, topology: Topology, expired: Sequence[JournalMeta]) -> None:
    """Write the purges of a page; those that fell behind the boundary of a growth are written again."""
    while expired:
        routed = [await topology.find_route(meta.id) for meta in expired]
        records = [_record(meta, routed.route.at) for meta, routed in zip(expired, routed, strict=True)]
        positions = await log.append(records)
        expired = [
            meta
            for meta, routed, position in zip(expired, routed, positions, strict=True)
            if await topology.is_stray(meta.id, routed, position.offset)
        ]


def _record(meta: JournalMeta, at: TopicPartition) -> NewRecord:
    headers = encode_action(Purge(last_append=meta.last_append, origin=ORIGIN))
    return NewRecord(at.topic, meta.id.encode(), None, headers, at.partition)
