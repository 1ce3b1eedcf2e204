"""Work on journals in the tasks of a job: each task gets the sorted rows of its journals, and reports outcomes.

A task never fails. Its error is one of its outcomes, so that the other tasks can finish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import Outcomes
from headrace.pipeline.audits.journal_groups import EVENTS_AT_ONCE, JournalRows, KeyCase, cases_of, chunks, journals_of
from headrace.pipeline.audits.journals import look_at_keys
from headrace.pipeline.audits.log_facts import FactsOfTopic, LogFact
from headrace.pipeline.audits.tag_views import TagLooks, open_tag_looks
from headrace.pipeline.audits.windows import AuditWindow, TopicWindow, reopened_window
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
from headrace.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FirstLook", "JournalWork", "by_partition"]


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
