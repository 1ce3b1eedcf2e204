"""The journals of a task, one after the other, out of its sorted rows; and chunks of them that are worked on together.

Memory holds one chunk: about as many events as asked for, but all records of a journal, however long it is.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from headrace.model import Record, TopicPartition
from headrace.pipeline.audits.log_facts import FactsOfTopic, LogFact, decode_fact
from headrace.pipeline.audits.row_columns import RowKind
from headrace.pipeline.logs.records import LOG_COLUMNS, records_of_batch
from headrace.protocol import Append, Entry
from headrace.store import JournalMeta, TagRow, tag_time_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "EVENTS_AT_ONCE",
    "JournalRows",
    "KeyCase",
    "OpenTopic",
    "cases_of",
    "chunks",
    "journals_of",
    "suspect_cases_of",
]

EVENTS_AT_ONCE = 20_000
_EVENTS_OF_APPEND = 1000

OpenTopic: TypeAlias = Callable[[str, Mapping[int, Sequence[LogFact]]], FactsOfTopic]


@dataclass(slots=True)
class JournalRows:
    """All rows of one journal: its entries in the log, its head and its rows in views by tag, if those were read.

    `suspects` are the partitions in which a first look found something; True if only rows of views belong there.
    """

    facts: FactsOfTopic
    id: str
    suspects: dict[int, bool] = field(default_factory=dict)
    head: JournalMeta | None = None
    view_rows: list[TagRow] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def size(self) -> int:
        """About how many events the journal has here."""
        return 1 + len(self.view_rows) + sum(_most_events(entry) for entry in self.entries)


def _most_events(entry: Entry) -> int:
    """Return the most events of an entry. The numbers of an append may have gaps of millions, so it is capped."""
    action = entry.action
    return min(action.last - action.first + 1, _EVENTS_OF_APPEND) if isinstance(action, Append) else 1


def journals_of(batches: Iterable[pa.RecordBatch], open_topic: OpenTopic) -> Iterator[JournalRows]:
    """Yield the journals of sorted rows. `open_topic` gets the facts of a topic before its first journal."""
    of_topic = _TopicRows("", open_topic)
    for batch in batches:
        records = records_of_batch(batch.select(list(LOG_COLUMNS)))
        more = (batch.column(name).to_pylist() for name in ("kind", "stretch", "log_time_ms"))
        for record, kind, stretch, log_time_ms in zip(records, *more, strict=True):
            if record.topic != of_topic.topic:
                yield from of_topic.finished()
                of_topic = _TopicRows(record.topic, open_topic)
            if (done := of_topic.add(record, kind, stretch, log_time_ms)) is not None:
                yield done
    yield from of_topic.finished()


class _TopicRows:
    """The rows of one topic, taken one by one."""

    def __init__(self, topic: str, open_topic: OpenTopic) -> None:
        self.topic = topic
        self._open_topic = open_topic
        self._noted: dict[int, list[LogFact]] = {}
        self._facts: FactsOfTopic | None = None
        self._key: bytes | None = None
        self._journal: JournalRows | None = None

    def add(self, record: Record, kind: int, stretch: int | None, log_time_ms: int | None) -> JournalRows | None:
        """Take a row; returns the journal before it, if the row is the first of another one."""
        if kind == RowKind.FACT:
            self._noted.setdefault(record.partition, []).append(decode_fact(record.value or b""))
            return None
        facts = self._opened()
        done = None
        if record.key != self._key or self._journal is None:
            done = self._journal
            self._key = record.key
            self._journal = JournalRows(facts, (record.key or b"").decode(errors="surrogateescape"))
        journal = self._journal
        if kind == RowKind.SUSPECT:
            journal.suspects[record.partition] = record.value is not None
        elif kind == RowKind.HEAD:
            journal.head = pickle.loads(record.value or b"")  # noqa: S301 - a task of this job made it
        elif kind == RowKind.VIEW_ROW:
            journal.view_rows.append(pickle.loads(record.value or b""))  # noqa: S301
        else:
            entry = facts.of(record.partition).entry(record, first=stretch or 0, log_time_ms=log_time_ms or 0)
            if entry is not None:
                journal.entries.append(entry)
        return done

    def finished(self) -> Iterator[JournalRows]:
        """Yield the last journal. A topic of which there are only facts is opened all the same."""
        if self.topic:
            self._opened()
        if self._journal is not None:
            yield self._journal

    def _opened(self) -> FactsOfTopic:
        if self._facts is None:
            self._facts = self._open_topic(self.topic, self._noted)
        return self._facts


@dataclass(frozen=True, slots=True)
class KeyCase:
    """One journal in the window of one partition. `is_views_only`: only its rows in views by tag belong there."""

    facts: FactsOfTopic
    at: TopicPartition
    id: str
    entries: Sequence[Entry]
    head: JournalMeta | None
    view_rows: Sequence[TagRow]
    is_views_only: bool = False


def cases_of(journal: JournalRows) -> list[KeyCase]:
    """Return the cases of a journal: one, unless foreign producers wrote the same key to several partitions.

    In a topic that never grew, the records of a key count wherever they are. After a growth they count in the partition
    that the key belonged to. Without a record, a journal belongs where its records would go.
    """
    layout = journal.facts.window.layout
    home = layout.route(journal.id)
    if layout.generation > 0:
        ours = [e for e in journal.entries if layout.is_home(e.id, e.generation, TopicPartition(e.topic, e.partition))]
        is_views_only = not ours and journal.head is None
        if is_views_only and not journal.view_rows:
            return []  # its records are not a journal's, or strays
        return [KeyCase(journal.facts, home, journal.id, ours, journal.head, journal.view_rows, is_views_only)]
    by_partition: dict[int, list[Entry]] = {}
    for entry in journal.entries:
        by_partition.setdefault(entry.partition, []).append(entry)
    if not by_partition and journal.head is not None:
        by_partition[home.partition] = []
    return [
        KeyCase(
            journal.facts,
            TopicPartition(layout.topic, partition),
            journal.id,
            by_partition.get(partition, ()),
            journal.head,
            rows,
            is_views_only=partition not in by_partition,
        )
        for partition, rows in _views_by_partition(journal, by_partition).items()
        if partition in journal.facts.window.stretches
    ]


def suspect_cases_of(journal: JournalRows) -> list[KeyCase]:
    """Return the cases of a journal in the partitions where it was suspect."""
    layout = journal.facts.window.layout
    views = _views_by_partition(journal, ())
    return [
        KeyCase(
            journal.facts,
            TopicPartition(layout.topic, partition),
            journal.id,
            entries := [e for e in journal.entries if layout.generation > 0 or e.partition == partition],
            None,
            journal.view_rows if layout.generation > 0 else views.get(partition, ()),
            is_views_only=is_views_only and not entries,
        )
        for partition, is_views_only in journal.suspects.items()
        if partition in journal.facts.window.stretches
    ]


def _views_by_partition(journal: JournalRows, partitions: Iterable[int]) -> dict[int, list[TagRow]]:
    found: dict[int, list[TagRow]] = {partition: [] for partition in partitions}
    for row in journal.view_rows:
        found.setdefault(tag_time_of(row.timestamp).partition, []).append(row)
    return found


def chunks(journals: Iterable[JournalRows], *, events_at_once: int = EVENTS_AT_ONCE) -> Iterator[list[JournalRows]]:
    """Yield lists of journals that together have about as many events as asked for."""
    some: list[JournalRows] = []
    size = 0
    for journal in journals:
        of_journal = journal.size
        if some and size + of_journal > events_at_once:
            yield some
            some, size = [], 0
        some.append(journal)
        size += of_journal
    if some:
        yield some
