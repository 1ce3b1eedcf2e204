"""Reads of one journal, correct at any stage of replication.

A read asks the store for the replicated offset and then for the journal's state, while the barrier goes to the log. It
folds what the log holds between the two on the state. Only then is it known which events are alive, and only then does
it give the first one: rows of the store first, then records of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import dropwhile, islice

from headrace.errors import IntegrityBroken, OffsetOutOfRange, ReadAgain, RecordsLost
from headrace.journal.head_cache import HeadCache
from headrace.journal.marks import Barrier
from headrace.journal.metrics import Operation
from headrace.journal.topology import Topology
from headrace.journal.traces import operation_span
from headrace.journal.window import FirstRows, KnownJournalState, View, Window, Windows, first_of, last_of, view_of
from headrace.model import MAX_SEQ_NR, StoredEvent
from headrace.protocol import Append, Entry, Layout, Stay, events_of_records, exists, pointer_of, stored_event
from headrace.store import DEFAULT_SEGMENT_SIZE, EventRow, JournalMeta, Place, ReplicatedOffset, StoreReader

__all__ = ["JournalReader"]

_ATTEMPTS = 5
_FIRST_ROWS = 500


class JournalReader:
    """Reads the journals of one topic."""

    def __init__(
        self, topology: Topology, store: StoreReader, windows: Windows, barrier: Barrier, cache: HeadCache | None
    ) -> None:
        self.topic = topology.topic
        self._topology = topology
        self._store = store
        self._windows = windows
        self._barrier = barrier
        self._cache = cache
        # By the topic's id, because a topic that is created again may grow in the same way.
        self._settled: set[tuple[str, Stay]] = set()
        self._segment_size = DEFAULT_SEGMENT_SIZE

    async def view(self, id_: str, operation: Operation | None = None, *, first: int | None = None) -> View:
        """Return the journal as it is now. Raises JournalHeld, RecordsLost.

        With `first` the view also has the rows from that seq_nr on, if they come at no further cost.
        """
        layout = await self._topology.layout()
        for attempt in range(_ATTEMPTS):
            view = await self._try_view(id_, layout, operation, first if attempt == 0 else None, scan=attempt > 1)
            if view is not None:
                return view
            await self._topology.refresh()
            layout = await self._topology.grown()  # boundaries are written before the layout that contains them
        raise ReadAgain(id_, "replication, or the topic's growth, kept overtaking it")

    async def known(self, id_: str, layout: Layout) -> KnownJournalState:
        """Return what the store has of a journal; the replicated offsets are read first, then the state."""
        stays = [stay for stay in layout.stays(id_) if (layout.topic_id, stay) not in self._settled]
        replicated = {stay.at: await self._store.replicated(stay.at) for stay in stays}
        return KnownJournalState(replicated, await self._store.meta(layout.topic, id_))

    async def _known_with_rows(self, id_: str, layout: Layout, first: int) -> KnownJournalState:
        """Read the rows first and the state after them; the state shows if these are exactly its rows.

        They are if the state lies at or below the replicated offset, which was read before the rows. Then all rows of
        the state had been written by that time, and no later deletion can have been seen, because a state is written
        before its deletions. So the state need not be read again. Most journals fit into this one page.
        """
        stays = [stay for stay in layout.stays(id_) if (layout.topic_id, stay) not in self._settled]
        at = stays[-1].at
        replicated = self._cache.replicated(at) if self._cache is not None else None
        if replicated is None:
            replicated = await self._store.replicated(at)
        if replicated is None or len(stays) > 1 or first > MAX_SEQ_NR:
            return await self.known(id_, layout)
        size = self._segment_size
        last = min(first + _FIRST_ROWS - 1, (first - 1) // size * size + size, MAX_SEQ_NR)
        rows: list[EventRow] = []
        async for page in self._store.rows(layout.topic, id_, segment_size=size, first=first, last=last):
            rows += page
        stored = await self._store.meta(layout.topic, id_)
        if stored is None or not _covers(replicated, stored, layout):
            return KnownJournalState({at: replicated}, stored)
        is_exact = stored.segment_size == size
        self._segment_size = stored.segment_size
        return KnownJournalState({at: replicated}, stored, FirstRows(rows, last) if is_exact else None)

    async def windows(
        self, id_: str, layout: Layout, known: KnownJournalState, barrier: int, *, scan: bool
    ) -> list[Window] | None:
        """Return what the log adds up to the barrier; None if the store has moved on meanwhile.

        With `scan` the log itself is read, not the head cache.
        """
        windows = []
        for stay in layout.stays(id_):
            if (layout.topic_id, stay) in self._settled and stay.at not in known.replicated:
                continue
            window = await self._window(id_, layout, stay, known.replicated.get(stay.at), barrier, scan=scan)
            if window.is_behind or window.generation > layout.generation:
                return None
            windows.append(window)
        return windows

    async def _try_view(
        self, id_: str, layout: Layout, operation: Operation | None, first: int | None, *, scan: bool
    ) -> View | None:
        """Try once to return a view; None if the store has moved on meanwhile."""
        at = layout.route(id_)
        end = self._topology.end_of(at)
        before = end.offset
        asking = asyncio.ensure_future(self._barrier.place(at, id_))
        try:
            known = await (self.known(id_, layout) if first is None else self._known_with_rows(id_, layout, first))
        except BaseException:
            asking.cancel()
            raise
        _lap(operation, "store")
        barrier = await asking
        _lap(operation, "barrier")
        if not end.rises(before - 1, barrier):
            return None  # the topic was created again
        try:
            windows = await self.windows(id_, layout, known, barrier, scan=scan)
        except OffsetOutOfRange:
            if (await self._topology.refresh()).topic_id != layout.topic_id:
                return None
            raise
        except RecordsLost:
            if await self._has_moved(known):  # what left the log was in the store before
                return None
            raise
        _lap(operation, "head")
        return None if windows is None else view_of(id_, known, windows, Place(layout.generation, barrier))

    async def _has_moved(self, known: KnownJournalState) -> bool:
        """Return True if replication has moved on since the store was asked."""
        for at, replicated in known.replicated.items():
            if await self._store.replicated(at) != replicated:
                return True
        return False

    async def _window(
        self, id_: str, layout: Layout, stay: Stay, known: ReplicatedOffset | None, barrier: int, *, scan: bool
    ) -> Window:
        """Return the key's actions in one partition that the store does not have yet."""
        generation = layout.first_generation(stay.at.partition)
        after = -1
        if known is not None and known.generation >= generation:  # else the topic has been created again since
            generation, after = known.generation, known.offset
        up_to = barrier if stay.end is None else stay.end - 1
        if up_to > after:
            look = self._windows.scan if scan else self._windows.find
            window = await look(stay.at, generation, id_, after=after, up_to=up_to)
            window.entries = [entry for entry in window.entries if entry.offset >= stay.start]
            return window
        if stay.end is None and up_to < after:
            await self._windows.check_end(stay.at, after)
        if stay.end is not None:
            # Replication has passed the boundary: the store has everything of this stay.
            self._settled.add((layout.topic_id, stay))
        return Window(stay.at, [], generation=generation)

    async def pages(
        self, id_: str, first: int, operation: Operation | None = None, *, last: int = MAX_SEQ_NR
    ) -> AsyncIterator[Sequence[StoredEvent]]:
        """Yield the events from seq_nr `first` to `last`, in pages."""
        for attempt in range(_ATTEMPTS):
            with operation_span("read", self.topic, id_):
                view = await self.view(id_, operation, first=first if attempt == 0 else None)
            if not exists(view.meta):
                return
            given = False
            try:
                async for page in self.stream(id_, view, first, last):
                    given = given or bool(page)
                    yield page
                return
            except ReadAgain:
                if given or attempt == _ATTEMPTS - 1:
                    raise

    async def stream(
        self, id_: str, view: View, first: int, last: int = MAX_SEQ_NR
    ) -> AsyncIterator[Sequence[StoredEvent]]:
        """Yield the events of a view, in pages. Raises ReadAgain if a delete or purge happens meanwhile."""
        meta, stored = view.meta, view.stored
        if meta is None:
            return
        first = max(first, meta.delete_to + 1)
        if view.is_stored and stored is not None and first <= (stored_to := min(stored.seq_nr, last)):
            had = view.first_rows
            if had is not None and had.last >= stored_to:
                yield _events(id_, stored, had.rows, first, last=stored_to)
            else:
                async for page in self._stored(id_, stored, first, stored_to, had):
                    yield page
            first = stored.seq_nr + 1
        if first <= last:
            async for page in self._tail(id_, view, first, last):
                yield page

    async def _stored(
        self, id_: str, stored: JournalMeta, first: int, last: int, had: FirstRows | None
    ) -> AsyncIterator[Sequence[StoredEvent]]:
        """Yield the events of the store. `had` are rows that were read already.

        A page is kept back until the next one is there or the end is checked. Until then the read can start over
        without the caller noticing.
        """
        held_back: Sequence[StoredEvent] = _events(id_, stored, had.rows, first) if had is not None else []
        begin = first if had is None else max(first, had.last + 1)
        async for page in self._rows(id_, stored, begin, last=last):
            yield held_back
            held_back = page
        await self._check_unmoved(id_, stored, first)
        yield held_back

    async def _rows(
        self, id_: str, stored: JournalMeta, first: int, *, last: int
    ) -> AsyncIterator[Sequence[StoredEvent]]:
        last_seq_nr = 0
        pages = self._store.rows(stored.topic, id_, segment_size=stored.segment_size, first=first, last=last)
        async for page in pages:
            events = _events(id_, stored, page, first, above=last_seq_nr)
            last_seq_nr = events[-1].seq_nr if events else last_seq_nr
            yield events

    async def _check_unmoved(self, id_: str, stored: JournalMeta, first: int) -> None:
        """Raise ReadAgain if rows from `first` on were removed during the read: the events may have a hole."""
        now = await self._store.meta(stored.topic, id_)
        if now is None or now.record_id != stored.record_id:
            raise ReadAgain(id_, "it was purged")
        if now.delete_to >= first:
            raise ReadAgain(id_, f"events up to {now.delete_to} were deleted")

    async def _tail(self, id_: str, view: View, first: int, last: int) -> AsyncIterator[Sequence[StoredEvent]]:
        """Yield the events of the log, or those of the store if replication has caught up meanwhile."""
        appends = list(dropwhile(lambda entry: last_of(entry) < first, view.appends))
        if last < pointer_of(view.meta):
            appends = [entry for entry in appends if first_of(entry) <= last]
        if not appends:
            return
        caught_up = await self._caught_up(id_, view, appends)
        if caught_up is not None:
            async for page in self._rows(id_, caught_up, first, last=min(last, pointer_of(view.meta))):
                yield page
            await self._check_unmoved(id_, caught_up, first)
            return
        for window in view.windows:
            async for page in self._of_window(id_, window, appends, first, last):
                yield page

    async def _of_window(
        self, id_: str, window: Window, appends: Sequence[Entry], first: int, last: int
    ) -> AsyncIterator[Sequence[StoredEvent]]:
        """Yield the events of the appends in the window."""
        held = {entry.offset for entry in window.entries}
        partition = window.at.partition
        mine = [entry for entry in appends if entry.partition == partition and entry.offset in held]
        actions = (entry.action for entry in mine if isinstance(entry.action, Append))
        try:
            async for records in self._windows.records(window, [entry.offset for entry in mine]):
                events = events_of_records(id_, records, islice(actions, len(records)))
                # Only the first append can begin below `first`, and only the last one end above `last`.
                is_within = events[0].seq_nr >= first and events[-1].seq_nr <= last
                yield events if is_within else [event for event in events if first <= event.seq_nr <= last]
        except RecordsLost as error:
            layout = await self._topology.layout()
            replicated = layout.of_topic(await self._store.replicated(window.at))
            if replicated is None or replicated.offset < error.last:
                raise
            raise ReadAgain(id_, "its records moved from the log to the store") from error

    async def _caught_up(self, id_: str, view: View, appends: list[Entry]) -> JournalMeta | None:
        """Return the store's state if it has all the appends by now, so that the log need not be read."""
        meta = view.meta
        if meta is None or sum(len(window.records) for window in view.windows) >= len(appends):
            return None
        now = await self._store.meta(meta.topic, id_)
        if now is None or now.record_id != meta.record_id or now.delete_to != meta.delete_to:
            return None
        return now if now.place >= appends[-1].place else None


def _covers(replicated: ReplicatedOffset, stored: JournalMeta, layout: Layout) -> bool:
    """Return True if everything up to the state had been written when the replicated offset was read."""
    at = replicated.at
    is_of_topic = stored.generation >= layout.first_generation(at.partition)
    place = Place(replicated.generation, replicated.offset)
    return stored.partition == at.partition and is_of_topic and stored.place <= place


def _events(
    id_: str, stored: JournalMeta, rows: Sequence[EventRow], first: int, *, last: int = MAX_SEQ_NR, above: int = 0
) -> Sequence[StoredEvent]:
    """Return the events of those rows that belong to the state's incarnation, from seq_nr `first` to `last`."""
    events = []
    last = min(last, stored.seq_nr)
    for row in rows:
        if row.record_id != stored.record_id or not first <= row.seq_nr <= last:
            continue
        if row.seq_nr <= above:
            raise IntegrityBroken(id_, row.seq_nr, "two rows of one incarnation have the same number")
        above = row.seq_nr
        events.append(stored_event(id_, row))
    return events


def _lap(operation: Operation | None, stage: str) -> None:
    if operation is not None:
        operation.lap(stage)
