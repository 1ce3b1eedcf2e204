"""Reading one journal, right whatever replication is doing.

The store is asked for the replicated offset and then for the journal's state, while the barrier goes to the log. What
the log holds between the two is folded on the state; only then is it known which events are alive, and only then is
the first one handed out: rows of the store first, then records of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from headrace.errors import IntegrityBroken, JournalHeld, ReadAgain, RecordsLost
from headrace.journal.actions import Append
from headrace.journal.barriers import Barrier
from headrace.journal.decoding import event_of_row, events_of_record
from headrace.journal.folding import Effect, Entry, exists, pointer_of, step
from headrace.journal.layout import Layout, Stay
from headrace.journal.operations import Operation
from headrace.journal.topology import Topology
from headrace.journal.windows import Window, Windows
from headrace.model import StoredEvent, TopicPartition
from headrace.observe import span
from headrace.store import JournalMeta, Place, ReplicatedOffset, StoreReader

__all__ = ["JournalReader", "Known", "View"]

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class View:
    """A journal as of a barrier: what the store had, what the log adds, and the state of both together.

    `appends` are the actions of the log, in order, whose events are (in part) alive.
    """

    stored: JournalMeta | None
    meta: JournalMeta | None
    windows: tuple[Window, ...]
    appends: tuple[Entry, ...]
    barrier: Place

    @property
    def is_stored(self) -> bool:
        """Whether rows of the store belong to the journal as it is now."""
        return exists(self.stored) and exists(self.meta) and self._record_id(self.stored) == self._record_id(self.meta)

    @staticmethod
    def _record_id(meta: JournalMeta | None) -> object:
        return meta.record_id if meta is not None else None


@dataclass(frozen=True, slots=True)
class Known:
    """What the store has of a journal: its state, and how far the partitions it was in are replicated."""

    replicated: Mapping[TopicPartition, ReplicatedOffset | None]
    stored: JournalMeta | None


class JournalReader:
    """Reads the journals of one topic."""

    def __init__(self, topology: Topology, store: StoreReader, windows: Windows, barrier: Barrier) -> None:
        self.topic = topology.topic
        self._topology = topology
        self._store = store
        self._windows = windows
        self._barrier = barrier
        self._settled: set[Stay] = set()

    async def view(self, id_: str, operation: Operation | None = None) -> View:
        """Find out what the journal is now. Raises JournalHeld, RecordsLost."""
        layout = await self._topology.layout()
        for attempt in range(_ATTEMPTS):
            view = await self._try_view(id_, layout, operation, scan=attempt > 1)
            if view is not None:
                return view
            await self._topology.refresh()
            layout = await self._topology.grown()  # boundaries are written before the layout that has them
        raise ReadAgain(id_, "replication, or the topic's growth, kept overtaking it")

    async def known(self, id_: str, layout: Layout) -> Known:
        """Ask the store what it has of a journal: the replicated offsets first, then the state."""
        stays = [stay for stay in layout.stays(id_) if stay not in self._settled]
        replicated = {stay.at: await self._store.replicated(stay.at) for stay in stays}
        return Known(replicated, await self._store.meta(layout.topic, id_))

    async def windows(self, id_: str, layout: Layout, known: Known, barrier: int, *, scan: bool) -> list[Window] | None:
        """Return what the log adds up to the barrier; None if what the store has moved on meanwhile.

        With `scan` the log itself is looked into, not the head cache.
        """
        windows = []
        for stay in layout.stays(id_):
            if stay in self._settled:
                continue
            window = await self._window(id_, layout, stay, known.replicated.get(stay.at), barrier, scan=scan)
            if window.is_behind or window.generation > layout.generation:
                return None
            windows.append(window)
        return windows

    async def _try_view(self, id_: str, layout: Layout, operation: Operation | None, *, scan: bool) -> View | None:
        """Look once; None if what was looked at moved on meanwhile."""
        asking = asyncio.ensure_future(self._barrier.place(layout.route(id_), id_))
        try:
            known = await self.known(id_, layout)
        except BaseException:
            asking.cancel()
            raise
        _lap(operation, "store")
        barrier = await asking
        _lap(operation, "barrier")
        try:
            windows = await self.windows(id_, layout, known, barrier, scan=scan)
        except RecordsLost:
            if await self._has_moved(known):  # what left the log reached the store first
                return None
            raise
        _lap(operation, "head")
        return None if windows is None else _view(id_, known.stored, windows, Place(layout.generation, barrier))

    async def _has_moved(self, known: Known) -> bool:
        """Say whether replication has come further since the store was asked."""
        for at, replicated in known.replicated.items():
            if await self._store.replicated(at) != replicated:
                return True
        return False

    async def _window(
        self, id_: str, layout: Layout, stay: Stay, known: ReplicatedOffset | None, barrier: int, *, scan: bool
    ) -> Window:
        """Return the key's actions of one stay that the store does not have yet."""
        generation = layout.first_generation(stay.at.partition)
        after = -1
        if known is not None and known.generation >= generation:  # else it is of a topic that was made anew since
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
            self._settled.add(stay)  # replication has passed the boundary: the store has all of it, for good
        return Window(stay.at, [], generation=generation)

    async def events(self, id_: str, first: int, operation: Operation | None = None) -> AsyncIterator[StoredEvent]:
        """Yield the events from seq_nr `first` on."""
        for attempt in range(_ATTEMPTS):
            with span("journal.read", topic=self.topic, id=id_):
                view = await self.view(id_, operation)
            if not exists(view.meta):
                return
            given = False
            try:
                async for event in self._stream(id_, view, first):
                    given = True
                    yield event
                return
            except ReadAgain:
                if given or attempt == _ATTEMPTS - 1:
                    raise

    async def _stream(self, id_: str, view: View, first: int) -> AsyncIterator[StoredEvent]:
        meta = view.meta
        if meta is None:
            return
        first = max(first, meta.delete_to + 1)
        if view.is_stored and view.stored is not None and first <= view.stored.seq_nr:
            # A page waits until more follows or the end is checked: what was not handed out can be read again
            # without anybody noticing.
            held_back: list[StoredEvent] = []
            async for page in self._rows(id_, view.stored, first, last=view.stored.seq_nr):
                for event in held_back:
                    yield event
                held_back = page
            await self._check_unmoved(id_, view.stored, first)
            for event in held_back:
                yield event
            first = view.stored.seq_nr + 1
        async for event in self._tail(id_, view, first):
            yield event

    async def _rows(self, id_: str, stored: JournalMeta, first: int, *, last: int) -> AsyncIterator[list[StoredEvent]]:
        last_seq_nr = 0
        pages = self._store.rows(stored.topic, id_, segment_size=stored.segment_size, first=first, last=last)
        async for page in pages:
            events = []
            for row in page:
                if row.record_id != stored.record_id:
                    continue
                if row.seq_nr <= last_seq_nr:
                    raise IntegrityBroken(id_, row.seq_nr, "two rows of one incarnation have the same number")
                last_seq_nr = row.seq_nr
                events.append(event_of_row(row))
            yield events

    async def _check_unmoved(self, id_: str, stored: JournalMeta, first: int) -> None:
        """Rows from `first` on may have been removed while they were read: then what was read may have a hole."""
        now = await self._store.meta(stored.topic, id_)
        if now is None or now.record_id != stored.record_id:
            raise ReadAgain(id_, "it was purged")
        if now.delete_to >= first:
            raise ReadAgain(id_, f"events up to {now.delete_to} were deleted")

    async def _tail(self, id_: str, view: View, first: int) -> AsyncIterator[StoredEvent]:
        """Yield the events of the log, or of the store if replication has caught up meanwhile."""
        appends = [entry for entry in view.appends if _last(entry) >= first]
        if not appends:
            return
        caught_up = await self._caught_up(id_, view, appends)
        if caught_up is not None:
            async for page in self._rows(id_, caught_up, first, last=pointer_of(view.meta)):
                for event in page:
                    yield event
            await self._check_unmoved(id_, caught_up, first)
            return
        for window in view.windows:
            async for event in self._of_window(id_, window, appends):
                if event.seq_nr >= first:
                    yield event

    async def _of_window(self, id_: str, window: Window, appends: list[Entry]) -> AsyncIterator[StoredEvent]:
        """Yield the events of those appends that the window holds."""
        held = {entry.offset for entry in window.entries}
        actions = {
            entry.offset: entry.action
            for entry in appends
            if entry.partition == window.at.partition and entry.offset in held and isinstance(entry.action, Append)
        }
        try:
            async for record in self._windows.records(window, list(actions)):
                for event in events_of_record(id_, record, actions[record.offset]):
                    yield event
        except RecordsLost as error:
            replicated = await self._store.replicated(window.at)
            if replicated is None or replicated.offset < error.last:
                raise
            raise ReadAgain(id_, "its records moved from the log to the store") from error

    async def _caught_up(self, id_: str, view: View, appends: list[Entry]) -> JournalMeta | None:
        """Return the state in the store if that holds all the appends by now, and reading the log can be spared."""
        meta = view.meta
        if meta is None or sum(len(window.records) for window in view.windows) >= len(appends):
            return None
        now = await self._store.meta(meta.topic, id_)
        if now is None or now.record_id != meta.record_id or now.delete_to != meta.delete_to:
            return None
        return now if now.place >= appends[-1].place else None


def _view(id_: str, stored: JournalMeta | None, windows: list[Window], barrier: Place) -> View:
    meta, appends = _fold(stored, [entry for window in windows for entry in window.entries])
    if meta is not None and meta.held_from is not None:
        raise JournalHeld(id_, meta.topic, meta.partition, meta.held_from, "a record can't be decoded")
    return View(stored, meta, tuple(windows), appends, barrier)


def _fold(stored: JournalMeta | None, entries: list[Entry]) -> tuple[JournalMeta | None, tuple[Entry, ...]]:
    """Fold actions on the state; returns the new state and the appends that count."""
    meta = stored
    appends: list[Entry] = []
    for entry in entries:
        if meta is not None and entry.place <= meta.place:
            continue
        done = step(meta, entry)
        meta = done.meta
        if done.effect is Effect.APPENDED:
            appends.append(entry)
        elif done.effect is Effect.PURGED:
            appends.clear()
    delete_to = meta.delete_to if meta is not None else 0
    return meta, tuple(entry for entry in appends if _last(entry) > delete_to)


def _lap(operation: Operation | None, stage: str) -> None:
    if operation is not None:
        operation.lap(stage)


def _last(entry: Entry) -> int:
    return entry.action.last if isinstance(entry.action, Append) else 0
