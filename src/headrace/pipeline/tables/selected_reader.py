"""What the readers of the store's tables share: where things are, which topics, and which rows are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.pipeline.logs.planning import Selection
from headrace.pipeline.spark.opened import log_of, run, store_of
from headrace.pipeline.spark.places import PLACES_OPTION, Places
from headrace.pipeline.tables.frame_scans import asked_by_all_scans
from headrace.pipeline.tables.journal_parts import JournalPart, journal_parts
from headrace.pipeline.tables.wanted import EVERYTHING, wanted_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["SelectedReader"]


class SelectedReader(DataSourceReader):
    """Reads what a selection of journals holds, one task for each partition of their topics."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._places = Places.unpack(options[PLACES_OPTION])
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
