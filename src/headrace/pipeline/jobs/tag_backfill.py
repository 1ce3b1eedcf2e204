"""What one task of a tag's back-fill does: count the journals of its partition under the tag."""

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
from headrace.pipeline.spark.places import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of, told
from headrace.store import Place
from headrace.tags import CatchingUp, Chooser, HistoryCount, PlacesOfTopic, TagFill, TagFills, TagRegistry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.pipeline.jobs.partition_jobs import Arguments

__all__ = ["TagBackfillSummary", "backfill_tag", "fill_partition", "name_of"]


def fill_partition(places: Endpoints, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Count one partition; in a worker."""
    started_s = time.perf_counter()
    report = FilledPartition(topic=at.topic, partition=at.partition)
    try:
        _check_first_attempt(arguments["tag"])
        report = run(_fill(places, at, arguments))
    except Exception as error:
        report = msgspec.structs.replace(report, error=told(error))
    yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))


def _check_first_attempt(tag: str) -> None:
    """Refuse to go on where a task has died: rows may be there whose numbers were not noted."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise OperationFailed(f"back-filling tag {tag!r}", "a task has died; begin again, with --again")


async def _fill(places: Endpoints, at: TopicPartition, arguments: Arguments) -> FilledPartition:
    tag, settings = arguments["tag"], places.settings_of_tags()
    store = await store_of(places)
    await TagFills(await log_of(places), store, settings).current(tag, arguments["fill"])
    # The registry is read before the journals: those that are at its places or above are left to a later pass.
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
    """What a run did: events looked at, and how many of them have the tag now. `is_new`: it was not done before."""

    tag: str
    partitions: int
    journals: int
    events: int
    tagged: int
    is_new: bool = True


def backfill_tag(
    spark: SparkSession, places: Endpoints, tag: str, choose: Chooser, *, name: str | None = None, again: bool = False
) -> TagBackfillSummary:
    """Give a tag to all events that `choose` says True to, up to a cut; later ones must be written with it.

    So let writers give it to their events first. Queries of the tag fail with TagBuilding meanwhile; replication goes
    on, and waits a moment at the end. `name` says what chooses, else the function's own. A tag that is filled by it
    stays as it is; `again` fills it anew, also one whose back-fill died. Raises TagBuilding, OperationFailed.
    """
    return _Backfill(spark, places, tag, choose, name or name_of(choose)).run(again=again)


def name_of(choose: Chooser) -> str:
    """Return a function's name, as in shop.tags:is_big."""
    if not callable(choose):
        raise BadArgument("choose", choose, "it must be a function of one event")
    return f"{getattr(choose, '__module__', '')}:{getattr(choose, '__qualname__', type(choose).__qualname__)}"


class _Backfill:
    """One run."""

    def __init__(self, spark: SparkSession, places: Endpoints, tag: str, choose: Chooser, name: str) -> None:
        self._spark = spark
        self._places = places
        self._tag = tag
        self._name = name
        self._choose = _packed(choose)
        self._reports: list[FilledPartition] = []

    def run(self, *, again: bool) -> TagBackfillSummary:
        fill = run(self._begin(again=again))
        if fill.is_ready:
            return TagBackfillSummary(self._tag, 0, 0, 0, 0, is_new=False)
        if run(self._missing(fill)) > _MANY_RECORDS:
            Replication(self._spark, self._places).run(once=True)
        run(self._pass(fill))
        seen = self._count(fill, fill.since, {})
        if sum(report.took_s for report in self._reports) > _LONG_S:  # much has come meanwhile: let nobody wait for it
            seen = self._count(fill, fill.since, seen)
        self._complete(fill, seen)
        partitions = len({(report.topic, report.partition) for report in self._reports})
        totals = {what: sum(getattr(each, what) for each in self._reports) for what in ("journals", "events", "rows")}
        return TagBackfillSummary(self._tag, partitions, totals["journals"], totals["events"], totals["rows"])

    def _complete(self, fill: TagFill, seen: Mapping[str, tuple[int, int]]) -> None:
        """Count the rest up to a cut, and another one if replication got tired of waiting."""
        for _ in range(_ATTEMPTS):
            closing = run(self._close(fill))
            seen = {**seen, **self._count(closing, {**closing.since, **closing.cut}, seen)}
            if run(self._finish(closing)):
                return
            _logger.warning("replication did not wait for a tag's history; the rest is counted again", tag=self._tag)
        raise OperationFailed(f"back-filling tag {self._tag!r}", "replication is faster than the count")

    async def _fills(self) -> TagFills:
        return TagFills(await log_of(self._places), await store_of(self._places), self._places.settings_of_tags())

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
        """Come to where all who replicate know of the fill. They come there themselves, if they are at work."""
        await (await self._catching_up()).wait(_offsets(fill.since), patience_s=_PATIENCE_S)
        await self._reach(fill.since)

    async def _reach(self, places: Mapping[str, PlacesOfTopic]) -> None:
        await (await self._catching_up()).reach(_offsets(places))

    async def _catching_up(self) -> CatchingUp:
        return CatchingUp(await log_of(self._places), await store_of(self._places), self._places.settings_of_tags())

    def _count(
        self, fill: TagFill, places: Mapping[str, PlacesOfTopic], seen: Mapping[str, tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        """Count what was changed after `seen`; returns up to where all is counted, by partition."""
        from headrace.pipeline.jobs.job_sources import TagBackfillJob
        from headrace.pipeline.jobs.partition_jobs import job_frame

        partitions = [TopicPartition(topic, partition) for topic, of in places.items() for partition in of.offsets]
        if not partitions:
            return {}
        is_last = bool(fill.cut)
        arguments = {"tag": self._tag, "fill": fill.id, "choose": self._choose, "after": seen, "is_last": is_last}
        frame = job_frame(self._spark, TagBackfillJob, self._places, partitions, arguments)
        reports = reports_of(frame, FilledPartition, f"giving tag {self._tag!r} to")
        self._reports += reports
        return {str(TopicPartition(each.topic, each.partition)): (each.generation, each.seen) for each in reports}


def _offsets(places: Mapping[str, PlacesOfTopic]) -> dict[TopicPartition, int]:
    """Return what replication can be brought to."""
    live = {topic: of.offsets for topic, of in places.items() if not of.is_gone}
    return {TopicPartition(topic, p): last for topic, of in live.items() for p, last in of.items() if last >= 0}


def _packed(choose: Chooser) -> str:
    from pyspark.cloudpickle import dumps

    return base64.b64encode(dumps(choose)).decode()
