"""Audit of views by tag: rows that were read with those of all other journals are judged, journal by journal."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.config import TagSettings
from headrace.errors import BadArgument
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.audits.journals import KeyLook
from headrace.pipeline.audits.tag_judge import TagCase, TagVerdict, judge_tags
from headrace.pipeline.audits.windows import AuditWindow
from headrace.protocol import Entry
from headrace.store import Place, Store, TagNumber, TagRow, tag_time_of, timeuuid
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

__all__ = ["TagLooks", "ViewScan", "open_tag_looks", "scan_of_buckets", "view_scan_of"]

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


class ViewScan(NamedTuple):
    """Views to read: the buckets of each part, as tag and start; and the topics that count, by number.

    Without `topics` the rows of all topics count, by the topic that they name.
    """

    parts: Sequence[Sequence[tuple[str, int]]]
    topics: Mapping[int, str] | None = None


async def view_scan_of(
    store: Store, settings: TagSettings, topics: Collection[str], *, first_ms: int, parts: int
) -> ViewScan | None:
    """Return a scan of the views of topics, from a log time on, in this number of parts; None if there are no views."""
    stored = await store.settings.get(REGISTRY_KEY)
    if stored is None or decode_registry(stored).use is not TagUse.ON:
        return None
    registry = TagRegistry(store, settings.model_copy(update={"enabled": True}))
    facts = await registry.open()
    numbers = {entry.number: topic for topic, entry in facts.topics.items() if topic in topics}
    if not numbers:
        return None
    views, first_ms = store.tags.views, registry.bucket.start_of(first_ms)
    return scan_of_buckets(
        [(tag, await views.buckets(tag, first_ms=first_ms)) for tag in await views.tags()], parts, numbers
    )


def scan_of_buckets(
    buckets: Iterable[tuple[str, Sequence[int]]], parts: int, topics: Mapping[int, str] | None = None
) -> ViewScan:
    """Divide the buckets of tags into parts, so that neighbours, which are about as large, are in different parts."""
    pairs = [(tag, bucket_ms) for tag, of_tag in buckets for bucket_ms in of_tag]
    return ViewScan([pairs[number::parts] for number in range(min(parts, len(pairs)))], topics)


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
        self,
        window: AuditWindow,
        looks: Sequence[KeyLook],
        by_id: Mapping[str, Sequence[Entry]],
        rows: MutableMapping[str, Sequence[TagRow]],
    ) -> dict[str, TagVerdict]:
        """Return verdicts on the views of journals, by id; only of journals that have a verdict themselves.

        `rows` are their rows in the views, which were read with many others, some time ago. Those that seem wrong are
        read again, one by one, before they are judged, and replaced there.
        """
        is_whole = _is_whole(window)
        judged = [look for look in looks if look.verdict is not None and (is_whole or by_id[look.id])]
        verdicts = await self._judge_all(window, judged, rows)
        wrong = [look for look in judged if verdicts[look.id].findings]
        for look in wrong:
            rows[look.id] = await self._read_again(window, look.id, rows[look.id], verdicts[look.id].doubtful)
        verdicts |= await self._judge_all(window, wrong, rows)
        return verdicts | {look.id: await self._likeliest(window, look, rows, verdicts[look.id]) for look in wrong}

    async def _likeliest(
        self, window: AuditWindow, look: KeyLook, rows: Mapping[str, Sequence[TagRow]], verdict: TagVerdict
    ) -> TagVerdict:
        """Return the verdict with the fewest findings, from the states before the window that are as likely.

        A state that leaves the last number of a tag without a row and without a finding does not explain the views.
        """
        if not verdict.findings:
            return verdict
        numbers = (await self._numbers([look.id]))[look.id]
        lost = {tag for tag, known in numbers.items() if not _has_row(rows[look.id], known)} - self.trimmed.keys()

        def cost(of: TagVerdict) -> tuple[int, int]:
            return len(lost - {finding.tag for finding in of.findings}), len(of.findings)

        others = [(await self._judge_all(window, [other], rows))[look.id] for other in look.others()]
        return min([verdict, *others], key=cost)

    async def _judge_all(
        self, window: AuditWindow, looks: Sequence[KeyLook], rows: Mapping[str, Sequence[TagRow]]
    ) -> dict[str, TagVerdict]:
        numbers = await self._numbers([look.id for look in looks if _is_tagged(look)])
        end = window.home.end
        if any(number.offset >= end for of_id in numbers.values() for number in of_id.values()):
            end = (await self.log.bounds(window.at)).end  # the log has grown since, or a number was written by hand
        return {look.id: self._judge(window, look, rows[look.id], numbers.get(look.id, {}), end) for look in looks}

    async def _read_again(
        self, window: AuditWindow, id_: str, rows: Sequence[TagRow], doubtful: Iterable[TagRow]
    ) -> list[TagRow]:
        """Return a journal's rows, with the doubtful ones as they are now."""
        places = {(row.tag, row.bucket_ms, row.timestamp) for row in doubtful if _is_of_log(row)}
        fresh = [row for row in rows if (row.tag, row.bucket_ms, row.timestamp) not in places]
        for tag, bucket_ms, timestamp in sorted(places):
            time = tag_time_of(timestamp)
            async for page in self.store.tags.views.read(tag, bucket_ms, first=time, last=time):
                fresh += [row for row in page if row.pid == id_ and self._is_ours(window, row)]
        return fresh

    async def mark(self, at: TopicPartition) -> Place:
        """Write a Mark, wait until replication has passed it, and return its place, which a repair writes at."""
        return await TagRepair(self.log, self.store, self.settings).mark(at)

    async def repair_journal(self, id_: str, verdict: TagVerdict, *, at: Place) -> None:
        """Repair the rows and numbers of a journal."""
        repair = TagRepair(self.log, self.store, self.settings)
        await repair.repair_journal(self.numbering.topic, id_, verdict.right, verdict.wrong, verdict.numbers, at=at)

    async def unreadable(
        self, window: AuditWindow, tags: Mapping[str, Collection[str]], rows: Mapping[str, Sequence[TagRow]]
    ) -> set[tuple[str, str]]:
        """Go through the rows as a query does, and return each (id, tag) whose events a query would not all return."""
        numbers = await self._numbers(sorted(tags))
        return {
            (id_, tag)
            for id_, of_id in tags.items()
            for tag in of_id
            if not self._is_in_sequence(window, id_, tag, rows[id_], numbers[id_].get(tag))
        }

    def _is_in_sequence(
        self, window: AuditWindow, id_: str, tag: str, rows: Sequence[TagRow], known: TagNumber | None
    ) -> bool:
        """Return True if the replicated rows of a journal are numbered consecutively and in order."""
        sequences = Sequences(from_start=tag not in self.trimmed)
        if tag not in self.trimmed and known is not None:
            sequences.expect({(self.numbering.topic, id_): known.first})
        key_window = window.of_key(id_)
        asked = (row for row in rows if row.tag == tag and not is_trimmed(self.trimmed, row))
        replicated = [row for row in asked if not key_window.is_ahead(row.place)]
        replicated.sort(key=lambda row: (row.bucket_ms, tag_time_of(row.timestamp), row.number))
        return all(sequences.follows(tagged_row(row)) for row in replicated)

    def _judge(
        self, window: AuditWindow, look: KeyLook, rows: Sequence[TagRow], numbers: Mapping[str, TagNumber], end: int
    ) -> TagVerdict:
        if look.verdict is None:
            raise AssertionError("only journals with a verdict are judged here")
        return judge_tags(
            TagCase(
                at=window.at,
                id=look.id,
                window=look.case.window if look.case is not None else window.of_key(look.id),
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


def _has_row(rows: Iterable[TagRow], number: TagNumber) -> bool:
    """Return True if the last event that was numbered under a tag has its row there."""
    return any((row.tag, row.number, row.place) == (number.tag, number.number, number.place) for row in rows)


def _is_whole(window: AuditWindow) -> bool:
    """Return True if the log goes back to its beginning, so that every row can be judged."""
    return all(stretch.start == 0 for stretch in window.stretches.values())


def _is_of_log(row: TagRow) -> bool:
    """Return True if a row can be read again by its time; a row that was written by hand may have an impossible one."""
    try:
        return timeuuid(tag_time_of(row.timestamp)) == row.timestamp
    except BadArgument:
        return False


def _is_tagged(look: KeyLook) -> bool:
    return look.verdict is not None and bool(look.verdict.fold.tagged)
