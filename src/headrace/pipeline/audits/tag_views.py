"""Audit of views by tag: the rows of many journals are read in one pass over the buckets of the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.config import TagSettings
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.audits.journals import KeyLook
from headrace.pipeline.audits.tag_judge import TagCase, TagVerdict, judge_tags
from headrace.pipeline.audits.windows import AuditWindow
from headrace.protocol import Entry
from headrace.store import Place, Store, TagNumber, TagRow, tag_time_of
from headrace.tags import (
    REGISTRY_KEY,
    Numbering,
    Sequences,
    TagFacts,
    TagRegistry,
    TagRepair,
    TagUse,
    Trimmed,
    all_trimmed,
    decode_registry,
    is_trimmed,
    tagged_row,
)

__all__ = ["TagLooks", "open_tag_looks"]

_AT_ONCE = 32


async def open_tag_looks(log: Log, store: Store, settings: TagSettings, topic: str) -> TagLooks | None:
    """Return the audit of a topic's views by tag; None if the store has none. Raises TagViewsLost.

    The store decides, even if this process has disabled tags.
    """
    stored = await store.settings.get(REGISTRY_KEY)
    if stored is None or decode_registry(stored).use is not TagUse.ON:
        return None
    settings = settings.model_copy(update={"enabled": True})
    registry = TagRegistry(store, settings)
    facts = await registry.open()
    if topic not in facts.topics:
        return None
    numbering = Numbering(topic, facts.topics[topic].number, registry.bucket)
    return TagLooks(log, store, settings, facts, numbering, await all_trimmed(store.settings))


@dataclass(frozen=True, slots=True)
class TagLooks:
    """Audits the views by tag of one topic."""

    log: Log
    store: Store
    settings: TagSettings
    facts: TagFacts
    numbering: Numbering
    trimmed: Mapping[str, Trimmed]

    async def look(
        self, window: AuditWindow, looks: Sequence[KeyLook], by_id: Mapping[str, Sequence[Entry]]
    ) -> dict[str, TagVerdict]:
        """Return verdicts on the views of journals, by id; only of journals that have a verdict themselves."""
        is_whole = _is_whole(window)
        judged = {look.id: look for look in looks if look.verdict is not None and (is_whole or by_id[look.id])}
        if not judged:
            return {}
        first_ms = 0 if is_whole else self._first_bucket_ms(entry for id_ in judged for entry in by_id[id_])
        rows: dict[str, list[TagRow]] = {id_: [] for id_ in judged}
        async for row in self._rows(window, first_ms, rows.__contains__):
            rows[row.pid].append(row)
        end = (await self.log.bounds(window.at)).end
        numbers = await self._numbers([id_ for id_, look in judged.items() if _is_tagged(look)])
        return {id_: self._judge(window, look, rows[id_], numbers.get(id_, {}), end) for id_, look in judged.items()}

    async def ids_without_records(self, window: AuditWindow, is_known: Callable[[str], bool]) -> list[str]:
        """Return the ids that have rows in the views but no record in the window."""
        if not _is_whole(window):
            return []
        return sorted({row.pid async for row in self._rows(window, 0, lambda id_: not is_known(id_))})

    async def mark(self, at: TopicPartition) -> Place:
        """Write a Mark, wait until replication has passed it, and return its place, which a repair writes at."""
        return await TagRepair(self.log, self.store, self.settings).mark(at)

    async def repair_journal(self, id_: str, verdict: TagVerdict, *, at: Place) -> None:
        """Repair the rows and numbers of a journal."""
        repair = TagRepair(self.log, self.store, self.settings)
        await repair.repair_journal(self.numbering.topic, id_, verdict.right, verdict.wrong, verdict.numbers, at=at)

    async def unreadable(self, window: AuditWindow, tags: Mapping[str, Collection[str]]) -> set[tuple[str, str]]:
        """Read tags as a query does, and return each (id, tag) whose events a query would not all return."""
        return {
            (id_, tag)
            for tag in sorted({tag for of_id in tags.values() for tag in of_id})
            for id_ in await self._out_of_sequence(window, tag, {id_ for id_, of_id in tags.items() if tag in of_id})
        }

    async def _out_of_sequence(self, window: AuditWindow, tag: str, ids: Collection[str]) -> set[str]:
        """Return the journals whose replicated rows are not numbered consecutively and in order."""
        is_trimmed_tag = tag in self.trimmed
        sequences, found = Sequences(from_start=not is_trimmed_tag), set()
        views, topic = self.store.tags.views, self.numbering.topic
        numbers = await self._numbers(sorted(ids))
        if not is_trimmed_tag:
            sequences.expect({(topic, id_): of[tag].first for id_, of in numbers.items() if tag in of})
        for bucket_ms in await views.buckets(tag):
            async for page in views.read(tag, bucket_ms):
                for row in page:
                    is_asked = row.pid in ids and self._is_ours(window, row)
                    if not is_asked or is_trimmed(self.trimmed, row) or window.of_key(row.pid).is_ahead(row.place):
                        continue
                    if not sequences.follows(tagged_row(row)):
                        found.add(row.pid)
        return found

    def _first_bucket_ms(self, entries: Iterable[Entry]) -> int:
        return self.numbering.bucket.start_of(min((entry.log_time_ms for entry in entries), default=0))

    def _judge(
        self, window: AuditWindow, look: KeyLook, rows: Sequence[TagRow], numbers: Mapping[str, TagNumber], end: int
    ) -> TagVerdict:
        if look.verdict is None:
            raise AssertionError("only journals with a verdict are judged here")
        return judge_tags(
            TagCase(
                at=window.at,
                id=look.id,
                window=window.of_key(look.id),
                fold=look.verdict.fold,
                numbering=self.numbering,
                rows=rows,
                numbers=numbers,
                fills=self.facts.fills,
                redacted=self.facts.redact,
                highest_log_time_ms=window.highest_log_time_ms,
                log_end=end,
                trimmed=self.trimmed,
            )
        )

    async def _rows(self, window: AuditWindow, first_ms: int, wanted: Callable[[str], bool]) -> AsyncIterator[TagRow]:
        """Yield rows of the task's own journals."""
        views = self.store.tags.views
        for tag in await views.tags():
            for bucket_ms in await views.buckets(tag, first_ms=first_ms):
                async for page in views.read(tag, bucket_ms):
                    for row in page:
                        if wanted(row.pid) and self._is_ours(window, row):
                            yield row

    def _is_ours(self, window: AuditWindow, row: TagRow) -> bool:
        time = tag_time_of(row.timestamp)
        if time.topic_number != self.numbering.topic_number:
            return False
        if window.layout.generation == 0:
            return time.partition == window.at.partition
        return window.layout.route(row.pid) == window.at

    async def _numbers(self, ids: Sequence[str]) -> dict[str, Mapping[str, TagNumber]]:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(id_: str) -> Mapping[str, TagNumber]:
            async with limit:
                return await self.store.tags.numbers.of(self.numbering.topic, id_)

        return dict(zip(ids, await asyncio.gather(*(one(id_) for id_ in ids)), strict=True))


def _is_whole(window: AuditWindow) -> bool:
    """Return True if the log goes back to its beginning, so that every row can be judged."""
    return all(stretch.start == 0 for stretch in window.stretches.values())


def _is_tagged(look: KeyLook) -> bool:
    return look.verdict is not None and bool(look.verdict.fold.tagged)
