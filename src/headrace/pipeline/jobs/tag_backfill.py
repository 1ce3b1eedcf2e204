"""The back-fill of a tag: each task gives the tag to chosen events of its partition, while writers continue.

Most events are counted while replication runs and leaves the tag alone. Then replication waits at a cut, the events
that came meanwhile are counted, and behind the cut replication numbers the events that were written with the tag.
"""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import BadArgument, OperationFailed
from headrace.model import TopicPartition
from headrace.observe import get_logger
from headrace.pipeline.jobs.job_reports import FilledPartition, report_batch, reports_of
from headrace.pipeline.replication.replication import Replication
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
from headrace.store import Place
from headrace.tags import CatchingUp, Chooser, HistoryCount, PlacesOfTopic, TagFill, TagFills, TagRegistry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.pipeline.jobs.partition_jobs import Arguments

__all__ = ["TagBackfillSummary", "backfill_tag", "fill_partition", "name_of"]


def fill_partition(endpoints: Endpoints, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Fill one partition, in a worker."""
    started_s = time.perf_counter()
    report = FilledPartition(topic=at.topic, partition=at.partition)
    try:
        _check_first_attempt(arguments["tag"])
        report = run(_fill(endpoints, at, arguments))
    except Exception as error:
        report = msgspec.structs.replace(report, error=one_line(error))
    yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))


def _check_first_attempt(tag: str) -> None:
    """Raise OperationFailed if an earlier attempt died: it may have written rows without noting their numbers."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise OperationFailed(f"back-filling tag {tag!r}", "a task has died; begin again, with --again")


async def _fill(endpoints: Endpoints, at: TopicPartition, arguments: Arguments) -> FilledPartition:
    tag, settings = arguments["tag"], endpoints.settings_of_tags()
    store = await store_of(endpoints)
    await TagFills(await log_of(endpoints), store, settings).current(tag, arguments["fill"])
    # The registry is read before the journals: journals at its places or above are left to a later pass.
    registry = await TagRegistry(store, settings).open()
    replicated = await store.reader.replicated(at)
    history = HistoryCount(store, settings, registry, tag, at, _chooser(arguments["choose"]))
    after = arguments["after"].get(str(at))
    if after is None:
        await history.sweep()
    await history.count(after=Place(*after) if after is not None else Place(-1, -2))
    await history.redact()
    if arguments["is_last"]:
        await history.sweep_late()
    counted = history.counted
    return FilledPartition(
        topic=at.topic,
        partition=at.partition,
        generation=replicated.generation if replicated is not None else -1,
        seen=replicated.offset if replicated is not None else -2,
        journals=counted.journals,
        events=counted.events,
        rows=counted.rows,
    )


def _chooser(packed: str) -> Chooser:
    choose: Chooser = pickle.loads(base64.b64decode(packed))  # noqa: S301 - the driver of this job made it
    return choose


_logger = get_logger(__name__)

_ATTEMPTS = 5
_MANY_RECORDS = 10_000
_LONG_S = 5.0
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class TagBackfillSummary:
    """The result of a run: events examined and tagged. `is_new` is False if the tag was filled before."""

    tag: str
    partitions: int
    journals: int
    events: int
    tagged: int
    is_new: bool = True


def backfill_tag(
    spark: SparkSession,
    endpoints: Endpoints,
    tag: str,
    choose: Chooser,
    *,
    name: str | None = None,
    again: bool = False,
) -> TagBackfillSummary:
    """Give a tag to all existing events for which `choose` returns True. Later events must be written with it.

    So change the writers first. Queries of the tag raise TagBuilding meanwhile; replication continues, and waits
    briefly at the end. `name` identifies the chooser (default: the function's name). A tag that this chooser has
    filled is left alone unless `again` is set; `again` also restarts a back-fill that died. Raises TagBuilding,
    OperationFailed.
    """
    return _Backfill(spark, endpoints, tag, choose, name or name_of(choose)).run(again=again)


def name_of(choose: Chooser) -> str:
    """Return a function's module and name, as in shop.tags:is_big."""
    if not callable(choose):
        raise BadArgument("choose", choose, "it must be a function of one event")
    return f"{getattr(choose, '__module__', '')}:{getattr(choose, '__qualname__', type(choose).__qualname__)}"


class _Backfill:
    """One run of a tag's back-fill."""

    def __init__(self, spark: SparkSession, endpoints: Endpoints, tag: str, choose: Chooser, name: str) -> None:
        self._spark = spark
        self._endpoints = endpoints
        self._tag = tag
        self._name = name
        self._choose = _packed(choose)
        self._reports: list[FilledPartition] = []

    def run(self, *, again: bool) -> TagBackfillSummary:
        fill = run(self._begin(again=again))
        if fill.is_ready:
            return TagBackfillSummary(self._tag, 0, 0, 0, 0, is_new=False)
        if run(self._missing(fill)) > _MANY_RECORDS:
            Replication(self._spark, self._endpoints).run(once=True)
        run(self._pass(fill))
        seen = self._count(fill, fill.since, {})
        if sum(report.took_s for report in self._reports) > _LONG_S:  # count what came meanwhile before others wait
            seen = self._count(fill, fill.since, seen)
        self._complete(fill, seen)
        partitions = len({(report.topic, report.partition) for report in self._reports})
        totals = {what: sum(getattr(each, what) for each in self._reports) for what in ("journals", "events", "rows")}
        return TagBackfillSummary(self._tag, partitions, totals["journals"], totals["events"], totals["rows"])

    def _complete(self, fill: TagFill, seen: Mapping[str, tuple[int, int]]) -> None:
        """Count the rest up to a cut. If replication did not wait that long, try again with a later cut."""
        for _ in range(_ATTEMPTS):
            closing = run(self._close(fill))
            seen = {**seen, **self._count(closing, {**closing.since, **closing.cut}, seen)}
            if run(self._finish(closing)):
                return
            _logger.warning("replication did not wait for a tag's history; the rest is counted again", tag=self._tag)
        raise OperationFailed(f"back-filling tag {self._tag!r}", "replication is faster than the count")

    async def _fills(self) -> TagFills:
        return TagFills(
            await log_of(self._endpoints), await store_of(self._endpoints), self._endpoints.settings_of_tags()
        )

    async def _begin(self, *, again: bool) -> TagFill:
        return await (await self._fills()).begin(self._tag, self._name, again=again)

    async def _close(self, fill: TagFill) -> TagFill:
        closing = await (await self._fills()).close(self._tag, fill)
        await self._reach(closing.cut)
        return closing

    async def _finish(self, fill: TagFill) -> bool:
        return await (await self._fills()).finish(self._tag, fill)

    async def _missing(self, fill: TagFill) -> int:
        return await (await self._catching_up()).missing(_offsets(fill.since))

    async def _pass(self, fill: TagFill) -> None:
        """Replicate up to the start of the fill. If replication is running, it gets there first."""
        await (await self._catching_up()).wait(_offsets(fill.since), patience_s=_PATIENCE_S)
        await self._reach(fill.since)

    async def _reach(self, places: Mapping[str, PlacesOfTopic]) -> None:
        await (await self._catching_up()).reach(_offsets(places))

    async def _catching_up(self) -> CatchingUp:
        return CatchingUp(
            await log_of(self._endpoints), await store_of(self._endpoints), self._endpoints.settings_of_tags()
        )

    def _count(
        self, fill: TagFill, places: Mapping[str, PlacesOfTopic], seen: Mapping[str, tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        """Count what was changed after `seen`; return, by partition, up to where everything is counted."""
        from headrace.pipeline.jobs.job_sources import TagBackfillJob
        from headrace.pipeline.jobs.partition_jobs import job_frame

        partitions = [TopicPartition(topic, partition) for topic, of in places.items() for partition in of.offsets]
        if not partitions:
            return {}
        is_last = bool(fill.cut)
        arguments = {"tag": self._tag, "fill": fill.id, "choose": self._choose, "after": seen, "is_last": is_last}
        frame = job_frame(self._spark, TagBackfillJob, self._endpoints, partitions, arguments)
        reports = reports_of(frame, FilledPartition, f"giving tag {self._tag!r} to")
        self._reports += reports
        return {str(TopicPartition(each.topic, each.partition)): (each.generation, each.seen) for each in reports}


def _offsets(places: Mapping[str, PlacesOfTopic]) -> dict[TopicPartition, int]:
    """Return the last offsets that replication must reach, by partition."""
    live = {topic: of.offsets for topic, of in places.items() if not of.is_gone}
    return {TopicPartition(topic, p): last for topic, of in live.items() for p, last in of.items() if last >= 0}


def _packed(choose: Chooser) -> str:
    from pyspark.cloudpickle import dumps

    return base64.b64encode(dumps(choose)).decode()
