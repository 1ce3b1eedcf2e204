"""The head of a partition: the un-replicated actions of its keys, and an index of those that did not fit in memory.

The index keeps 16 bytes for each evicted action: a hash of its key, and its offset. If a key is not in the index, none
of its actions was evicted. If it is, a reader fetches a few records from the log instead of all. Two keys with the same
64-bit hash get each other's offsets too, which costs a reader some more records.

Knowledge is exact or reported as missing. `start` is the first offset that a head knows about. A key that was evicted,
or that is absent after an eviction, is unknown up to the offset of that eviction, unless the index has it. The newest
records of appends are kept too, as far as their bytes are allowed; the others are read from the log.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from headrace.model import Record
from headrace.protocol.actions import Append, Mark, Poison, Purge
from headrace.protocol.entries import next_generation
from headrace.protocol.fold import Entry

__all__ = ["Head", "HeadAnswer", "HeadIndex", "HeadKind"]

_BUCKETS = 1024


class HeadIndex:
    """Offsets by key. Those at or below the replicated offset are removed, some buckets at a time."""

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._entries = 0
        self._cut = -1
        self._turn = 0

    def __len__(self) -> int:
        return self._entries

    def add(self, key: str, offset: int) -> None:
        """Add an action of a key at an offset."""
        name = hash(key)
        bucket = self._buckets.setdefault(name % _BUCKETS, array("q"))
        bucket.extend((name, offset))
        self._entries += 1

    def of(self, key: str, *, after: int, up_to: int) -> list[int]:
        """Return the offsets of a key in (after, up_to], lowest first."""
        name = hash(key)
        bucket = self._buckets.get(name % _BUCKETS)
        if bucket is None:
            return []
        first = max(after, self._cut) + 1
        places = (bucket[n + 1] for n in range(0, len(bucket), 2) if bucket[n] == name)
        return sorted({offset for offset in places if first <= offset <= up_to})

    def cut(self, offset: int) -> None:
        """Forget everything at or below an offset: the store has it. Each call does a part of the work."""
        self._cut = max(self._cut, offset)
        for _ in range(_BUCKETS // 16):
            self._clean(self._turn)
            self._turn = (self._turn + 1) % _BUCKETS

    def clear(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self._entries = 0

    def _clean(self, number: int) -> None:
        bucket = self._buckets.get(number)
        if bucket is None:
            return
        pairs = ((bucket[n], bucket[n + 1]) for n in range(0, len(bucket), 2))
        kept = array("q", (part for pair in pairs if pair[1] > self._cut for part in pair))
        self._entries -= (len(bucket) - len(kept)) // 2
        if kept:
            self._buckets[number] = kept
        else:
            del self._buckets[number]


_RECORD_BYTES = 500


class HeadKind(Enum):
    """How much the head knows about a key in a window."""

    KNOWN = "known"
    INDEXED = "indexed"
    UNKNOWN = "unknown"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """The answer to a question about one key in a window.

    KNOWN: these are all actions of the key in the window. UNKNOWN: the log must be read.
    INDEXED: the first actions must be read from the log, at `offsets`; the later ones are here.
    BEHIND: the window begins before what is kept; read the replicated offset and the state again, they have moved.
    `generation` is the partition's at the last record seen; `records` are those that are kept, by offset.
    """

    kind: HeadKind
    entries: Sequence[Entry] = ()
    generation: int = 0
    records: Mapping[int, Record] = field(default_factory=dict)
    offsets: Sequence[int] = ()


@dataclass(slots=True)
class _Key:
    """The actions of one key from `complete_from` on; those before a purge at `cleared_at` were dropped."""

    complete_from: int
    cleared_at: int = -1
    entries: list[Entry] = field(default_factory=list)


class Head:
    """The head of one partition. With `has_index` it remembers where evicted keys have their actions."""

    def __init__(self, start: int, generation: int = 0, *, has_index: bool = False) -> None:
        self.start = start
        self.generation = generation
        self.position = start
        self._evicted_to = -1
        self._keys: OrderedDict[str, _Key] = OrderedDict()
        self._records: OrderedDict[int, Record] = OrderedDict()
        self._index = HeadIndex() if has_index else None
        self._unindexed_to = -1
        self.actions = 0
        self.record_bytes = 0

    @property
    def indexed(self) -> int:
        """The number of actions in the index."""
        return len(self._index) if self._index is not None else 0

    def take(self, entries: Sequence[Entry], position: int, records: Mapping[int, Record] = {}) -> None:
        """Add the entries from the old position up to the new one. Entries that were added before change nothing.

        `records` are the records to keep, by offset.
        """
        for entry in entries:
            offset = entry.offset
            if offset < self.position:
                continue
            if isinstance(entry.action, Mark):
                self._pass_mark(entry.action)
            else:
                self._add(entry)
                record = records.get(offset)
                if record is not None and record.value is not None:
                    self._records[offset] = record
                    self.record_bytes += _size(record)
            self.position = offset + 1
        self.position = max(self.position, position)

    def ask(self, id_: str, *, after: int, up_to: int) -> HeadAnswer:
        """Return the key's actions in (after, up_to]. The position must be past `up_to`."""
        if after + 1 < self.start:
            return HeadAnswer(HeadKind.BEHIND)
        known = self._keys.get(id_)
        if known is not None and up_to < known.cleared_at:
            return HeadAnswer(HeadKind.UNKNOWN)
        complete_from = known.complete_from if known is not None else self._evicted_to + 1
        offsets: Sequence[int] = ()
        if after + 1 < complete_from:
            is_cleared = known is not None and known.cleared_at >= 0
            if self._index is None or is_cleared or after < self._unindexed_to:
                return HeadAnswer(HeadKind.UNKNOWN)
            offsets = self._index.of(id_, after=after, up_to=min(up_to, complete_from - 1))
        return self._answer(known, after, up_to, offsets)

    def _answer(self, known: _Key | None, after: int, up_to: int, offsets: Sequence[int]) -> HeadAnswer:
        kind = HeadKind.INDEXED if offsets else HeadKind.KNOWN
        if known is None:
            return HeadAnswer(kind, (), self.generation, offsets=offsets)
        entries = [entry for entry in known.entries if after < entry.offset <= up_to]
        get = self._records.get
        records = {entry.offset: record for entry in entries if (record := get(entry.offset)) is not None}
        return HeadAnswer(kind, entries, self.generation, records, offsets)

    def replicated(self, offset: int, generation: int = 0) -> None:
        """Drop what the store has: everything at or below an offset of that generation."""
        if offset < self.start:
            return
        self.start = offset + 1
        if self.start > self.position:
            self.generation = max(self.generation, generation)
        self.position = max(self.position, self.start)
        self._cut_index(offset)
        while self._records and next(iter(self._records)) <= offset:
            self._drop_record()
        for id_, key in list(self._keys.items()):
            if key.entries[0].offset > offset:
                continue
            kept = [entry for entry in key.entries if entry.offset > offset]
            self.actions -= len(key.entries) - len(kept)
            key.entries = kept
            if not kept:
                del self._keys[id_]

    def evict(self, most: int) -> int:
        """Forget the least recently active keys until at most `most` actions are kept; return the number of keys."""
        evicted = 0
        while self.actions > most and self._keys:
            id_, key = self._keys.popitem(last=False)
            self._note(id_, key)
            self._forget(key)
            self._evicted_to = self.position - 1
            evicted += 1
        return evicted

    def drop_index(self) -> None:
        """Forget the offsets of evicted actions: those keys are unknown from now on."""
        if self._index is not None:
            self._index.clear()
            self._unindexed_to = self.position - 1

    def drop_records(self, most_bytes: int) -> None:
        """Drop the oldest records until at most `most_bytes` of them are kept."""
        while self.record_bytes > most_bytes and self._records:
            self._drop_record()

    def _cut_index(self, offset: int) -> None:
        """Forget the evicted actions at or below an offset."""
        if self._evicted_to <= offset:
            self._evicted_to = -1
            if self._index is not None:
                self._index.clear()
        if self._unindexed_to <= offset:
            self._unindexed_to = -1
        if self._index is not None:
            self._index.cut(offset)

    def _note(self, id_: str, key: _Key) -> None:
        """Add the actions of an evicted key to the index. Before a purge of the key not all of them are known."""
        if self._index is None:
            return
        if key.cleared_at >= 0:
            self._unindexed_to = max(self._unindexed_to, key.cleared_at - 1)
        for entry in key.entries:
            self._index.add(id_, entry.offset)

    def _pass_mark(self, mark: Mark) -> None:
        """Go on to the next generation if it begins here. The index does not know generations."""
        generation = next_generation(self.generation, mark)
        if generation != self.generation:
            self.drop_index()
        self.generation = generation

    def _add(self, entry: Entry) -> None:
        key = self._keys.get(entry.id)
        if key is None:
            key = self._keys[entry.id] = _Key(self._evicted_to + 1)
        else:
            self._keys.move_to_end(entry.id)
        if type(entry.action) is not Append and _clears(entry, key):
            self._forget(key)
            key.cleared_at = entry.offset
        if entry.record is not None or entry.generation != self.generation:
            entry = msgspec.structs.replace(entry, record=None, generation=self.generation)
        key.entries.append(entry)
        self.actions += 1

    def _forget(self, key: _Key) -> None:
        self.actions -= len(key.entries)
        for entry in key.entries:
            record = self._records.pop(entry.offset, None)
            if record is not None:
                self.record_bytes -= _size(record)
        key.entries.clear()

    def _drop_record(self) -> None:
        _, record = self._records.popitem(last=False)
        self.record_bytes -= _size(record)


def _size(record: Record) -> int:
    """Return roughly how many bytes a record takes in memory."""
    return _RECORD_BYTES + len(record.value or b"") + len(record.key or b"")


def _clears(entry: Entry, key: _Key) -> bool:
    """Return True if the key's earlier actions do not matter any more. A purge behind poison does not clear them."""
    is_purge = isinstance(entry.action, Purge) and entry.action.last_append is None
    return is_purge and not any(isinstance(known.action, Poison) for known in key.entries)
