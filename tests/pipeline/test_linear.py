"""How much an audit and a back-fill read: each record of the log once, whatever it holds, and by many tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.by_hand import operator_of
from tests.pipeline.tier import Tier

from headrace.errors import RecordsLost
from headrace.journal import JOURNAL_TOPIC, Journal, grow_topic
from headrace.log import Log
from headrace.model import Event, NewRecord, Record, TopicPartition
from headrace.pipeline import Endpoints, FindingKind, Selection, audit, backfill
from headrace.pipeline.audits.journal_frames import shares_for, tasks_for
from headrace.pipeline.audits.windows import TopicWindow, WindowStretch
from headrace.pipeline.logs.offsets import encode_offsets
from headrace.pipeline.logs.records import batch_of_records, records_of_batch
from headrace.pipeline.logs.source import HeadraceLogSource, Slice, divided
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION
from headrace.pipeline.spark.process import close_all, log_of, run
from headrace.protocol.layout import Generation, Layout
from headrace.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

JOURNALS, EVENTS = 30, 4


async def write(journal: Journal) -> None:
    for n in range(1, EVENTS + 1):
        for key in range(JOURNALS):
            await journal.append(f"k{key}", [Event(n, {"n": n}, tags=("a",) if key % 2 else ())])


async def records_in(log: Log, topic: str) -> int:
    bounds = [await log.bounds(TopicPartition(topic, number)) for number in range(3)]
    return sum(each.end - each.start for each in bounds)


def test_an_audit_reads_each_record_once(tier: Tier, topic: str) -> None:
    """FP2, FP3: of a topic that grew, in chunks of five events; once more if something is wrong; no journal twice."""

    async def grow(log: Log, store: Store) -> None:
        await grow_topic(log, store.settings, topic, partitions=3, lease_s=0.05)

    tier.with_journal(topic, write, partitions=2)
    tier.on(grow)
    tier.replicate(topic)
    in_log = tier.on(lambda log, _: records_in(log, topic))
    report = audit(tier.spark, tier.endpoints, Selection((topic,)), events_at_once=5)
    report.close()
    assert report.is_clean, [str(found) for found in report.findings]
    assert (report.total("read"), report.total("journals")) == (in_log, JOURNALS)
    assert (report.total("records"), report.total("rows")) == (JOURNALS * EVENTS, JOURNALS * EVENTS)
    operator_of(tier).lose_rows(topic, [f"k{key}" for key in range(JOURNALS)])
    report = audit(tier.spark, tier.endpoints, Selection((topic,)), events_at_once=5)
    report.close()
    assert report.counts == {FindingKind.ROW_MISSING: JOURNALS * EVENTS}
    assert report.total("read") == 2 * in_log


def test_a_back_fill_of_some_records_works_on_their_journals_only(tier: Tier, topic: str) -> None:
    """FP2: the range is read for its keys, and the log once; only the journals of the range are looked at."""
    tier.with_journal(topic, write, partitions=1)
    tier.apply(topic)
    in_log = tier.on(lambda log, _: log.bounds(TopicPartition(topic, 0))).end
    last = in_log - 1
    operator_of(tier).lose_rows(topic, [f"k{key}" for key in range(JOURNALS)])
    done = backfill(tier.spark, tier.endpoints, Selection((topic,)), first=last - 9, last=last)
    assert (done.records, done.journals, done.restored) == (10, 10, 10)
    assert done.read == in_log + 10


def test_there_are_more_tasks_than_partitions(spark: SparkSession) -> None:
    """FP2: a long partition is read by many tasks, and its journals are divided among many; little work has few."""
    at = TopicPartition("t", 0)
    parts = divided([Slice(at, 10, 1_000_010), Slice(TopicPartition("t", 1), 0, 5)], 20)
    assert [part.start for part in parts if part.at == at] == [10, *(part.end for part in parts[:-2])]
    assert (len(parts), parts[-2].end, parts[-1].at.partition) == (21, 1_000_010, 1)
    few, many = (
        [TopicWindow(Layout("t", "1", (Generation(1),)), {0: WindowStretch(at, start, last, last + 1, 0, None)})]
        for start, last in ((0, 99), (0, 999_999))
    )
    cut = [TopicWindow(Layout("t", "1", (Generation(1),)), {0: WindowStretch(at, 999_990, 999_999, 10**6, 0, None)})]
    assert (tasks_for(spark, few), tasks_for(spark, many)) == (1, 100)
    assert tasks_for(spark, cut) == shares_for(spark, cut) == int(spark.conf.get("spark.sql.shuffle.partitions") or 0)


def test_records_that_are_removed_while_they_are_read_are_left_out(tmp_path: Path) -> None:
    """FP2: a stretch whose start is gone gives what is left of it, if that was asked for; otherwise the query fails."""
    endpoints, at = Endpoints.of(f"embedded:{tmp_path}"), TopicPartition("t", 0)

    async def write_and_remove() -> None:
        log = await log_of(endpoints)
        await log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
        await log.append([NewRecord("t", b"k", b"v", (), partition=0)] * 9)
        await log.retention.truncate(at, before=4)

    def offsets(part: Slice, *, skips_removed: str) -> list[int]:
        offsets = encode_offsets({at: 0})
        options = {"starts": offsets, "ends": offsets, "tasks": "1", "skipsremoved": skips_removed}
        reader = HeadraceLogSource({ENDPOINTS_OPTION: endpoints.pack(), **options}).reader(None)  # type: ignore[arg-type]
        return [row["offset"] for batch in reader.read(part) for row in batch.to_pylist()]

    run(write_and_remove())
    assert offsets(Slice(at, 2, 7), skips_removed="true") == [4, 5, 6]
    assert offsets(Slice(at, 0, 3), skips_removed="true") == []
    with pytest.raises(RecordsLost):
        offsets(Slice(at, 2, 7), skips_removed="false")
    close_all()


def test_a_part_of_a_batch_gives_its_own_records() -> None:
    """K16: parts of a batch share its values; each takes its own headers, and those only."""
    headers = [tuple((f"h{n}", b"%d" % n) for n in range(count)) for count in (0, 2, 1, 0, 3)]
    records = [Record("t", 0, offset, 0, b"k", b"v", own) for offset, own in enumerate(headers)]
    batch = batch_of_records(records)
    for start in range(len(records)):
        assert [records_of_batch(batch.slice(start, size)) for size in (0, 1, 2)] == [
            records[start:start],
            records[start : start + 1],
            records[start : start + 2],
        ]
