"""Comparison of one journal: its records from the log, and its head and rows from the store.

Rows are read from a few segments below the deleted ones up to the segment behind the last one; no reader ever sees a
row that was written by hand further away. Rows from before the window are not kept, so that a long journal takes no
memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from headrace.pipeline.audits.findings import Finding
from headrace.pipeline.audits.judge import JournalCase, Judgement, Stored, claimed_place, equally_likely, judge
from headrace.pipeline.audits.tag_judge import TagVerdict
from headrace.pipeline.audits.windows import AuditWindow, KeyWindow
from headrace.protocol import Append, Entry, Poison, Verdict, fold_key
from headrace.store import DEFAULT_SEGMENT_SIZE, EventRow, JournalMeta, Place, Store, StoreReader, segment_of

__all__ = ["KeyLook", "look", "look_at_key", "look_at_keys"]

_AT_ONCE = 32
_SEGMENTS_BELOW = 50  # as many as one query to Cassandra reads


async def look(
    reader: StoreReader,
    topic: str,
    id_: str,
    window: KeyWindow,
    segment_sizes: Iterable[int],
    last_seq_nr: int,
    *,
    head: JournalMeta | msgspec.UnsetType | None = msgspec.UNSET,
) -> Stored | None:
    """Return what the store has of a journal; None if replication changed it meanwhile.

    The head is written before rows are removed, so rows that were read between two equal heads belong to that head.
    `segment_sizes` and `last_seq_nr` say where the records of the log may have put rows. `head` is the journal's head
    as it was read before, with many others; if it has changed since, it is read again.
    """
    stored = await _look(reader, topic, id_, window, segment_sizes, last_seq_nr, head)
    if stored is None and head is not msgspec.UNSET:
        stored = await _look(reader, topic, id_, window, segment_sizes, last_seq_nr, msgspec.UNSET)
    return stored


async def _look(
    reader: StoreReader,
    topic: str,
    id_: str,
    window: KeyWindow,
    segment_sizes: Iterable[int],
    last_seq_nr: int,
    head: JournalMeta | msgspec.UnsetType | None,
) -> Stored | None:
    meta = await reader.meta(topic, id_) if head is msgspec.UNSET else head
    stored = Stored(meta)
    sizes = dict.fromkeys([*([meta.segment_size] if meta is not None else []), *segment_sizes])
    seen: set[tuple[int, int, int]] = set()
    for size in sizes:
        first, last = _bounds(meta, size, last_seq_nr)
        async for page in reader.rows(topic, id_, segment_size=size, first=first, last=last):
            for row in page:
                _sort(stored, window, row, seen if len(sizes) > 1 else None)
    return stored if await reader.meta(topic, id_) == meta else None


def _bounds(meta: JournalMeta | None, size: int, last_seq_nr: int) -> tuple[int, int]:
    deleted_to = meta.delete_to if meta is not None and not meta.is_purged else 0
    last = max(last_seq_nr, meta.seq_nr if meta is not None else 0, 1)
    first_segment = max(0, segment_of(max(deleted_to, 1), size) - _SEGMENTS_BELOW)
    return first_segment * size + 1, (segment_of(last, size) + 2) * size


def _sort(stored: Stored, window: KeyWindow, row: EventRow, seen: set[tuple[int, int, int]] | None) -> None:
    place = claimed_place(row)
    if seen is not None:
        key = (row.segment, row.seq_nr, row.timestamp_ms)
        if key in seen:
            return
        seen.add(key)
    stored.rows += 1
    if place < Place(0, 0) or (window.is_before(place) and _is_wrong(stored.meta, window, row)):
        stored.wrong_before.append(row)
    elif window.is_before(place):
        stored.last_before = max(stored.last_before, row.seq_nr)
    elif window.is_ahead(place):
        stored.ahead.append(row)
    else:
        stored.within.append(row)


def _is_wrong(meta: JournalMeta | None, window: KeyWindow, row: EventRow) -> bool:
    """Return True if a row from before the window contradicts the journal's head, or can't exist at all."""
    if window.is_whole:
        return True
    if meta is None:
        return False
    return meta.is_purged or row.record_id != meta.record_id or not meta.delete_to < row.seq_nr <= meta.seq_nr


@dataclass(frozen=True, slots=True)
class KeyLook:
    """The result of one look at a journal. Without a verdict, replication was changing the journal."""

    id: str
    stored: Stored | None = None
    verdict: Judgement | None = None
    tags: TagVerdict | None = None
    case: JournalCase | None = None

    def others(self) -> Iterator[KeyLook]:
        """Yield the look with other verdicts that are as likely, if the records that are left do not tell which."""
        if self.case is None or self.stored is None or self.verdict is None:
            return
        for verdict in equally_likely(self.case, self.stored, self.verdict):
            yield replace(self, verdict=verdict)

    @property
    def findings(self) -> list[Finding]:
        """The findings, including those in views by tag."""
        of_journal = self.verdict.findings if self.verdict is not None else []
        return [*of_journal, *(self.tags.findings if self.tags is not None else [])]

    @property
    def has_tag_findings(self) -> bool:
        """Whether there are findings in views by tag."""
        return self.tags is not None and bool(self.tags.findings)

    @property
    def is_clean(self) -> bool:
        """Whether the store agrees with the log."""
        return self.verdict is not None and not self.findings


async def look_at_key(
    store: Store,
    window: AuditWindow,
    id_: str,
    entries: Sequence[Entry],
    *,
    marker_ttl_s: float,
    head: JournalMeta | msgspec.UnsetType | None = msgspec.UNSET,
) -> KeyLook:
    """Compare one journal. `entries` are its records, including those that are not replicated yet if they were read.

    A head or rows above the window come from running replication, if the log has their records.
    """
    entries = sorted(entries, key=lambda entry: entry.place)
    key_window = _behind_lost_holds(window.of_key(id_), entries)
    entries = [entry for entry in entries if not key_window.is_before(entry.place)]
    sizes = [entry.segment_size for entry in entries if entry.segment_size] or [_size(window)]
    last = max((entry.action.last for entry in entries if isinstance(entry.action, Append)), default=0)
    stored = await look(store.reader, window.at.topic, id_, key_window, sizes, last, head=head)
    if stored is None or _is_ahead(stored.meta, key_window, entries):
        return KeyLook(id_)
    case = _case(window, key_window, id_, _sized(window, stored.meta, entries), marker_ttl_s)
    return KeyLook(id_, stored, judge(case, stored), case=case)


async def look_at_keys(
    store: Store,
    window: AuditWindow,
    by_id: Mapping[str, Sequence[Entry]],
    *,
    marker_ttl_s: float,
    heads: Mapping[str, JournalMeta | None] | None = None,
    views_only: Collection[str] = (),
) -> list[KeyLook]:
    """Compare many journals, some at once. `heads` were read before; those of `views_only` are taken for empty."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(id_: str) -> KeyLook:
        if id_ in views_only:
            return KeyLook(id_, Stored(None), Judgement(fold_key(None, ()), []))
        head = msgspec.UNSET if heads is None else heads[id_]
        async with limit:
            return await look_at_key(store, window, id_, by_id[id_], marker_ttl_s=marker_ttl_s, head=head)

    return await asyncio.gather(*(one(id_) for id_ in by_id))


def _case(
    window: AuditWindow, key_window: KeyWindow, id_: str, entries: Sequence[Entry], marker_ttl_s: float
) -> JournalCase:
    return JournalCase(
        at=window.at,
        id=id_,
        window=key_window,
        entries=[entry for entry in entries if not key_window.is_ahead(entry.place)],
        is_log_time_exact=window.is_log_time_exact,
        highest_log_time_ms=window.highest_log_time_ms,
        markers_gone_before_ms=int((time.time() - marker_ttl_s) * 1000),
        places_ahead=frozenset(entry.place for entry in entries if key_window.is_ahead(entry.place)),
    )


def _behind_lost_holds(window: KeyWindow, entries: Sequence[Entry]) -> KeyWindow:
    """Return the window, without what lies before a verdict on a record that has left the log.

    Such a verdict has applied records that were held, and may have left the log too: nobody knows what came of them.
    """
    if window.is_whole:
        return window
    held: set[int] = set()
    for entry in entries:
        if window.is_before(entry.place) or window.is_ahead(entry.place):
            continue
        if isinstance(entry.action, Poison):
            held.add(entry.offset)
        elif isinstance(entry.action, Verdict) and entry.action.held_from not in held:
            window, held = replace(window, first=Place(entry.generation, entry.offset + 1)), set()
    return window


def _is_ahead(meta: JournalMeta | None, window: KeyWindow, entries: Sequence[Entry]) -> bool:
    """Return True if the head comes from a record above the replicated offset."""
    if meta is None or not window.is_ahead(meta.place):
        return False
    return any(entry.place == meta.place for entry in entries)


def _sized(window: AuditWindow, meta: JournalMeta | None, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Give records without a known segment size that of the head, or of the topic."""
    size = meta.segment_size if meta is not None else _size(window)
    return [entry if entry.segment_size else msgspec.structs.replace(entry, segment_size=size) for entry in entries]


def _size(window: AuditWindow) -> int:
    replicated = window.home.replicated
    return replicated.segment_size if replicated is not None else DEFAULT_SEGMENT_SIZE
