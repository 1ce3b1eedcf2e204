"""What became of a key's appends in the un-replicated head, and which numbers their events have under a tag.

State and number come from the store, the state first, and are carried on by the fold. A record that either of them
covers was replicated already: its row is in the views, or it was void.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.journal.actions import Append
from headrace.journal.decoding import events_of_record
from headrace.journal.folding import Effect, Entry, step
from headrace.store import JournalMeta, Place, Store, TagTime
from headrace.tags.buckets import Bucket
from headrace.tags.events import TaggedEvent, tagged, tagged_row
from headrace.tags.numbering import unique_tags
from headrace.tags.offsets import TagOffset

__all__ = ["KeyState", "load_key", "rows_of"]


@dataclass(slots=True)
class KeyState:
    """One key: its journal's state, its last number under the tag, and up to where replication has been seen."""

    tag: str
    meta: JournalMeta | None
    number: int
    covered: Place | None

    def counts(self, entry: Entry) -> bool:
        """Fold one more action; says whether it is an append that counts."""
        if self.meta is not None and entry.place <= self.meta.place:
            return False
        done = step(self.meta, entry)
        self.meta = done.meta
        return done.effect is Effect.APPENDED

    def is_replicated(self, entry: Entry) -> bool:
        """Say whether the views know already what became of the action."""
        return self.covered is not None and entry.place <= self.covered

    def carry_on(self, entries: Sequence[Entry], counts: Mapping[Place, int]) -> None:
        """Fold actions of the head; `counts` says how many events under the tag they have, where they have any."""
        for entry in entries:
            if self.counts(entry) and not self.is_replicated(entry):
                self.number += counts.get(entry.place, 0)

    def number_events(self, entry: Entry, time: TagTime) -> list[TaggedEvent]:
        """Return the record's events under the tag, with the next numbers."""
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
