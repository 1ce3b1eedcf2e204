"""The state of a key in the head: which of its appends count, and the numbers of their events under a tag.

State and number are read from the store, the state first, and the fold carries them on. A record at or below one of
them is replicated already: its row is in the views, or it was void.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from headrace.journal import Layout
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.protocol import (
    Append,
    Effect,
    Entry,
    Mark,
    decode_append,
    entry_of,
    events_of_record,
    next_generation,
    step,
)
from headrace.store import JournalMeta, Place, Store, TagTime
from headrace.tags.events import TaggedEvent, TagOffset, tagged, tagged_row
from headrace.tags.registry import Bucket
from headrace.tags.write import unique_tags

__all__ = ["KeyLookup", "KeyState", "Scanned", "load_key", "rows_of"]


@dataclass(slots=True)
class KeyState:
    """One key: its journal's state, its last number under the tag, and how far it is known to be replicated."""

    tag: str
    meta: JournalMeta | None
    number: int
    covered: Place | None

    def counts(self, entry: Entry) -> bool:
        """Fold one more action; return True if it is an append that counts."""
        if self.meta is not None and entry.place <= self.meta.place:
            return False
        done = step(self.meta, entry)
        self.meta = done.meta
        return done.effect is Effect.APPENDED

    def is_replicated(self, entry: Entry) -> bool:
        """Return True if the action is replicated already."""
        return self.covered is not None and entry.place <= self.covered

    def carry_on(self, entries: Sequence[Entry], counts: Mapping[Place, int]) -> None:
        """Fold actions of the head; `counts` has the number of events under the tag for those that have any."""
        for entry in entries:
            if self.counts(entry) and not self.is_replicated(entry):
                self.number += counts.get(entry.place, 0)

    def number_events(self, entry: Entry, time: TagTime) -> list[TaggedEvent]:
        """Return the record's events under the tag with the next numbers."""
        if entry.record is None or not isinstance(entry.action, Append):
            return []
        found = []
        for event in events_of_record(entry.id, entry.record, entry.action):
            if self.tag in unique_tags(event.tags):
                self.number += 1
                offset = TagOffset.of(time, self.number, event.seq_nr)
                found.append(tagged(event, self.tag, entry.topic, entry.id, self.number, offset))
        return found


async def load_key(store: Store, tag: str, topic: str, id_: str) -> KeyState:
    """Return a key's state as the store has it."""
    meta = await store.reader.meta(topic, id_)
    number = (await store.tags.numbers.of(topic, id_)).get(tag)
    places = [known.place for known in (meta, number) if known is not None]
    return KeyState(tag, meta, number.number if number is not None else 0, max(places, default=None))


async def rows_of(store: Store, bucket: Bucket, tag: str, id_: str, time: TagTime) -> list[TaggedEvent]:
    """Return the events of a replicated record as the views have them; none if it was void."""
    pages = store.tags.views.read(tag, bucket.start_of(time.log_time_ms), first=time, last=time)
    return [tagged_row(row) async for page in pages for row in page if row.pid == id_]


_NOWHERE = Place(-1, -1)


class Scanned(NamedTuple):
    """A key's actions, oldest first, and the number of events under the tag of each append."""

    entries: list[Entry]
    counts: dict[Place, int]


class RememberedKeys(Protocol):
    """The part of a head that answers questions about keys."""

    def tracked(self, entry: Entry) -> KeyState | None:
        """Return the state that a key had there when its topic grew."""
        ...

    def ask(self, id_: str, up_to: int | None) -> Sequence[Entry] | None:
        """Return a key's actions up to an offset, or up to the position."""
        ...


class KeyLookup:
    """Finds the state of keys for one tag. `layout_of` returns a topic's layout; `heads` remember keys' actions."""

    def __init__(
        self,
        log: Log,
        store: Store,
        tag: str,
        *,
        layout_of: Callable[[str], Layout],
        heads: Mapping[TopicPartition, RememberedKeys],
    ) -> None:
        self._log = log
        self._store = store
        self._tag = tag
        self._layout_of = layout_of
        self._heads = heads

    async def load(self, entry: Entry) -> KeyState:
        """Return a key's state before an action: the one it had when it moved, else that of the store and the heads.

        The heads are asked first: what they drop after that is in the store when the store is asked.
        """
        found = self.before(entry) or await self.scan(entry)
        stored = await load_key(self._store, self._tag, entry.topic, entry.id)
        followed = [state for head in self._heads.values() if (state := head.tracked(entry)) is not None]
        latest = max((stored, *followed), key=lambda state: state.meta.place if state.meta is not None else _NOWHERE)
        state = dataclasses.replace(latest)
        state.carry_on(found.entries, found.counts)
        return state

    def before(self, entry: Entry) -> Scanned | None:
        """Return a key's actions in the heads before an action; None if they are not all known.

        A key that moved when its topic grew has some of them in the partitions where it was before.
        """
        found: dict[Place, Entry] = {}
        for stay in self._layout_of(entry.topic).stays(entry.id):
            is_here = stay.at.partition == entry.partition
            if is_here and stay.start > entry.offset:
                break  # a later stay in the same partition
            is_last = is_here and (stay.end is None or entry.offset < stay.end)
            head = self._heads.get(stay.at)
            entries = head.ask(entry.id, entry.offset - 1 if is_last else stay.end) if head is not None else ()
            if entries is None:
                return None
            found |= {each.place: each for each in entries if each.place < entry.place}
            if is_last:
                break
        return Scanned([found[place] for place in sorted(found)], {})

    async def scan(self, entry: Entry) -> Scanned:
        """Return the same as `before`, from the log itself."""
        found = Scanned([], {})
        layout = self._layout_of(entry.topic)
        for stay in layout.stays(entry.id):
            is_here = stay.at.partition == entry.partition and stay.start <= entry.offset
            is_last = is_here and (stay.end is None or entry.offset < stay.end)
            replicated = layout.of_topic(await self._store.reader.replicated(stay.at))
            generation = layout.first_generation(stay.at.partition)
            if replicated is not None:
                generation = max(generation, replicated.generation)
            first = max(replicated.offset + 1 if replicated is not None else 0, stay.start)
            end = entry.offset if is_last or stay.end is None else stay.end
            if end > first:
                await self._scan(stay.at, first, end, entry.id, generation, found)
            if is_last:
                break
        return found

    async def _scan(self, at: TopicPartition, first: int, end: int, id_: str, generation: int, found: Scanned) -> None:
        async for batch in self._log.read(at, first, end):
            for record in batch.records:
                each = entry_of(record, generation) if record.offset < end else None
                if each is not None and isinstance(each.action, Mark):
                    generation = next_generation(generation, each.action)
                elif each is not None and each.id == id_:
                    found.counts[each.place] = self._count(each)
                    found.entries.append(msgspec.structs.replace(each, record=None))

    def _count(self, entry: Entry) -> int:
        if not isinstance(entry.action, Append) or entry.record is None:
            return 0
        try:
            events = decode_append(entry.action, entry.record.value).events
        except ValueError:  # it holds its key and has no events
            return 0
        return sum(self._tag in event.tags for event in events)
