"""The policy "redact": when events are deleted from a journal, the views forget what they said.

Rows stay, so that numbers have no gaps. Tags without the policy keep everything. Which tags have it is one of the facts
of the store.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.journal.key_writes import KeyFold, Removal
from headrace.store import EventRow, Store, TagRow, tag_time_of
from headrace.tags.numbering import Numbering, unique_tags
from headrace.tags.registry import Registry

__all__ = ["Redaction"]


class Redaction:
    """Redacts the rows of deleted events under the tags that the store says.

    It runs before the journals of a batch are written, so that the deleted events are still there to tell which rows
    are theirs; a replay that finds them gone had redacted the rows before.
    """

    def __init__(self, store: Store, facts: Registry) -> None:
        self._store = store
        self._tags = frozenset(facts.redact)
        self._filled = self._tags.intersection(facts.fills)  # events don't bring these tags themselves

    async def apply(self, topic: str, folds: Mapping[str, KeyFold], numbering: Numbering) -> None:
        """Redact what the batch deletes."""
        if not self._tags:
            return
        for pid, fold in folds.items():
            for removal in fold.removals:
                await self._remove(topic, pid, fold, removal, numbering)

    async def _remove(self, topic: str, pid: str, fold: KeyFold, removal: Removal, numbering: Numbering) -> None:
        gone = [row for row in fold.tagged if row.place <= removal.place and row.seq_nr <= removal.last]
        gone += await self._stored(topic, pid, removal, any_tags=bool(self._filled))
        for event in gone:
            for tag in self._tags.intersection(unique_tags(event.tags)) | self._filled:
                rows = await self._rows(numbering.row(pid, event, tag, 0))
                await self._store.tags.views.redact(rows, at=removal.place)

    async def _stored(self, topic: str, pid: str, removal: Removal, *, any_tags: bool) -> list[EventRow]:
        """Return the events with such tags, or any, that the store holds and the removal takes."""
        meta = await self._store.reader.meta(topic, pid)
        if meta is None or removal.last < removal.first:
            return []
        pages = self._store.reader.rows(
            topic, pid, segment_size=meta.segment_size, first=removal.first, last=removal.last
        )
        return [
            row
            async for page in pages
            for row in page
            if row.record_id == meta.record_id and row.place < removal.place
            if any_tags or self._tags.intersection(row.tags)
        ]

    async def _rows(self, like: TagRow) -> list[TagRow]:
        """Return an event's rows under a tag: their number is not known from the event alone."""
        at = tag_time_of(like.timestamp)
        pages = self._store.tags.views.read(like.tag, like.bucket_ms, first=at, last=at)
        return [row async for page in pages for row in page if row.pid == like.pid and row.seq_nr == like.seq_nr]
