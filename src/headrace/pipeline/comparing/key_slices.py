"""Walking through the journals of a window in slices of bounded size, so that a long log costs no memory.

The first pass reads headers only: it counts, and remembers a hash of each key. Then the log is read once for each
slice of the keys. A slice holds about the same number of events; one journal's window is held whole.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Collection
from hashlib import blake2b

import numpy as np

from headrace.errors import OffsetOutOfRange
from headrace.journal.actions import Append
from headrace.journal.folding import Entry
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.comparing.key_windows import MovingWindow, Window, read_entries

__all__ = ["KeySet", "Survey", "entries_of", "ids_in", "slices", "survey"]

EVENTS_AT_ONCE = 20_000
_HASHES_KEPT = 1 << 18
_EVENTS_OF_APPEND = 1000


class KeySet:
    """Which keys were seen, by a hash of each: eight bytes for a key."""

    def __init__(self) -> None:
        self._new: list[int] = []
        self._known = np.empty(0, np.uint64)

    def __contains__(self, id_: str) -> bool:
        self._settle()
        wanted = np.uint64(_hash(id_))
        place = int(np.searchsorted(self._known, wanted))
        return place < len(self._known) and bool(self._known[place] == wanted)

    def add(self, id_: str) -> None:
        """Remember a key."""
        self._new.append(_hash(id_))
        if len(self._new) >= _HASHES_KEPT:
            self._settle()

    def _settle(self) -> None:
        if self._new:
            self._known = np.union1d(self._known, np.array(self._new, np.uint64))
            self._new.clear()


class Survey:
    """How much there is in a window, and of which keys."""

    def __init__(self) -> None:
        self.records = 0
        self.events = 0
        self._keys = KeySet()

    def __contains__(self, id_: str) -> bool:
        return id_ in self._keys

    def add(self, entry: Entry) -> None:
        """Count an entry."""
        self.records += 1
        self.events += _most_events(entry.action) if isinstance(entry.action, Append) else 1
        self._keys.add(entry.id)


async def survey(log: Log, window: Window) -> Survey:
    """Read the headers of a window."""
    found = Survey()
    async for entry in read_entries(log, window, lambda _: True, headers_only=True):
        found.add(entry)
    return found


async def slices(
    log: Log, moving: MovingWindow, found: Survey, *, events_at_once: int = EVENTS_AT_ONCE
) -> AsyncIterator[dict[str, list[Entry]]]:
    """Yield the window's entries by id, a slice of the keys at a time; `moving` has the window that they are of."""
    count = -(-found.events // max(1, events_at_once))
    for number in range(count):

        def wanted(key: bytes, number: int = number) -> bool:
            return zlib.crc32(key) % count == number

        yield await moving.read(lambda window, wanted=wanted: _gather(log, window, wanted))  # type: ignore[misc]


async def entries_of(log: Log, window: Window, ids: Collection[str]) -> dict[str, list[Entry]]:
    """Return the entries of some journals, those that are not replicated yet included."""
    keys = {id_.encode(errors="surrogateescape") for id_ in ids}
    found = await _gather(log, window, keys.__contains__, is_beyond=True)
    return {id_: found.get(id_, []) for id_ in ids}


async def ids_in(log: Log, at: TopicPartition, ids: Collection[str]) -> set[str]:
    """Return which of the journals have records in a partition, whoever wrote them there."""
    keys = {id_.encode(errors="surrogateescape"): id_ for id_ in ids}
    start, found = 0, set[str]()
    while True:
        bounds = await log.bounds(at)
        start = max(start, bounds.start)
        if start >= bounds.end:
            return found
        try:
            async for batch in log.read(at, start, bounds.end, headers_only=True):
                found |= {keys[record.key] for record in batch.records if record.key in keys}
                start = batch.next_offset
        except OffsetOutOfRange as error:
            if error.offset >= error.start:
                raise
            start = error.start  # removed meanwhile, by replication that has carried it into the store
        else:
            return found


async def _gather(
    log: Log, window: Window, wanted: Callable[[bytes], bool], *, is_beyond: bool = False
) -> dict[str, list[Entry]]:
    by_id: dict[str, list[Entry]] = {}
    async for entry in read_entries(log, window, wanted, is_beyond=is_beyond):
        by_id.setdefault(entry.id, []).append(entry)
    return by_id


def _most_events(append: Append) -> int:
    """Return how many events an append may hold: its numbers may jump by millions, so they say little."""
    return min(append.last - append.first + 1, _EVENTS_OF_APPEND)


def _hash(id_: str) -> int:
    return int.from_bytes(blake2b(id_.encode(errors="surrogateescape"), digest_size=8).digest())
