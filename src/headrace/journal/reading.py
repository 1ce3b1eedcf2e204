"""Reading one journal, right whatever replication is doing.

The store is asked for the replicated offset and then for the journal's state, while the barrier goes to the log. What
the log holds between the two is folded on the state; only then is it known which events are alive, and only then is
the first one handed out: rows of the store first, then records of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from headrace.errors import IntegrityBroken, JournalHeld, ReadAgain
from headrace.journal.actions import Append
from headrace.journal.barriers import Barrier
from headrace.journal.decoding import event_of_row, events_of_record
from headrace.journal.folding import Effect, Entry, exists, pointer_of, step
from headrace.journal.topology import Route, Topology
from headrace.journal.windows import Window, Windows
from headrace.model import StoredEvent
from headrace.store import JournalMeta, StoreReader

__all__ = ["JournalReader", "View"]

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class View:
    """A journal as of a barrier: what the store had, what the log adds, and the state of both together.

    `appends` are the actions of the log, in order, whose events are (in part) alive.
    """

    route: Route
    barrier: int
    stored: JournalMeta | None
    meta: JournalMeta | None
    window: Window
    appends: tuple[Entry, ...]

    @property
    def is_stored(self) -> bool:
        """Whether rows of the store belong to the journal as it is now."""
        return exists(self.stored) and exists(self.meta) and self._record_id(self.stored) == self._record_id(self.meta)

    @staticmethod
    def _record_id(meta: JournalMeta | None) -> object:
        return meta.record_id if meta is not None else None


class JournalReader:
    """Reads the journals of one topic."""

    def __init__(self, topology: Topology, store: StoreReader, windows: Windows, barrier: Barrier) -> None:
        self.topic = topology.topic
        self._topology = topology
        self._store = store
        self._windows = windows
        self._barrier = barrier

    async def view(self, id_: str) -> View:
        """Find out what the journal is now. Raises JournalHeld, RecordsLost."""
        for _ in range(_ATTEMPTS):
            route = await self._topology.route(id_)
            asking = asyncio.ensure_future(self._barrier.place(route.at, id_))
            try:
                replicated = await self._store.replicated(route.at)
                stored = await self._store.meta(route.at.topic, id_)
            except BaseException:
                asking.cancel()
                raise
            barrier = await asking
            view = await self._view(route, id_, stored, replicated.offset if replicated else -1, barrier)
            if view is not None:
                return view
        raise ReadAgain(id_, "replication kept overtaking it")

    async def events(self, id_: str, first: int) -> AsyncIterator[StoredEvent]:
        """Yield the events from seq_nr `first` on."""
        for attempt in range(_ATTEMPTS):
            view = await self.view(id_)
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

    async def _view(
        self, route: Route, id_: str, stored: JournalMeta | None, replicated: int, barrier: int
    ) -> View | None:
        window = Window([])
        if barrier > replicated:
            window = await self._windows.find(route.at, route.generation, id_, after=replicated, up_to=barrier)
            if window.is_behind:
                return None
        meta, appends = _fold(stored, window)
        if meta is not None and meta.held_from is not None:
            raise JournalHeld(id_, meta.topic, meta.partition, meta.held_from, "a record can't be decoded")
        return View(route, barrier, stored, meta, window, appends)

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
            await self._check_unmoved(id_, view.stored)
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

    async def _check_unmoved(self, id_: str, stored: JournalMeta) -> None:
        """Rows may have been removed while they were read: then what was read may have a hole."""
        now = await self._store.meta(stored.topic, id_)
        if now is None or now.record_id != stored.record_id:
            raise ReadAgain(id_, "it was purged")
        if now.delete_to != stored.delete_to:
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
            await self._check_unmoved(id_, caught_up)
            return
        actions = {entry.offset: entry.action for entry in appends if isinstance(entry.action, Append)}
        async for record in self._windows.records(view.route.at, view.window, list(actions)):
            for event in events_of_record(id_, record, actions[record.offset]):
                if event.seq_nr >= first:
                    yield event

    async def _caught_up(self, id_: str, view: View, appends: list[Entry]) -> JournalMeta | None:
        """Return the state in the store if that holds all the appends by now, and reading the log can be spared."""
        meta = view.meta
        if meta is None or all(entry.offset in view.window.records for entry in appends):
            return None
        now = await self._store.meta(meta.topic, id_)
        if now is None or now.record_id != meta.record_id or now.delete_to != meta.delete_to:
            return None
        return now if now.place >= appends[-1].place else None


def _fold(stored: JournalMeta | None, window: Window) -> tuple[JournalMeta | None, tuple[Entry, ...]]:
    """Fold the window on the state; returns the new state and the appends that count."""
    meta = stored
    appends: list[Entry] = []
    for entry in window.entries:
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


def _last(entry: Entry) -> int:
    return entry.action.last if isinstance(entry.action, Append) else 0
