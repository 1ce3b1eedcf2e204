"""Parts of a table of journals, one for each task, and the base of the readers of the store's tables.

All parts of a topic share one layout and the ends of the log at the time of planning: everything that was acknowledged
before that is below these ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.errors import ReadAgain, WrongPartitionCount
from headrace.journal import Layout, Topology, layout_key
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.logs.plan import Selection, look_at_partition, topics_of
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, run, side_by_side, store_of
from headrace.pipeline.tables.scans import EVERYTHING, Predicates, predicates_of, predicates_of_all_scans
from headrace.store import Store

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["JournalPart", "SelectedReader", "check_layout", "journal_parts", "stable_layout"]

_ATTEMPTS = 5


class JournalPart(InputPartition):
    """The journals of one partition. `ends` holds the log's end (exclusive) of every partition of the topic."""

    def __init__(self, layout: Layout, partition: int, ends: Mapping[int, int]) -> None:
        super().__init__((layout.topic, partition))
        self.packed = msgspec.json.encode(layout)
        self.partition = partition
        self.ends = dict(ends)

    @property
    def layout(self) -> Layout:
        """The topic's layout."""
        return msgspec.json.decode(self.packed, type=Layout)


async def journal_parts(log: Log, store: Store, selection: Selection, predicates: Predicates) -> list[JournalPart]:
    """Return the parts of the topics. Raises UnknownTopic, RecordsLost, OffsetOutOfRange, WrongPartitionCount."""
    parts = []
    for topic in await topics_of(log, store, selection):
        if predicates.topics is None or topic in predicates.topics:
            layout, ends = await stable_layout(log, store, topic)
            parts += [JournalPart(layout, partition, ends) for partition in _partitions(layout, predicates)]
    return parts


def _partitions(layout: Layout, predicates: Predicates) -> list[int]:
    """Return the partitions that can hold matching events.

    In a topic that grew, the partition of an event is where its key was then, so it can't be used to skip parts.
    """
    found = set(range(layout.partitions))
    if predicates.keys is not None:
        found &= {layout.route(key).partition for key in predicates.keys}
    if predicates.partitions is not None and len(layout.generations) == 1:
        found &= predicates.partitions
    return sorted(found)


async def stable_layout(log: Log, store: Store, topic: str) -> tuple[Layout, dict[int, int]]:
    """Return the layout and the ends of its partitions. The layout was still the same after the ends were read."""
    topology = Topology(log, store.settings, topic, is_reader=True)
    layout = await topology.refresh()
    for _ in range(_ATTEMPTS):
        ends = dict(await side_by_side(_end(log, store, layout, number) for number in range(layout.partitions)))
        before, layout = layout, await topology.refresh()
        if layout == before:
            await _check_partitions(log, layout)
            return layout, ends
    raise ReadAgain(topic, "the topic kept growing")


async def _end(log: Log, store: Store, layout: Layout, partition: int) -> tuple[int, int]:
    """Return a partition and its end behind open transactions: acknowledged records may lie behind one."""
    look = await look_at_partition(log, store, layout, TopicPartition(layout.topic, partition))
    return partition, look.bounds.high_watermark


async def _check_partitions(log: Log, layout: Layout) -> None:
    actual = (await log.admin.describe(layout.topic)).partitions
    if actual > layout.partitions and layout.growing_to is None:
        raise WrongPartitionCount(layout.topic, actual, layout.partitions)


async def check_layout(store: Store, layout: Layout) -> None:
    """Raise ReadAgain if keys of a topic that had never grown may have moved while their heads were listed."""
    now = await store.settings.get(layout_key(layout.topic))
    if now is not None and len(msgspec.json.decode(now, type=Layout).generations) > 1:
        raise ReadAgain(layout.topic, "the topic grew")


class SelectedReader(DataSourceReader):
    """Reads a selection of journals, with one task for each partition of their topics."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._endpoints = Endpoints.unpack(options[ENDPOINTS_OPTION])
        self._selection = msgspec.json.decode(options["selection"], type=Selection)
        self._counts = options.get("counts")
        self._frame = options["frame"]
        self._predicates = EVERYTHING

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep the predicates of the filters. All filters are returned, so Spark checks every row again."""
        self._predicates = predicates_of_all_scans(self._frame, predicates_of(filters))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return a part for each partition that can hold matching events."""

        async def look() -> list[JournalPart]:
            log, store = await log_of(self._endpoints), await store_of(self._endpoints)
            return await journal_parts(log, store, self._selection, self._predicates)

        return run(look())
