"""The back-fill of a tag: chosen events of all journals get it, while writers continue.

Most events are counted while replication runs and leaves the tag alone. Then replication waits at a cut, the events
that came meanwhile are counted, and behind the cut replication numbers the events that were written with the tag.
Each pass reads each head once, and of the journals what was not counted before; heads are divided among the tasks.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import BadArgument, OperationFailed
from headrace.journal import Layout
from headrace.model import TopicPartition
from headrace.observe import get_logger
from headrace.pipeline.audits.findings import OUTCOME_COLUMNS, Outcomes, tally_of
from headrace.pipeline.audits.journal_work import JournalRows, chunks, journals_of
from headrace.pipeline.audits.shuffle import FactsOfTopic, LogFact
from headrace.pipeline.audits.tag_views import scan_of_buckets
from headrace.pipeline.audits.windows import TopicWindow
from headrace.pipeline.replication.replication import Replication
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
from headrace.protocol import Generation
from headrace.store import HeadShare, JournalMeta, Place
from headrace.tags import CatchingUp, Chooser, Counted, HistoryCount, PlacesOfTopic, TagFill, TagFills, TagRegistry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["CountPart", "TagBackfillSummary", "TagCount", "TagCounting", "TagSettling", "backfill_tag", "name_of"]


class CountPart(NamedTuple):
    """A part of a pass: a share of one topic's heads, to count; or buckets of the tag, to remove what was there."""

    topics: Sequence[str]
    share: HeadShare | None = None
    buckets_ms: Sequence[int] = ()


class TagCounting(NamedTuple):
    """One pass over history. `after` has the places that the passes before have counted up to, by partition."""

    tag: str
    fill: str
    choose: str
    after: Mapping[str, tuple[int, int]]

    def is_due(self, meta: JournalMeta) -> bool:
        """Return True if the journal was changed since the passes before."""
        after = self.after.get(str(TopicPartition(meta.topic, meta.partition)))
        return after is None or meta.place > Place(*after)


class TagCount:
    """Counts parts of history, in a worker."""

    def __init__(self, endpoints: Endpoints, counting: TagCounting) -> None:
        self._endpoints = endpoints
        self._counting = counting

    def __call__(self, part: CountPart) -> Iterator[pa.RecordBatch]:
        """Count one part. Yields its outcomes."""
        outcomes = Outcomes()
        try:
            _check_first_attempt(self._counting.tag)
            run(_count_part(self._endpoints, part, self._counting, outcomes))
        except Exception as error:
            outcomes.failed(", ".join(part.topics), one_line(error))
        yield from outcomes.take_counts()


def _check_first_attempt(tag: str) -> None:
    """Raise OperationFailed if an earlier attempt died: it may have written rows without noting their numbers."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise OperationFailed(f"back-filling tag {tag!r}", "a task has died; begin again, with --again")


async def _count_part(endpoints: Endpoints, part: CountPart, counting: TagCounting, outcomes: Outcomes) -> None:
    store = await store_of(endpoints)
    histories = {topic: await _history(endpoints, topic, counting) for topic in part.topics}
    for bucket_ms in part.buckets_ms:
        async for page in store.tags.views.read(counting.tag, bucket_ms):
            for topic in {row.topic for row in page}.intersection(histories):
                await histories[topic].sweep(page)
    if part.share is None:
        return
    for topic, history in histories.items():
        async for metas in store.reader.metas(topic, share=part.share):
            counted = await history.count(meta for meta in metas if counting.is_due(meta))
            outcomes.count(TopicPartition(topic, 0), **counted._asdict())


async def _history(endpoints: Endpoints, topic: str, counting: TagCounting) -> HistoryCount:
    """Return the count of a topic. The registry is read before the journals: what changes later is counted later."""
    store, settings = await store_of(endpoints), endpoints.settings_of_tags()
    await TagFills(await log_of(endpoints), store, settings).current(counting.tag, counting.fill)
    facts = await TagRegistry(store, settings).open()
    return HistoryCount(store, settings, facts, counting.tag, topic, _chooser(counting.choose))


def _chooser(packed: str) -> Chooser:
    choose: Chooser = pickle.loads(base64.b64decode(packed))  # noqa: S301 - the driver of this job made it
    return choose


class TagSettling:
    """Settles journals under the tag, for mapInArrow: each task has the heads and the rows of its journals, sorted.

    Doing it twice is harmless, so a task that died may be repeated.
    """

    def __init__(self, endpoints: Endpoints, counting: TagCounting) -> None:
        self._endpoints = endpoints
        self._counting = counting

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the outcomes."""
        outcomes, topic = Outcomes(), ""
        try:
            histories: dict[str, HistoryCount] = {}
            for chunk in chunks(journals_of(batches, _without_log)):
                for journal in chunk:
                    topic = journal.facts.window.layout.topic
                    if topic not in histories:
                        histories[topic] = run(_history(self._endpoints, topic, self._counting))
                run(self._settle(histories, chunk))
        except Exception as error:
            outcomes.failed(topic, one_line(error))
        yield from outcomes.take()

    async def _settle(self, histories: Mapping[str, HistoryCount], journals: Sequence[JournalRows]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(journal: JournalRows) -> None:
            async with limit:
                await histories[journal.facts.window.layout.topic].settle(journal.head, journal.view_rows)

        await asyncio.gather(*(one(journal) for journal in journals if journal.view_rows))


def _without_log(topic: str, facts: Mapping[int, Sequence[LogFact]]) -> FactsOfTopic:
    """Return the facts of a topic of which nothing was read."""
    return FactsOfTopic(TopicWindow(Layout(topic, "", (Generation(0),)), {}), facts)


_logger = get_logger(__name__)

_ATTEMPTS = 5
_AT_ONCE = 32
_RECORDS_OF_TASK = 1000
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
        self._total = Counted()
        self._partitions: set[TopicPartition] = set()

    def run(self, *, again: bool) -> TagBackfillSummary:
        fill = run(self._begin(again=again))
        if fill.is_ready:
            return TagBackfillSummary(self._tag, 0, 0, 0, 0, is_new=False)
        if run(self._missing(fill)) > _MANY_RECORDS:
            Replication(self._spark, self._endpoints).run(once=True)
        run(self._pass(fill))
        started_s = time.perf_counter()
        seen = self._count(fill, fill.since, {})
        if time.perf_counter() - started_s > _LONG_S:  # count what came meanwhile before others wait
            seen = self._count(fill, fill.since, seen)
        self._complete(fill, seen)
        total = self._total
        return TagBackfillSummary(self._tag, len(self._partitions), total.journals, total.events, total.rows)

    def _complete(self, fill: TagFill, seen: Mapping[str, tuple[int, int]]) -> None:
        """Count the rest up to a cut. If replication did not wait that long, try again with a later cut."""
        for _ in range(_ATTEMPTS):
            closing = run(self._close(fill))
            places = {**closing.since, **closing.cut}
            seen = {**seen, **self._count(closing, places, seen)}
            self._settle(closing, places)
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
        from headrace.pipeline.audits.journal_frames import work_on_parts

        partitions = {TopicPartition(topic, partition) for topic, of in places.items() for partition in of.offsets}
        if not partitions:
            return {}
        self._partitions |= partitions
        replicated, parts = run(self._plan(partitions, is_first=not seen))
        work = TagCount(self._endpoints, TagCounting(self._tag, fill.id, self._choose, seen))
        tally = tally_of(work_on_parts(self._spark, parts, work, OUTCOME_COLUMNS))
        tally.check(f"giving tag {self._tag!r} to")
        counted = Counted(*(tally.total(name) for name in Counted._fields))
        self._total = Counted(*(before + now for before, now in zip(self._total, counted, strict=True)))
        return replicated

    async def _plan(
        self, partitions: Collection[TopicPartition], *, is_first: bool
    ) -> tuple[dict[str, tuple[int, int]], list[CountPart]]:
        """Return how far replication has come, before anything is read, and the parts of a pass.

        The first pass also removes what was under the tag before, bucket by bucket.
        """
        store = await store_of(self._endpoints)
        known = {at: await store.reader.replicated(at) for at in partitions}
        seen = {str(at): (-1, -2) if it is None else (it.generation, it.offset) for at, it in known.items()}
        written = sum(it.offset + 1 for it in known.values() if it is not None)
        topics, shares = sorted({at.topic for at in partitions}), self._tasks(written)
        parts = [CountPart([topic], HeadShare(number, shares)) for topic in topics for number in range(shares)]
        buckets = await store.tags.views.buckets(self._tag) if is_first else ()
        parts += [CountPart(topics, None, buckets[number::shares]) for number in range(min(shares, len(buckets)))]
        return seen, parts

    def _tasks(self, written: int) -> int:
        """Return the number of tasks for topics with this number of records: Spark's setting, or fewer for little."""
        configured = int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1)
        return max(1, min(configured, -(-written // _RECORDS_OF_TASK)))

    def _settle(self, fill: TagFill, places: Mapping[str, PlacesOfTopic]) -> None:
        """Settle all journals that have rows under the tag."""
        from headrace.pipeline.audits.journal_frames import head_rows, shuffled, view_rows

        buckets, is_redacted, written = run(self._settled(places))
        if not buckets:
            return
        tasks = self._tasks(written)
        rows = view_rows(self._spark, self._endpoints, scan_of_buckets([(self._tag, buckets)], tasks))
        if is_redacted:
            rows = rows.unionByName(head_rows(self._spark, self._endpoints, sorted(places), shares=tasks))
        work = TagSettling(self._endpoints, TagCounting(self._tag, fill.id, self._choose, {}))
        tally = tally_of(shuffled(rows, tasks=tasks).mapInArrow(work, OUTCOME_COLUMNS))
        tally.check(f"giving tag {self._tag!r} to")

    async def _settled(self, places: Mapping[str, PlacesOfTopic]) -> tuple[Sequence[int], bool, int]:
        """Return the buckets of the tag, whether it is redacted, and about how many records the topics have had."""
        store = await store_of(self._endpoints)
        facts = await TagRegistry(store, self._endpoints.settings_of_tags()).open()
        written = sum(max(0, last + 1) for of in places.values() for last in of.offsets.values())
        return await store.tags.views.buckets(self._tag), self._tag in facts.redact, written


def _offsets(places: Mapping[str, PlacesOfTopic]) -> dict[TopicPartition, int]:
    """Return the last offsets that replication must reach, by partition."""
    live = {topic: of.offsets for topic, of in places.items() if not of.is_gone}
    return {TopicPartition(topic, p): last for topic, of in live.items() for p, last in of.items() if last >= 0}


def _packed(choose: Chooser) -> str:
    from pyspark.cloudpickle import dumps

    return base64.b64encode(dumps(choose)).decode()
