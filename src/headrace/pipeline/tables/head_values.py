"""The events of appends that only the log holds, read in one pass over their values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from headrace.errors import OffsetOutOfRange, ReadAgain
from headrace.journal import Layout
from headrace.journal.actions import Append
from headrace.journal.decoding import decode_append
from headrace.journal.folding import Entry
from headrace.journal.key_writes import rows_of
from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.pipeline.tables.stored_journals import Found
from headrace.pipeline.tables.wanted import Wanted
from headrace.store import EventRow, JournalMeta

__all__ = ["HeadValues", "Undecodable"]

_RECORDS_AT_ONCE = 1000


class Undecodable(NamedTuple):
    """An append whose value can't be decoded."""

    key: str
    partition: int
    offset: int
    reason: str


class _Living(NamedTuple):
    entry: Entry
    append: Append
    meta: JournalMeta


Events = list[tuple[str, EventRow]]


class HeadValues:
    """Gathers the appends that live, then reads them."""

    def __init__(self, log: Log, layout: Layout, wanted: Wanted) -> None:
        self._log = log
        self._topic = layout.topic
        self._wanted = wanted
        self._living: dict[int, dict[int, _Living]] = {}
        self._broken: set[str] = set()

    def want(self, found: Found) -> None:
        """Take note of a journal's appends, as far as they may be wanted."""
        meta = found.meta
        if meta is None:
            return
        for entry in found.appends:
            append = entry.action
            if isinstance(append, Append) and self._is_wanted(entry, append):
                self._living.setdefault(entry.partition, {})[entry.offset] = _Living(entry, append, meta)

    def _is_wanted(self, entry: Entry, append: Append) -> bool:
        low, high = self._wanted.seq_nr
        is_of_numbers = (low is None or append.last >= low) and (high is None or append.first <= high)
        return is_of_numbers and entry.offset in self._wanted.offset and entry.timestamp_ms in self._wanted.time_ms

    async def read(self) -> AsyncIterator[tuple[Undecodable | None, Events]]:
        """Yield, for each record that was read, its living events, or why it has none."""
        for partition, living in sorted(self._living.items()):
            at = TopicPartition(self._topic, partition)
            batches = self._log.read(at, min(living), max(living) + 1, max_records=_RECORDS_AT_ONCE)
            try:
                async for batch in batches:
                    for record in batch.records:
                        yield self._events(record, living.pop(record.offset, None))
            except OffsetOutOfRange as error:
                raise ReadAgain(self._topic, "records left the log") from error
            if living:
                raise ReadAgain(self._topic, f"offset {min(living)} of {at} is gone")

    def _events(self, record: Record, living: _Living | None) -> tuple[Undecodable | None, Events]:
        if living is None or living.entry.id in self._broken:
            return None, []
        id_ = living.entry.id
        try:
            return None, [(id_, row) for row in _rows(record, living)]
        except ValueError as error:
            self._broken.add(id_)  # nothing behind it counts
            return Undecodable(id_, record.partition, record.offset, str(error)), []


def _rows(record: Record, living: _Living) -> list[EventRow]:
    """Return the rows that replication will write for an append, without those that are deleted."""
    rows = rows_of(living.entry, record, living.meta, decode_append(living.append, record.value))
    return [row for row in rows if row.seq_nr > living.meta.delete_to]
