"""What many events cost in memory: the shipped job on few of them, and on many."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psutil
import pyarrow as pa
import pytest
from tests.pipeline.tier import Seen, Tier

from headrace.journal.append import AppendOptions, record_of
from headrace.log import Log
from headrace.model import Event, NewRecord, TopicPartition, partition_of
from headrace.pipeline import Selection, audit
from headrace.pipeline.replication.task import chunks
from headrace.store import Store
from headrace.testing.plugin import Size

PARTITIONS = 4
KEYS = 100
AT_ONCE = 1000
MESSAGE_BYTES = 1000
MB = 1_000_000


@pytest.mark.timeout(3000)
def test_memory_stays_flat_however_many_events_there_are(tier: Tier, topic: str, size: Size) -> None:
    """K16, K15: from few to many events no process grows, the driver gets a message a task, and audit finds nothing."""
    batch = size(1_000, 10_000)
    few = 3 * batch  # what a process takes at first, it takes once
    many = size(12_000, 1_000_000)
    value = bytes(size(25_000, 200))  # so that what is kept of them would show
    tier.with_journal(topic, lambda journal: journal.mark("set-up", "set-up"), partitions=PARTITIONS)
    _fill(tier, topic, 0, few, value)
    few_peak, _ = _replicated(tier, topic, batch)
    _fill(tier, topic, few, many, value)
    many_peak, seen = _replicated(tier, topic, batch)
    assert sum(report.records for report in seen.reports) == many - few
    assert len(seen.reports) >= (many - few) // batch
    slack = size(65, 120) * MB  # all that was read, kept by a worker, would be 90, and 400
    for what, few_bytes in few_peak.items():
        assert many_peak[what] <= few_bytes + slack, f"{what}: from {few_bytes:,} to {many_peak[what]:,} bytes"
    for report in seen.reports:
        assert len(report.outcomes) <= PARTITIONS
        assert all(len(msgspec.json.encode(outcome)) < MESSAGE_BYTES for outcome in report.outcomes)
    found = audit(tier.spark, tier.endpoints, Selection((topic,)))
    assert found.is_clean
    assert len(tier.numbers(topic, "key-0")) == many // KEYS


def test_chunks_hold_batches_up_to_a_limit_of_records_or_bytes() -> None:
    """K16: however Spark cuts its batches, a chunk ends at its limits, and nothing is lost or empty."""
    batches = [_batch(rows) for rows in (3, 0, 3, 5, 1, 0)]
    assert [[batch.num_rows for batch in some] for some in chunks(batches, max_records=6)] == [[3, 3], [5, 1]]
    assert [len(some) for some in chunks(batches, max_records=100, max_bytes=1)] == [1, 1, 1, 1]
    assert [len(some) for some in chunks(batches, max_records=100)] == [4]
    assert list(chunks([_batch(0)])) == []


def _batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"offset": list(range(rows))})


def _replicated(tier: Tier, topic: str, batch: int) -> tuple[dict[str, int], Seen]:
    """Run the job; returns the most memory that was seen of each kind of process, and what the job told."""
    seen = Seen()
    with _peaks() as peaks:
        tier.replicate(topic, watcher=seen, max_records=batch)
    gc.collect()
    runtime = tier.spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return {**peaks, "the JVM's heap": runtime.totalMemory() - runtime.freeMemory()}, seen


@contextmanager
def _peaks() -> Iterator[dict[str, int]]:
    """Watch the driver and the largest worker."""
    peaks = {"the driver": 0, "a worker": 0}
    is_over = threading.Event()

    def look() -> None:
        me = psutil.Process()
        while not is_over.wait(0.2):
            peaks["the driver"] = max(peaks["the driver"], me.memory_info().rss)
            peaks["a worker"] = max([peaks["a worker"], *_workers(me)])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        is_over.set()
        thread.join()
    assert min(peaks.values()) > 0, peaks


def _workers(me: psutil.Process) -> list[int]:
    found = []
    for child in me.children(recursive=True):
        try:
            if "pyspark.daemon" in child.cmdline():
                found.append(child.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return found


def _fill(tier: Tier, topic: str, first: int, end: int, value: bytes) -> None:
    """Append events `first` to `end` as the journal would, going round the keys."""

    async def append(log: Log, _: Store) -> None:
        for start in range(first, end, AT_ONCE):
            await log.append([_record(topic, nr, value) for nr in range(start, min(start + AT_ONCE, end))])

    tier.on(append)


def _record(topic: str, nr: int, value: bytes) -> NewRecord:
    id_ = f"key-{nr % KEYS}"
    at = TopicPartition(topic, partition_of(id_.encode(), PARTITIONS))
    return record_of(at, id_, [Event(nr // KEYS + 1, value)], AppendOptions())
