"""Gaps: the numbers that a query has seen of each journal, and the search for those that are missing."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, TypeAlias

from headrace.config import TagSettings
from headrace.errors import TagGap
from headrace.store import Tags
from headrace.tags.events import TaggedEvent, TagOffset
from headrace.tags.metrics import GAPS
from headrace.tags.registry import Bucket
from headrace.tags.view_rows import ViewRows, rows_between

__all__ = ["GapSearch", "Missing", "Pid", "Sequences", "lowest_numbers"]

Pid: TypeAlias = tuple[str, str]

_REMEMBERED = 1_000_000


# A number, and the log time of its event.
_Seen: TypeAlias = tuple[int, int]


class Missing(NamedTuple):
    """The missing numbers from `first` up to the event's (exclusive), whose events lie after a log time."""

    first: int
    size: int
    since_ms: int


class Sequences:
    """The next number of each pid.

    With `from_start` the first event of a pid must have number 1. Otherwise its first event is accepted with any
    number, unless a scan found a lower one. Events come in the order of their places, so an event that was not given
    ahead of its turn was never given, whatever its number. A number below the last one belongs to a row that came
    late, or to a numbering that started again.
    """

    def __init__(self, *, from_start: bool) -> None:
        self._from_start = from_start
        self._seen: OrderedDict[Pid, _Seen] = OrderedDict()
        self._ahead: set[tuple[Pid, TagOffset]] = set()

    def expect(self, lowest: Mapping[Pid, int]) -> None:
        """Expect these numbers first."""
        for pid, number in lowest.items():
            self._seen[pid] = (number - 1, 0)

    def restart(self) -> None:
        """Forget all numbers, because another numbering follows."""
        self._from_start = False
        self._seen.clear()
        self._ahead.clear()

    def follows(self, event: TaggedEvent) -> bool:
        """Accept an event if it is the next of its pid. Otherwise nothing changes: it is known, or some are missing."""
        pid, number = (event.topic, event.id), event.number
        last = self._seen.get(pid)
        if last is None:
            if self._from_start and number != 1:
                return False
            self.saw(event)
            return True
        if number != last[0] + 1:
            return False
        # A plain tuple takes a third of the time to make, and this happens for every event.
        self._seen[pid] = (number, event.tag_offset[0])
        self._seen.move_to_end(pid)
        return True

    def missing(self, event: TaggedEvent) -> Missing | None:
        """Return what is missing before an event; None if nothing is."""
        last = self._last(event)
        if last is None or event.number <= last[0] + 1:
            return None
        number, log_time_ms = last
        return Missing(number + 1, event.number - number - 1, log_time_ms)

    def was_given_ahead(self, event: TaggedEvent) -> bool:
        """Return True if a gap search has already given the event, before its turn."""
        name = (event.topic, event.id), event.tag_offset
        if name not in self._ahead:
            return False
        self._ahead.remove(name)
        return True

    def saw(self, event: TaggedEvent, *, before: TaggedEvent | None = None) -> None:
        """Remember an event that was delivered, in its turn or ahead of it, `before` another event."""
        pid = (event.topic, event.id)
        if before is not None and event.tag_offset > before.tag_offset:
            self._ahead.add((pid, event.tag_offset))
        self._seen[pid] = (event.number, event.tag_offset.log_time_ms)
        self._seen.move_to_end(pid)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
            self._from_start = False  # a pid that was forgotten may come again with any number

    def _last(self, event: TaggedEvent) -> _Seen | None:
        return self._seen.get((event.topic, event.id), (0, 0) if self._from_start else None)


_LOOK_AGAIN_S = 0.1


class GapSearch:
    """Finds the missing events of a tag and gives them in sequence."""

    def __init__(self, tags: Tags, bucket: Bucket, tag: str, settings: TagSettings, sequences: Sequences) -> None:
        self._views = tags.views
        self._numbers = tags.numbers
        self._bucket = bucket
        self._tag = tag
        self._settings = settings
        self._sequences = sequences

    async def in_sequence(self, event: TaggedEvent) -> AsyncIterator[TaggedEvent]:
        """Yield the events that are missing before an event, then the event; nothing if it was given. Raises TagGap."""
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
        """Return the lowest number of an event's journal."""
        known = (await self._numbers.of(event.topic, event.id)).get(self._tag)
        return known.first if known is not None else 1

    async def _find(self, event: TaggedEvent, missing: Missing) -> list[TaggedEvent]:
        """Return the missing events that the views have, up to the first that they lack."""
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
    """Return the lowest number of each pid among a tag's events up to a seam.

    Rows beyond the seam do not count: a batch that is being written may have later rows before earlier ones.
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
