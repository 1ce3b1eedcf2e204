"""Work on journals in the tasks of a job: each task gets the sorted rows of its journals, and reports outcomes.

The journals come one after the other out of the rows, in chunks that are worked on together. Memory holds one chunk:
about as many events as asked for, but all records of a journal, however long it is.

A task never fails. Its error is one of its outcomes, so that the other tasks can finish.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.pipeline.audits.findings import Outcomes
from headrace.pipeline.audits.journals import look_at_keys
from headrace.pipeline.audits.shuffle import FactsOfTopic, LogFact, RowKind, decode_fact
from headrace.pipeline.audits.tag_views import TagLooks, open_tag_looks
from headrace.pipeline.audits.windows import AuditWindow, TopicWindow, reopened_window
from headrace.pipeline.logs.records import LOG_COLUMNS, records_of_batch
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
from headrace.protocol import Append, Entry
from headrace.store import JournalMeta, Store, TagRow, tag_time_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "EVENTS_AT_ONCE",
    "FirstLook",
    "JournalRows",
    "JournalWork",
    "KeyCase",
    "OpenTopic",
    "by_partition",
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
    that the key belonged to. Without a record, a journal belongs where its head says its last record is, which may have
    been written after the log was read.
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
        of_head = journal.head.partition
        by_partition[of_head if of_head in journal.facts.window.stretches else home.partition] = []
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


class JournalWork(ABC):
    """Works on the journals of a task, for mapInArrow. It is made on the driver, and travels to the tasks."""

    def __init__(
        self, endpoints: Endpoints, windows: Sequence[TopicWindow], *, events_at_once: int = EVENTS_AT_ONCE
    ) -> None:
        self.endpoints = endpoints
        self.outcomes = Outcomes()
        self._windows = {window.layout.topic: window for window in windows}
        self._events_at_once = events_at_once

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the outcomes, as they come, and the counts at the end."""
        topic = ", ".join(self._windows)
        try:
            for chunk in chunks(journals_of(batches, self._open_topic), events_at_once=self._events_at_once):
                topic = chunk[-1].facts.window.layout.topic
                run(self._work_on(chunk))
                yield from self.outcomes.take()
        except Exception as error:
            self.outcomes.failed(topic, one_line(error))
        yield from self.outcomes.take_counts()

    @abstractmethod
    async def work(self, log: Log, store: Store, journals: Sequence[JournalRows]) -> None:
        """Work on some journals of one topic, and report to `outcomes`."""

    @abstractmethod
    async def opened(self, log: Log, store: Store, window: TopicWindow) -> None:
        """Prepare for the journals of a topic, of which the facts have come."""

    async def _work_on(self, chunk: Sequence[JournalRows]) -> None:
        log, store = await log_of(self.endpoints), await store_of(self.endpoints)
        by_topic: dict[str, list[JournalRows]] = {}
        for journal in chunk:
            by_topic.setdefault(journal.facts.window.layout.topic, []).append(journal)
        for journals in by_topic.values():
            await self.work(log, store, journals)

    def _open_topic(self, topic: str, noted: Mapping[int, Sequence[LogFact]]) -> FactsOfTopic:
        facts = FactsOfTopic(run(self._opened(self._windows[topic])), noted)
        for partition, stretch in facts.window.stretches.items():
            read = facts.records.get(partition, 0)
            self.outcomes.count(TopicPartition(topic, partition), first=stretch.start, read=read)
        return facts

    async def _opened(self, window: TopicWindow) -> TopicWindow:
        log, store = await log_of(self.endpoints), await store_of(self.endpoints)
        window = await reopened_window(log, window)
        await self.opened(log, store, window)
        return window


def by_partition(cases: Iterable[KeyCase]) -> Iterator[tuple[AuditWindow, list[KeyCase]]]:
    """Yield the cases of each partition, with the window that they have in common."""
    found: dict[TopicPartition, list[KeyCase]] = {}
    for case in cases:
        found.setdefault(case.at, []).append(case)
    for at, of_partition in found.items():
        yield of_partition[0].facts.window.of_partition(at.partition), of_partition


class FirstLook(JournalWork):
    """The first look of an audit: journals that differ from the log are suspects.

    Replication may have been changing them since their rows were read, so they are looked at again, closely.
    """

    def __init__(
        self, endpoints: Endpoints, windows: Sequence[TopicWindow], *, events_at_once: int = EVENTS_AT_ONCE
    ) -> None:
        super().__init__(endpoints, windows, events_at_once=events_at_once)
        self._marker_ttl_s = endpoints.settings_of_store().marker_ttl_s
        self._tags: dict[str, TagLooks | None] = {}

    async def opened(self, log: Log, store: Store, window: TopicWindow) -> None:
        """Open the views by tag."""
        topic = window.layout.topic
        self._tags[topic] = await open_tag_looks(log, store, self.endpoints.settings_of_tags(), topic)

    async def work(self, log: Log, store: Store, journals: Sequence[JournalRows]) -> None:
        """Look at some journals."""
        for window, cases in by_partition(case for journal in journals for case in cases_of(journal)):
            await self._look(store, window, cases)

    async def _look(self, store: Store, window: AuditWindow, cases: Sequence[KeyCase]) -> None:
        by_id = {case.id: case.entries for case in cases}
        views_only = {case.id for case in cases if case.is_views_only}
        heads = {case.id: case.head for case in cases}
        looks = await look_at_keys(
            store, window, by_id, marker_ttl_s=self._marker_ttl_s, heads=heads, views_only=views_only
        )
        tags = self._tags[window.at.topic]
        verdicts = {}
        if tags is not None:
            verdicts = await tags.look(window, looks, by_id, {case.id: case.view_rows for case in cases})
        for look in looks:
            verdict = verdicts.get(look.id)
            if not look.is_clean or (verdict is not None and verdict.findings):
                self.outcomes.suspect(window.at, look.id, is_views_only=look.id in views_only)
        self.outcomes.count(
            window.at,
            records=sum(map(len, by_id.values())),
            journals=len(by_id) - len(views_only),
            rows=sum(look.stored.rows for look in looks if look.stored is not None),
        )
