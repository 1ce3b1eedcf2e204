"""The second look of an audit: at the suspects of the first one, closely, with the window as it is at that moment.

The records of the suspects were read by Spark up to the log's end of then; what was written since is read here. So a
journal is judged with a replicated offset, a head and rows of the same moment, even while replication is at work.

Repair writes again what the log says, and removes what it does not know. Everything is written at its own place, as
replication writes it. That wins over rows written by hand, which carry the time of a wall clock, and loses to later
records of the log. Rows without a place are removed at a place below every record. This can't undo writes by hand that
carry a place as write time; the audit reports them as not repaired.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import Finding, FindingKind
from headrace.pipeline.audits.journal_work import (
    EVENTS_AT_ONCE,
    JournalRows,
    JournalWork,
    KeyCase,
    by_partition,
    suspect_cases_of,
)
from headrace.pipeline.audits.journals import KeyLook, look_at_keys
from headrace.pipeline.audits.judge import BY_HAND, Judgement, Stored, expected_rows
from headrace.pipeline.audits.tag_views import TagLooks, open_tag_looks
from headrace.pipeline.audits.windows import (
    AuditWindow,
    MovingWindow,
    TopicWindow,
    layout_of,
    open_window,
    read_entries,
)
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.protocol import Entry
from headrace.store import EventRow, JournalMeta, Place, RowDeletion, Store, TagRow

__all__ = ["AuditTask", "SecondLook", "repair_journal"]

_LOOKS = 4
_LOOK_AGAIN_S = 0.25


@dataclass(frozen=True, slots=True)
class _CloseLook:
    """A second look at some journals. If `mark` is set, nothing below that place has changed since before the look."""

    window: AuditWindow
    by_id: Mapping[str, Sequence[Entry]]
    looks: Sequence[KeyLook]
    mark: Place | None = None

    @property
    def wrong(self) -> list[KeyLook]:
        """The journals that differ from the log."""
        return [look for look in self.looks if look.verdict is not None and look.findings]


class AuditTask:
    """The close look at the suspects of one partition, which were read up to offset `read_to` (exclusive)."""

    def __init__(
        self,
        endpoints: Endpoints,
        cases: Sequence[KeyCase],
        tags: TagLooks | None,
        *,
        read_to: int,
        repair: bool,
    ) -> None:
        self._at = cases[0].at
        self._facts = cases[0].facts.of(self._at.partition)
        self._entries = {case.id: case.entries for case in cases}
        self._rows: dict[str, Sequence[TagRow]] = {case.id: case.view_rows for case in cases}
        self._views_only = {case.id for case in cases if case.is_views_only}
        self._tags = tags
        self._read_to = read_to
        self._is_repair = repair
        self._marker_ttl_s = endpoints.settings_of_store().marker_ttl_s
        self.busy = 0

    async def findings(self, log: Log, store: Store) -> list[Finding]:
        """Return the findings of all suspects."""
        return await self._look_again(log, store, list(self._entries))

    async def _window(self, log: Log, store: Store) -> AuditWindow:
        return await open_window(log, store, await layout_of(log, store, self._at.topic), self._at)

    async def _look_again(self, log: Log, store: Store, suspects: Collection[str]) -> list[Finding]:
        """Look, up to `_LOOKS` times, until replication is not changing any of the suspects; return findings."""
        findings: list[Finding] = []
        for turn in range(_LOOKS):
            seen = await self._look_closely(log, store, suspects)
            if self._is_repair and self._tags is not None and any(look.has_tag_findings for look in seen.looks):
                # What is written at the Mark's place must include everything below it, so the second look comes after.
                at = await self._tags.mark(self._at)
                seen = dataclasses.replace(await self._look_closely(log, store, suspects), mark=at)
            findings += await self._repaired(store, seen) if self._is_repair else _findings_of(seen.wrong)
            suspects = [look.id for look in seen.looks if look.verdict is None]
            if not suspects or turn == _LOOKS - 1:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        self.busy = len(suspects)
        return findings

    async def _look_closely(self, log: Log, store: Store, suspects: Collection[str]) -> _CloseLook:
        """Look with the window as it is now. A journal that has since moved to another partition is left out."""
        moving = MovingWindow(await self._window(log, store), lambda: self._window(log, store))
        later = await moving.read(lambda window: self._later(log, window, suspects))
        window = moving.window
        here = [id_ for id_ in suspects if window.has_home_of(id_)]
        by_id = {id_: _ours(window, [*self._entries[id_], *later[id_]]) for id_ in here}
        moved = [KeyLook(id_) for id_ in suspects if id_ not in by_id]
        return _CloseLook(window, by_id, [*await self._look(store, window, by_id), *moved])

    async def _later(self, log: Log, window: AuditWindow, suspects: Collection[str]) -> dict[str, list[Entry]]:
        """Return the suspects' entries that were written since the log was read."""
        found: dict[str, list[Entry]] = {id_: [] for id_ in suspects}
        keys = {id_.encode(errors="surrogateescape") for id_ in suspects}
        start = max(self._read_to, window.home.start)
        if start < window.home.end:
            async for entry in read_entries(log, window, start, self._facts.after, keys.__contains__):
                found[entry.id].append(entry)
        return found

    async def _repaired(self, store: Store, seen: _CloseLook) -> list[Finding]:
        """Repair journals. Each finding says whether it is gone and whether queries can read its tag."""
        findings: list[Finding] = []
        for look in seen.wrong:
            if look.stored is None or look.verdict is None:
                continue
            if look.verdict.findings:
                await repair_journal(store, seen.window, look.id, look.stored, look.verdict)
            if self._tags is not None and look.tags is not None and look.has_tag_findings and seen.mark is not None:
                await self._tags.repair_journal(look.id, look.tags, at=seen.mark)
            (after,) = await self._look(store, seen.window, {look.id: seen.by_id[look.id]})
            left = after.findings if after.verdict is not None else look.findings
            names = {_name(finding) for finding in left}
            findings += [
                msgspec.structs.replace(finding, repaired=_name(finding) not in names) for finding in look.findings
            ]
        return await self._checked(seen.window, findings)

    async def _checked(self, window: AuditWindow, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings; those of a tag whose events a query would not return are not repaired."""
        tags: dict[str, set[str]] = {}
        for finding in findings:
            if finding.tag is not None:
                tags.setdefault(finding.id, set()).add(finding.tag)
        if self._tags is None or not tags:
            return list(findings)
        unreadable = await self._tags.unreadable(window, tags, self._rows)
        return [
            msgspec.structs.replace(finding, repaired=False) if (finding.id, finding.tag) in unreadable else finding
            for finding in findings
        ]

    async def _look(self, store: Store, window: AuditWindow, by_id: Mapping[str, Sequence[Entry]]) -> list[KeyLook]:
        views_only = {id_ for id_ in self._views_only if not by_id.get(id_)}
        looks = await look_at_keys(store, window, by_id, marker_ttl_s=self._marker_ttl_s, views_only=views_only)
        if self._tags is None:
            return looks
        of_tags = await self._tags.look(window, looks, by_id, self._rows)
        return [dataclasses.replace(look, tags=of_tags.get(look.id)) for look in looks]


def _ours(window: AuditWindow, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that count: after a growth, those in the partition that their key belonged to."""
    layout = window.layout
    if layout.generation == 0:
        return list(entries)
    return [e for e in entries if layout.is_home(e.id, e.generation, TopicPartition(e.topic, e.partition))]


def _findings_of(wrong: Sequence[KeyLook]) -> list[Finding]:
    return [finding for look in wrong for finding in look.findings]


def _name(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.seq_nr, finding.tag, finding.offset if finding.tag is not None else None


class SecondLook(JournalWork):
    """The second look of an audit, at the suspects alone; with `repair`, what is wrong is corrected."""

    def __init__(
        self,
        endpoints: Endpoints,
        windows: Sequence[TopicWindow],
        *,
        repair: bool,
        events_at_once: int = EVENTS_AT_ONCE,
    ) -> None:
        super().__init__(endpoints, windows, events_at_once=events_at_once)
        self._is_repair = repair
        self._read_to = {at: end for window in windows for at, end in window.ends(with_unreplicated=True).items()}
        self._tags: dict[str, TagLooks | None] = {}

    async def opened(self, log: Log, store: Store, window: TopicWindow) -> None:
        """Open the views by tag."""
        topic = window.layout.topic
        self._tags[topic] = await open_tag_looks(log, store, self.endpoints.settings_of_tags(), topic)

    async def work(self, log: Log, store: Store, journals: Sequence[JournalRows]) -> None:
        """Look at some journals. Those of a partition that a topic made again does not have are left out."""
        for journal in journals:
            for partition in set(journal.suspects) - set(journal.facts.window.stretches):
                self.outcomes.count(TopicPartition(journal.facts.window.layout.topic, partition), busy=1)
        for window, cases in by_partition(case for journal in journals for case in suspect_cases_of(journal)):
            at = window.at
            task = AuditTask(
                self.endpoints, cases, self._tags[at.topic], read_to=self._read_to[at], repair=self._is_repair
            )
            self.outcomes.found(await task.findings(log, store))
            self.outcomes.count(at, busy=task.busy)


_OF_META = (FindingKind.META_MISSING, FindingKind.META_CHANGED)


async def repair_journal(store: Store, window: AuditWindow, id_: str, stored: Stored, verdict: Judgement) -> None:
    """Repair a journal, in the order in which replication writes: rows, the head, removals."""
    topic = window.at.topic
    wrong = {(finding.seq_nr, finding.offset) for finding in verdict.findings if finding.seq_nr is not None}
    rows = [row for row in expected_rows(verdict.fold) if (row.seq_nr, row.offset) in wrong]
    if rows:
        await store.writer.write_rows(topic, id_, rows)
        await store.writer.write_gaps(topic, id_, [gap for piece in verdict.fold.pieces for gap in piece.gaps])
    kinds = {finding.kind for finding in verdict.findings}
    if kinds & set(_OF_META) and verdict.fold.meta is not None and not verdict.is_guess:
        await store.writer.write_meta(verdict.fold.meta)
    elif FindingKind.META_ADDED in kinds and not verdict.is_guess:
        await store.writer.write_meta(_purge_marker(window, id_, stored))
    if FindingKind.ROW_ADDED in kinds:
        await _remove_added(store, topic, id_, stored, verdict)


def _purge_marker(window: AuditWindow, id_: str, stored: Stored) -> JournalMeta:
    """Return a purge marker below every record, to replace a head that no record made. It expires automatically."""
    size = stored.meta.segment_size if stored.meta is not None else 1
    return JournalMeta(
        topic=window.at.topic,
        id=id_,
        generation=BY_HAND.generation,
        partition=window.at.partition,
        offset=BY_HAND.offset,
        seq_nr=0,
        segment_size=max(1, size or 1),
        is_purged=True,
        purged_at=BY_HAND,
    )


async def _remove_added(store: Store, topic: str, id_: str, stored: Stored, verdict: Judgement) -> None:
    """Remove rows that were added by hand, and again those that the journal's deletes and purges had removed."""
    added = {f.seq_nr for f in verdict.findings if f.kind is FindingKind.ROW_ADDED}
    rows: list[EventRow] = [*stored.within, *stored.wrong_before, *stored.ahead]
    segments = sorted({row.segment for row in rows if row.seq_nr in added})
    await store.writer.delete_rows(topic, id_, [RowDeletion(segment, None) for segment in segments], at=BY_HAND)
    for piece in verdict.fold.pieces:
        for deletion, place in piece.deletions:
            await store.writer.delete_rows(topic, id_, [deletion], at=place)
        if piece.purged_at is not None:
            await store.writer.delete_snapshots(topic, id_, at=piece.purged_at)
