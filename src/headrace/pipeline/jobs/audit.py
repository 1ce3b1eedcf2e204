"""The audit: the store is compared with the log, journal by journal, in one pass over both.

Spark reads each record, each head and each row of a view by tag once, and brings those of a journal together. A first
look at all journals finds suspects. Replication may have been changing them meanwhile, so the log is read a second time
for the suspects alone, and each is looked at closely, with the replicated offset of that very moment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import (
    COUNTED,
    FAILED,
    FINDING_COLUMNS,
    OUTCOME_COLUMNS,
    SUSPECT,
    Finding,
    Tally,
    tally_of,
)
from headrace.pipeline.audits.journal_work import EVENTS_AT_ONCE, FirstLook, JournalWork
from headrace.pipeline.audits.judge import pointer_findings
from headrace.pipeline.audits.second_look import SecondLook
from headrace.pipeline.audits.tag_views import ViewScan, view_scan_of
from headrace.pipeline.audits.windows import TopicWindow, first_time_ms
from headrace.pipeline.jobs.job_reports import AuditedPartition, windows_now
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditLooks", "AuditReport", "audit", "audited_partitions"]

_SUSPECTS_OF_TASK = 500
_FEW_SUSPECTS = 100_000


class AuditLooks(Protocol):
    """The two looks of an audit: at all journals of windows, and at those that the first look found suspect."""

    def first(self, windows: Sequence[TopicWindow]) -> Tally:
        """Look at all journals."""
        ...

    def again(self, windows: Sequence[TopicWindow]) -> Tally:
        """Look at the suspects, closely."""
        ...


def audited_partitions(
    looks: AuditLooks, endpoints: Endpoints, selection: Selection, *, repair: bool
) -> tuple[list[AuditedPartition], Counter[str], list[Finding]]:
    """Run an audit; return its report on each partition, findings by kind, and findings about replicated offsets.

    Raises OperationFailed.
    """
    windows = run(windows_now(endpoints, selection))
    wrong = _pointer_findings(windows, repair=repair)
    first = looks.first(windows) if windows else Tally()
    first.check("auditing")
    again = Tally()
    if first.suspects:
        again = looks.again(_windows_of(first.suspects, run(windows_now(endpoints, selection))))
    again.check("auditing")
    kinds = again.kinds + Counter(finding.kind for finding in wrong)
    pointers = Counter(TopicPartition(finding.topic, finding.partition) for finding in wrong)
    return [_report(window, at, first, again, pointers) for window in windows for at in window.starts], kinds, wrong


def _windows_of(suspects: Collection[TopicPartition], windows: Sequence[TopicWindow]) -> list[TopicWindow]:
    """Return the windows of the partitions with suspects. Journals of a topic that grew may be in any partition."""
    topics = {at.topic for at in suspects}
    return [
        window if window.layout.generation > 0 else window.only(at.partition for at in suspects if at in window.starts)
        for window in windows
        if window.layout.topic in topics
    ]


def _pointer_findings(windows: Sequence[TopicWindow], *, repair: bool) -> list[Finding]:
    now_ms = round(time.time() * 1000)
    found = [
        finding
        for window in windows
        for partition in window.stretches
        for finding in pointer_findings(window.of_partition(partition), now_ms)
    ]
    return [msgspec.structs.replace(each, repaired=False if repair else None) for each in found]


def _report(
    window: TopicWindow, at: TopicPartition, first: Tally, again: Tally, pointers: Counter[TopicPartition]
) -> AuditedPartition:
    stretch, seen, closely = window.stretches[at.partition], first.of(at), again.of(at)
    return AuditedPartition(
        topic=at.topic,
        partition=at.partition,
        first=max(stretch.start, seen["first"]),
        last=stretch.last,
        read=seen["read"] + closely["read"],
        records=seen["records"],
        journals=seen["journals"],
        rows=seen["rows"],
        busy=closely["busy"],
        findings=closely["findings"] + pointers[at],
        repaired=closely["repaired"],
    )


SHOWN = 100


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit: counts by kind, the first findings, and all findings as a table.

    Spark keeps `table` on disk; `close` releases it.
    """

    partitions: Sequence[AuditedPartition]
    counts: Mapping[str, int]
    findings: Sequence[Finding]
    table: DataFrame | None = None
    kept: Sequence[DataFrame] = ()

    @property
    def found(self) -> int:
        """The number of findings."""
        return sum(partition.findings for partition in self.partitions)

    @property
    def repaired(self) -> int:
        """The number of findings that were repaired."""
        return sum(partition.repaired for partition in self.partitions)

    @property
    def is_clean(self) -> bool:
        """Whether the store agrees with the log now: nothing was found, or everything was repaired."""
        return self.found == self.repaired

    def total(self, what: str) -> int:
        """Return the sum of one count over all partitions: `read`, `records`, `journals`, `rows` or `busy`."""
        return sum(getattr(partition, what) for partition in self.partitions)

    def close(self) -> None:
        """Release the table."""
        for frame in self.kept:
            frame.unpersist()


class _SparkLooks:
    """The looks of an audit in a Spark session. The outcomes are kept on disk: every action would run a look again."""

    def __init__(
        self, spark: SparkSession, endpoints: Endpoints, *, repair: bool, events_at_once: int = EVENTS_AT_ONCE
    ) -> None:
        self._spark = spark
        self._endpoints = endpoints
        self._is_repair = repair
        self._events_at_once = events_at_once
        self._suspects = 0
        self.kept: list[DataFrame] = []

    def first(self, windows: Sequence[TopicWindow]) -> Tally:
        """Look at all journals."""
        from headrace.pipeline.audits.journal_frames import head_rows, shares_for, tasks_for

        tasks, shares = tasks_for(self._spark, windows), shares_for(self._spark, windows)
        topics = [window.layout.topic for window in windows]
        rows = self._rows(windows, tasks=tasks, first_ms=run(self._first_time_ms(windows)))
        rows = rows.unionByName(head_rows(self._spark, self._endpoints, topics, shares=shares))
        tally = self._tally(rows, FirstLook(self._endpoints, windows, events_at_once=self._events_at_once), tasks)
        self._suspects = tally.suspects.total()
        return tally

    def again(self, windows: Sequence[TopicWindow]) -> Tally:
        """Look at the suspects, closely."""
        from pyspark.sql import functions as f

        from headrace.pipeline.audits.journal_frames import only_of, shares_for, suspect_rows

        tasks = min(-(-self._suspects // _SUSPECTS_OF_TASK), shares_for(self._spark, windows))
        topics = [window.layout.topic for window in windows]
        is_suspect = (f.col("kind") == SUSPECT) & f.col("topic").isin(topics)
        suspects = suspect_rows(self.kept[-1].filter(is_suspect))
        rows = self._rows(windows, tasks=tasks, with_unreplicated=True)
        rows = only_of(rows, suspects, topics, is_few=self._suspects <= _FEW_SUSPECTS).unionByName(suspects)
        work = SecondLook(self._endpoints, windows, repair=self._is_repair, events_at_once=self._events_at_once)
        return self._tally(rows, work, tasks)

    def _rows(
        self, windows: Sequence[TopicWindow], *, tasks: int, first_ms: int = 0, with_unreplicated: bool = False
    ) -> DataFrame:
        """Return the records of the windows, and the rows of their views by tag."""
        from headrace.pipeline.audits.journal_frames import log_rows, shares_for, view_rows

        rows = log_rows(self._spark, self._endpoints, windows, tasks=tasks, with_unreplicated=with_unreplicated)
        topics, parts = [window.layout.topic for window in windows], shares_for(self._spark, windows)
        scan = run(self._view_scan(topics, first_ms, parts))
        return rows if scan is None else rows.unionByName(view_rows(self._spark, self._endpoints, scan))

    async def _first_time_ms(self, windows: Sequence[TopicWindow]) -> int:
        return await first_time_ms(await log_of(self._endpoints), windows)

    async def _view_scan(self, topics: Sequence[str], first_ms: int, parts: int) -> ViewScan | None:
        store, settings = await store_of(self._endpoints), self._endpoints.settings_of_tags()
        return await view_scan_of(store, settings, topics, first_ms=first_ms, parts=parts)

    def _tally(self, rows: DataFrame, work: JournalWork, tasks: int) -> Tally:
        from pyspark.storagelevel import StorageLevel

        from headrace.pipeline.audits.journal_frames import shuffled

        outcomes = shuffled(rows, tasks=tasks).mapInArrow(work, OUTCOME_COLUMNS)
        self.kept.append(outcomes.persist(StorageLevel.DISK_ONLY))
        return tally_of(self.kept[-1])


def audit(
    spark: SparkSession,
    endpoints: Endpoints,
    selection: Selection | None = None,
    *,
    repair: bool = False,
    shown: int = SHOWN,
    events_at_once: int | None = None,
) -> AuditReport:
    """Compare the store with the replicated part of the log; with `repair`, correct the differences.

    Replication may run meanwhile. Raises OperationFailed if a journal could not be audited.
    """
    looks = _SparkLooks(spark, endpoints, repair=repair, events_at_once=events_at_once or EVENTS_AT_ONCE)
    partitions, kinds, wrong = audited_partitions(looks, endpoints, selection or Selection(), repair=repair)
    if not partitions:
        return AuditReport((), {}, ())
    table = _table(spark, looks.kept, wrong)
    first = table.limit(shown).collect() if kinds else []
    findings = [msgspec.convert(row.asDict(), Finding) for row in first]
    return AuditReport(partitions, kinds, findings, table, looks.kept)


def _table(spark: SparkSession, kept: Sequence[DataFrame], wrong: Sequence[Finding]) -> DataFrame:
    """Return all findings as a frame."""
    from pyspark.sql import functions as f

    table = spark.createDataFrame([msgspec.structs.astuple(each) for each in wrong], FINDING_COLUMNS)
    for frame in kept[1:]:
        found = frame.filter(~f.col("kind").isin(COUNTED, FAILED, SUSPECT))
        table = table.unionByName(found.drop("count"))
    return table
