"""The Spark data source of whole journals: the events of the store and of the log's head that are not deleted.

A task reads the events of all journals of a partition as Arrow columns, each once. The head of the log is read first,
without values. Then the heads of the store are read a page at a time, with each journal's rows; the log's actions are
folded into them, as in a journal's own read. The values of appends that are not deleted are read at the end, in one
pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition

from headrace.errors import JournalHeld
from headrace.log import Log
from headrace.observe import get_logger
from headrace.pipeline.spark.process import TIME, blocking_iterator, log_of, micros, store_of
from headrace.pipeline.tables.parts import JournalPart, SelectedReader, check_layout
from headrace.pipeline.tables.scans import Counts, Predicates, ReadOptions
from headrace.pipeline.tables.stored_journals import FoundEvents, HeadValues, JournalHead, StoredJournals, read_head
from headrace.store import EventRow, JournalMeta, Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["JOURNAL_SCHEMA", "HeadraceJournalSource"]

_logger = get_logger(__name__)

# In a session with spark.sql.timestampType=TIMESTAMP_NTZ, `timestamp` would be a type without a zone.
JOURNAL_SCHEMA = (
    "topic string, key string, seq_nr bigint, payload_type string, payload binary, tags array<string>, "
    "metadata string, headers map<string,string>, timestamp timestamp_ltz, partition int, offset bigint, "
    "generation int, origin string, version string, log_time timestamp_ltz, record_id string"
)

_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("seq_nr", pa.int64()),
        ("payload_type", pa.string()),
        ("payload", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("metadata", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("timestamp", TIME),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("generation", pa.int32()),
        ("origin", pa.string()),
        ("version", pa.string()),
        ("log_time", TIME),
        ("record_id", pa.string()),
    ]
)
_ROWS_AT_MOST = 2000
_BYTES_AT_MOST = 4 * 1024 * 1024


class _EventBatch:
    """Events of one topic, collected until a batch is full."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._rows: list[tuple[str, EventRow]] = []
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the batch should be taken now."""
        return len(self._rows) >= _ROWS_AT_MOST or self._size_bytes >= _BYTES_AT_MOST

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, id_: str, row: EventRow) -> None:
        """Add an event."""
        self._rows.append((id_, row))
        self._size_bytes += len(row.payload or b"")

    def take(self) -> pa.RecordBatch:
        """Return the collected events, and start an empty batch."""
        keys = [id_ for id_, _ in self._rows]
        rows = [row for _, row in self._rows]
        self._rows, self._size_bytes = [], 0
        return pa.RecordBatch.from_arrays(_arrays(self._topic, keys, rows), schema=_ARROW)


def _arrays(topic: str, keys: list[str], rows: list[EventRow]) -> list[pa.Array]:
    columns: Mapping[str, list[Any]] = {
        "topic": [topic] * len(rows),
        "key": keys,
        "seq_nr": [row.seq_nr for row in rows],
        "payload_type": [row.payload_type for row in rows],
        "payload": [row.payload for row in rows],
        "tags": [row.tags for row in rows],
        "metadata": [row.metadata for row in rows],
        "headers": [list(row.headers.items()) for row in rows],
        "timestamp": [micros(row.timestamp_ms) for row in rows],
        "partition": [row.partition for row in rows],
        "offset": [row.offset for row in rows],
        "generation": [row.generation for row in rows],
        "origin": [row.origin for row in rows],
        "version": [row.version for row in rows],
        "log_time": [micros(row.log_time_ms) for row in rows],
        "record_id": [str(row.record_id) for row in rows],
    }
    return [pa.array(columns[field.name], field.type) for field in _ARROW]


_JOURNALS_AT_ONCE = 16
_METAS_PAGE = 500


class _JournalsReader:
    """Reads the journals of one part."""

    def __init__(
        self,
        log: Log,
        store: Store,
        part: JournalPart,
        predicates: Predicates,
        read_options: ReadOptions,
        counts: Counts,
    ) -> None:
        self._log = log
        self._store = store
        self._layout = part.layout
        self._part = part
        self._predicates = predicates
        self._read_options = read_options
        self._counts = counts
        self._batch = _EventBatch(self._layout.topic)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the events. Raises JournalHeld, RecordsLost, ReadAgain."""
        head = await read_head(
            self._log,
            self._store.reader,
            self._layout,
            self._part.partition,
            ends=self._part.ends,
            keys=self._predicates.keys,
            counts=self._counts,
        )
        stored = StoredJournals(self._store.reader, self._layout, head, self._predicates, self._read_options.skew_ms)
        values = HeadValues(self._log, self._layout, self._predicates)
        async for found in self._journals(stored, head):
            async for batch in self._of_journal(found, stored, values):
                yield batch
        async for id_, row in self._of_log(values):
            self._add(id_, row)
            if self._batch.is_full:
                yield self._batch.take()
        if len(self._batch):
            yield self._batch.take()

    async def _of_journal(
        self, found: FoundEvents, stored: StoredJournals, values: HeadValues
    ) -> AsyncIterator[pa.RecordBatch]:
        if found.meta is not None and found.meta.held_from is not None:
            self._held(found.id, found.meta.partition, found.meta.held_from, "a record can't be decoded")
            return
        async for rows in stored.rows(found):
            self._counts.rows += len(rows)
            for row in rows:
                self._add(found.id, row)
            if self._batch.is_full:
                yield self._batch.take()
        values.want(found)

    async def _of_log(self, values: HeadValues) -> AsyncIterator[tuple[str, EventRow]]:
        async for record, rows in values.read():
            self._counts.values += 1
            for id_, row in rows:
                yield id_, row
            if record is not None:
                self._held(record.key, record.partition, record.offset, record.reason)

    def _add(self, id_: str, row: EventRow) -> None:
        if self._predicates.has(seq_nr=row.seq_nr, offset=row.offset, timestamp_ms=row.timestamp_ms):
            self._batch.add(id_, row)
            self._counts.given += 1

    def _held(self, id_: str, partition: int, offset: int, reason: str) -> None:
        if self._read_options.held == "raise":
            raise JournalHeld(id_, self._layout.topic, partition, offset, reason)
        _logger.error(
            "a held journal is left out", key=id_, topic=self._layout.topic, partition=partition, offset=offset
        )

    async def _journals(self, stored: StoredJournals, head: JournalHead) -> AsyncIterator[FoundEvents]:
        """Yield every journal: those the store knows, then those only the log knows."""
        async for page in self._metas(stored, head):
            self._counts.metas += len(page)
            for start in range(0, len(page), _JOURNALS_AT_ONCE):
                some = page[start : start + _JOURNALS_AT_ONCE]
                for found in await asyncio.gather(*(stored.find(meta.id, meta) for meta in some)):
                    yield found
        for id_ in list(head.entries):
            yield await stored.find(id_, None)

    async def _metas(self, stored: StoredJournals, head: JournalHead) -> AsyncIterator[Sequence[JournalMeta]]:
        if self._predicates.keys is not None:
            home = self._part.partition
            asked = [key for key in sorted(self._predicates.keys) if self._layout.route(key).partition == home]
        elif stored.has_no_rows:
            asked = sorted(head.entries)
        else:
            async for page in self._all_metas():
                yield page
            return
        for start in range(0, len(asked), _METAS_PAGE):
            yield await self._named(asked[start : start + _METAS_PAGE])

    async def _named(self, ids: Sequence[str]) -> list[JournalMeta]:
        reader, topic = self._store.reader, self._layout.topic
        found = []
        for start in range(0, len(ids), _JOURNALS_AT_ONCE):
            some = ids[start : start + _JOURNALS_AT_ONCE]
            found += await asyncio.gather(*(reader.meta(topic, id_) for id_ in some))
        return [meta for meta in found if meta is not None]

    async def _all_metas(self) -> AsyncIterator[Sequence[JournalMeta]]:
        """Yield the heads of all journals of the partition. In a topic that never grew, the store can list these."""
        layout, home = self._layout, self._part.partition
        if len(layout.generations) == 1:
            async for page in self._store.reader.metas(layout.topic, partition=home, page_size=_METAS_PAGE):
                yield page
            await check_layout(self._store, layout)
            return
        async for page in self._store.reader.metas(layout.topic, page_size=_METAS_PAGE):
            ours = [meta for meta in page if layout.route(meta.id).partition == home]
            if ours:
                yield ours


class HeadraceJournalSource(DataSource):
    """`spark.read.format("headrace_journal")`.

    Options: the endpoints; `selection`; `read_options`; `counts`, a folder for the counts of the tasks.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_journal"

    def schema(self) -> str:
        """Return the columns."""
        return JOURNAL_SCHEMA

    def reader(self, schema: StructType) -> _Reader:
        """Return the reader."""
        return _Reader(self.options)


class _Reader(SelectedReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._read_options = msgspec.json.decode(options["read_options"], type=ReadOptions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part, in a worker."""
        if not isinstance(partition, JournalPart):
            return  # Spark plans an empty part if there is none
        layout = partition.layout
        counts = Counts(layout.topic, partition.partition)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            log, store = await log_of(self._endpoints), await store_of(self._endpoints)
            reader = _JournalsReader(log, store, partition, self._predicates, self._read_options, counts)
            async for batch in reader.batches():
                yield batch

        try:
            yield from blocking_iterator(batches())
        finally:
            counts.write(self._counts)
