"""Reads of one journal without an end: what exists, and then each event as it is appended.

A live read takes a view of the journal, as every read does, and gives its events. From then on it folds the actions
that the process's head of the partition takes on the state of that view: it needs neither the store nor a Mark. Where
the head can't tell (replication was faster than the caller, the topic grew, a broker was away for too long), it takes
the next view, and goes on behind the last event that it gave.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from headrace.errors import JournalPurged, OffsetOutOfRange, ReadAgain, RecordsLost, Unavailable, UnknownTopic
from headrace.journal.head_cache import HeadCache, KeyWatch
from headrace.journal.read import JournalReader
from headrace.journal.topology import Topology
from headrace.journal.window import KnownJournalState, View, Windows, view_of
from headrace.log import Log
from headrace.model import StoredEvent, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import exists, pointer_of
from headrace.runtime import Backoff
from headrace.store import JournalMeta, Place, StoreReader

__all__ = ["LiveReads"]

_logger = get_logger(__name__)

_AGAIN = Backoff(first_s=0.05, limit_s=5.0)
_NO_TOPIC = Backoff(first_s=0.05, limit_s=1.0)
_TOPIC_DELETED = "its topic was deleted"
# A broker that has just started may not know a topic yet. One that is unknown this often, for over half a second, is
# deleted.
_UNKNOWN_AT_LEAST = 5


class LiveReads:
    """The live reads of one topic. They share the heads that the process follows."""

    def __init__(
        self,
        log: Log,
        topology: Topology,
        store: StoreReader,
        reader: JournalReader,
        cache: HeadCache | None,
        *,
        timeout_s: float,
    ) -> None:
        self._log = log
        self._topology = topology
        self._store = store
        self._reader = reader
        self._cache = cache
        self._timeout_s = timeout_s

    async def pages(self, id_: str, first: int, last: int) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Yield the events from `first` on, in pages, forever; or until the journal has come to `last`.

        Raises JournalPurged, JournalHeld, RecordsLost; outages of the log and the store are waited for.
        """
        # A journal without the heads of its process follows its own for as long as the read lasts.
        heads = self._cache or HeadCache(self._log, self._store)
        windows = Windows(self._log, heads, timeout_s=self._timeout_s)
        read = _LiveRead(self._topology, self._reader, heads, windows, id_, first, last)
        try:
            async with contextlib.aclosing(read.pages()) as pages:
                async for page in pages:
                    yield page
        finally:
            if heads is not self._cache:
                await heads.close()


class _LiveRead:
    """One live read: where it is, and the journal as it was there."""

    def __init__(
        self,
        topology: Topology,
        reader: JournalReader,
        heads: HeadCache,
        windows: Windows,
        id_: str,
        first: int,
        last: int,
    ) -> None:
        self._topology = topology
        self._reader = reader
        self._heads = heads
        self._windows = windows
        self._id = id_
        self._first = self._next = first
        self._last = last
        self._has_state = first > 1  # the caller has built something from the events before
        self._meta: JournalMeta | None = None
        self._topic_id = ""

    async def pages(self) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Yield pages; an outage is waited for, however long it takes."""
        attempt = unknown = 0
        while self._next <= self._last:
            try:
                async with contextlib.aclosing(self._from_view()) as pages:
                    async for page in pages:
                        attempt = unknown = 0
                        if page:
                            yield page
                if self._is_complete():
                    return
                await self._topology.refresh()
                await self._topology.grown()
                delay_s = _AGAIN.delay_s(attempt) if attempt else 0.0
            except UnknownTopic:
                unknown += 1
                self._check_topic(unknown)
                delay_s = _NO_TOPIC.delay_s(unknown)
            except Unavailable as error:
                unknown = 0
                delay_s = self._delay_s(error, attempt + 1)
            attempt += 1
            await asyncio.sleep(delay_s)

    def _check_topic(self, unknown: int) -> None:
        """Raise JournalPurged if events were given and their topic is gone; any other topic is waited for."""
        if unknown >= _UNKNOWN_AT_LEAST and self._has_state and exists(self._meta):
            raise JournalPurged(self._id, self._next, _TOPIC_DELETED)

    def _delay_s(self, error: Unavailable, attempt: int) -> float:
        delay_s = _AGAIN.delay_s(attempt)
        if not isinstance(error, ReadAgain):
            _logger.warning("live read goes on later", key=self._id, error=str(error), retry_in_s=delay_s)
        return delay_s

    async def _from_view(self) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Yield the events of a view, then those that the head takes; ends if a new view is needed.

        Empty pages show that the read has got on.
        """
        view = await self._reader.view(self._id)
        self._take(view.meta)
        async for page in self._events(view):
            yield page
        if self._is_complete():
            return
        at, generation = view.windows[-1].at, view.barrier.generation
        with self._heads.watch(at, generation, self._id, after=view.barrier.offset) as watch:
            while (later := await self._later(watch, at, generation)) is not None:
                async for page in self._events(later):
                    yield page
                yield ()
                if self._is_complete():
                    return

    async def _later(self, watch: KeyWatch, at: TopicPartition, generation: int) -> View | None:
        """Return the journal as of its next actions; None if the head can't tell."""
        span = await watch.span()
        if span is None:
            return None
        after, up_to = span
        known = KnownJournalState({}, self._meta)
        if up_to <= after:
            return view_of(self._id, known, (), Place(generation, up_to))
        try:
            window = await self._windows.find(at, generation, self._id, after=after, up_to=up_to)
        except (OffsetOutOfRange, RecordsLost):  # replicated and removed meanwhile; if it is lost, a view finds out
            return None
        if window.is_behind or window.generation > generation:
            return None
        view = view_of(self._id, known, (window,), Place(generation, up_to))
        self._take(view.meta)
        return view

    async def _events(self, view: View) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Yield the view's events that were not given yet."""
        async for page in self._reader.stream(self._id, view, self._next, self._last):
            if page:
                self._next = page[-1].seq_nr + 1
                self._has_state = True
                yield page
        if exists(view.meta):
            self._next = max(self._next, min(pointer_of(view.meta), self._last) + 1)

    def _is_complete(self) -> bool:
        return self._next > self._last

    def _take(self, meta: JournalMeta | None) -> None:
        """Go on with a later state. Raises JournalPurged if it is not that of the journal whose events were given."""
        topic_id = self._topology.topic_id
        reason = _why_ended(self._meta, meta, is_other_topic=topic_id != self._topic_id)
        if reason and self._has_state:
            raise JournalPurged(self._id, self._next, reason)
        if reason:
            self._next = self._first
        self._meta, self._topic_id = meta, topic_id


def _why_ended(before: JournalMeta | None, now: JournalMeta | None, *, is_other_topic: bool) -> str:
    """Return why a state is not a later one of the same journal; nothing if it is."""
    if before is None or not exists(before):
        return ""
    if is_other_topic:
        return _TOPIC_DELETED
    if now is None or not exists(now) or now.record_id != before.record_id:
        return "it was purged"
    return "the log has lost its last events" if pointer_of(now) < pointer_of(before) else ""
