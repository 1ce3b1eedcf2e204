"""Gaps: an event whose predecessor has not been seen is held back while the views are searched for it.

Numbers are given out in log order and rows are written before the seam moves, so a gap is a fault: a row that was
lost, or that a replica has not got yet. What is found is delivered first; what is not fails the query. Numbers that an
operator removed are not looked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headrace.config import TagSettings
from headrace.errors import TagGap
from headrace.store import Tags
from headrace.tags.buckets import Bucket
from headrace.tags.events import TaggedEvent
from headrace.tags.metrics import GAPS
from headrace.tags.offsets import TagOffset
from headrace.tags.sequences import Missing, Pid, Sequences
from headrace.tags.view_rows import ViewRows, rows_between

__all__ = ["GapSearch", "lowest_numbers"]

_LOOK_AGAIN_S = 0.1


class GapSearch:
    """Puts the events of a tag back into sequence, one pid's at a time."""

    def __init__(self, tags: Tags, bucket: Bucket, tag: str, settings: TagSettings, sequences: Sequences) -> None:
        self._views = tags.views
        self._numbers = tags.numbers
        self._bucket = bucket
        self._tag = tag
        self._settings = settings
        self._sequences = sequences

    async def in_sequence(self, event: TaggedEvent) -> AsyncIterator[TaggedEvent]:
        """Yield what is missing before an event, then the event; nothing if it was seen. Raises TagGap."""
        if self._sequences.was_given_ahead(event):
            return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.gap_timeout_s
        while (missing := self._sequences.missing(event)) is not None:
            if missing.first < (first := await self._first_number(event)) <= event.number:
                self._sequences.expect({(event.topic, event.id): first})
                continue
            if missing.size > self._settings.gap_limit:
                raise self._gap(event, missing, 0.0)
            found = await self._find(event, missing)
            for each in found:
                self._sequences.saw(each, before=event)
                GAPS.labels("found").inc()
                yield each
            if not found:
                if loop.time() >= deadline_s:
                    raise self._gap(event, missing, self._settings.gap_timeout_s)
                await asyncio.sleep(_LOOK_AGAIN_S)
        self._sequences.saw(event)
        yield event

    async def _first_number(self, event: TaggedEvent) -> int:
        """Return where the numbers of an event's journal begin."""
        known = (await self._numbers.of(event.topic, event.id)).get(self._tag)
        return known.first if known is not None else 1

    async def _find(self, event: TaggedEvent, missing: Missing) -> list[TaggedEvent]:
        """Return the missing events that are there, as far as they follow one another."""
        after = TagOffset.at(missing.since_ms) if missing.since_ms else None
        found: dict[int, TaggedEvent] = {}
        last_ms = event.tag_offset.log_time_ms
        async for page in rows_between(
            self._views, self._bucket, self._tag, after=after, last_ms=last_ms, page_size=self._settings.page_size
        ):
            for each in page:
                if (each.topic, each.id) == (event.topic, event.id) and each.number < event.number:
                    found[each.number] = each
        return _run(found, missing.first)

    def _gap(self, event: TaggedEvent, missing: Missing, waited_s: float) -> TagGap:
        GAPS.labels("failed").inc()
        return TagGap(self._tag, event.topic, event.id, missing.first, event.number, waited_s)


async def lowest_numbers(rows: ViewRows) -> dict[Pid, int]:
    """Scan a tag's events up to a seam for the lowest number of each pid.

    Rows beyond the seam don't count: a batch that is being written may have later ones before earlier ones.
    """
    lowest: dict[Pid, int] = {}
    while batch := await rows.take(None):
        for event in batch:
            pid = (event.topic, event.id)
            lowest[pid] = min(event.number, lowest.get(pid, event.number))
    return lowest


def _run(found: dict[int, TaggedEvent], first: int) -> list[TaggedEvent]:
    run = []
    while first in found:
        run.append(found[first])
        first += 1
    return run
