"""How a table of journals is cut into tasks, and what the readers of the store's tables share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.errors import ReadAgain, WrongPartitionCount
from headrace.journal import Layout, Topology
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.logs.plan import Selection, start_of, topics_of
from headrace.pipeline.spark.places import PLACES_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.pipeline.tables.predicates import EVERYTHING, Wanted, wanted_of
from headrace.pipeline.tables.scans import asked_by_all_scans
from headrace.store import Store

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["JournalPart", "SelectedReader", "journal_parts", "stable_layout"]

_ATTEMPTS = 5


class JournalPart(InputPartition):
    """The journals of one partition. `ends` has the log's end (exclusive) of every partition of the topic."""

    def __init__(self, layout: Layout, partition: int, ends: Mapping[int, int]) -> None:
        super().__init__((layout.topic, partition))
        self.packed = msgspec.json.encode(layout)
        self.partition = partition
        self.ends = dict(ends)

    @property
    def layout(self) -> Layout:
        """The topic's layout."""
        return msgspec.json.decode(self.packed, type=Layout)


async def journal_parts(log: Log, store: Store, selection: Selection, wanted: Wanted) -> list[JournalPart]:
    """Look at the topics. Raises UnknownTopic, RecordsLost, OffsetOutOfRange, WrongPartitionCount."""
    parts = []
    for topic in await topics_of(log, store, selection):
        if wanted.topics is None or topic in wanted.topics:
            layout, ends = await stable_layout(log, store, topic)
            parts += [JournalPart(layout, partition, ends) for partition in _partitions(layout, wanted)]
    return parts


def _partitions(layout: Layout, wanted: Wanted) -> list[int]:
    """Return the partitions that can hold what is wanted. A moved key's events say where it was, not where it is."""
    found = set(range(layout.partitions))
    if wanted.keys is not None:
        found &= {layout.route(key).partition for key in wanted.keys}
    if wanted.partitions is not None and len(layout.generations) == 1:
        found &= wanted.partitions
    return sorted(found)


async def stable_layout(log: Log, store: Store, topic: str) -> tuple[Layout, dict[int, int]]:
    """Return a layout and the ends of its partitions; the layout still held when the ends were read."""
    topology = Topology(log, store.settings, topic, is_reader=True)
    layout = await topology.refresh()
    for _ in range(_ATTEMPTS):
        ends = {partition: await _end(log, store, layout, partition) for partition in range(layout.partitions)}
        before, layout = layout, await topology.refresh()
        if layout == before:
            await _check_partitions(log, layout)
            return layout, ends
    raise ReadAgain(topic, "the topic kept growing")


async def _end(log: Log, store: Store, layout: Layout, partition: int) -> int:
    """Return the end, open transactions included: what was acknowledged behind one must be seen as well."""
    at = TopicPartition(layout.topic, partition)
    bounds = await log.bounds(at)
    start_of(layout, at, bounds, await store.reader.replicated(at))  # raises for what log and store can't give
    return bounds.high_watermark


async def _check_partitions(log: Log, layout: Layout) -> None:
    actual = (await log.admin.describe(layout.topic)).partitions
    if actual > layout.partitions and layout.growing_to is None:
        raise WrongPartitionCount(layout.topic, actual, layout.partitions)


class SelectedReader(DataSourceReader):
    """Reads what a selection of journals holds, one task for each partition of their topics."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._places = Endpoints.unpack(options[PLACES_OPTION])
        self._selection = msgspec.json.decode(options["selection"], type=Selection)
        self._counts = options.get("counts")
        self._frame = options["frame"]
        self._wanted = EVERYTHING

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take note of what is wanted. All filters go back: Spark looks at each row again."""
        self._wanted = asked_by_all_scans(self._frame, wanted_of(filters))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return a part for each partition that can hold what is wanted."""

        async def look() -> list[JournalPart]:
            log, store = await log_of(self._places), await store_of(self._places)
            return await journal_parts(log, store, self._selection, self._wanted)

        return run(look())
