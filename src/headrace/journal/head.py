"""What the un-replicated head of one partition holds, by key: pure, without the consumer that feeds it.

Knowledge is exact or said to be missing. `start` is the first offset it knows about; a key that was evicted, or that is
absent after an eviction, is unknown up to the eviction's offset.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from headrace.journal.actions import Mark, Poison, Purge
from headrace.journal.folding import Entry
from headrace.journal.partition_batch import next_generation

__all__ = ["Head", "HeadAnswer", "HeadKind"]


class HeadKind(Enum):
    """What the head knows about a key in a window."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """KNOWN: the key's actions in the window, all of them. UNKNOWN: look into the log.

    BEHIND: the window begins before what is kept; read the replicated offset and the state again, they have moved.
    `generation` is the partition's as of the last record seen.
    """

    kind: HeadKind
    entries: Sequence[Entry] = ()
    generation: int = 0


@dataclass(slots=True)
class _Key:
    """The actions of one key from `complete_from` on; what came before a purge at `cleared_at` was dropped."""

    complete_from: int
    cleared_at: int = -1
    entries: list[Entry] = field(default_factory=list)


class Head:
    """The head of one partition."""

    def __init__(self, start: int, generation: int = 0) -> None:
        self.start = start
        self.generation = generation
        self.position = start
        self._evicted_to = -1
        self._keys: OrderedDict[str, _Key] = OrderedDict()
        self.actions = 0

    def take(self, entries: Sequence[Entry], position: int) -> None:
        """Add what the log holds from the old position to the new one. Repetitions change nothing."""
        for entry in entries:
            if entry.offset < self.position:
                continue
            if isinstance(entry.action, Mark):
                self.generation = next_generation(self.generation, entry.action)
            else:
                self._add(entry)
            self.position = entry.offset + 1
        self.position = max(self.position, position)

    def ask(self, id_: str, *, after: int, up_to: int) -> HeadAnswer:
        """Say what the key's actions in (after, up_to] are. The position must be past `up_to`."""
        if after + 1 < self.start:
            return HeadAnswer(HeadKind.BEHIND)
        known = self._keys.get(id_)
        complete_from = known.complete_from if known is not None else self._evicted_to + 1
        if after + 1 < complete_from or (known is not None and up_to < known.cleared_at):
            return HeadAnswer(HeadKind.UNKNOWN)
        entries = known.entries if known is not None else ()
        return HeadAnswer(
            HeadKind.KNOWN, [entry for entry in entries if after < entry.offset <= up_to], self.generation
        )

    def replicated(self, offset: int, generation: int = 0) -> None:
        """Drop what the store has: all at or below the offset, where the partition was in that generation."""
        if offset < self.start:
            return
        self.start = offset + 1
        if self.start > self.position:
            self.generation = max(self.generation, generation)
        self.position = max(self.position, self.start)
        if self._evicted_to <= offset:
            self._evicted_to = -1
        for id_, key in list(self._keys.items()):
            kept = [entry for entry in key.entries if entry.offset > offset]
            self.actions -= len(key.entries) - len(kept)
            key.entries = kept
            if not kept:
                del self._keys[id_]

    def evict(self, most: int) -> int:
        """Forget the keys that were quiet for longest until at most so many actions are kept; returns how many keys."""
        evicted = 0
        while self.actions > most and self._keys:
            _, key = self._keys.popitem(last=False)
            self.actions -= len(key.entries)
            self._evicted_to = self.position - 1
            evicted += 1
        return evicted

    def _add(self, entry: Entry) -> None:
        key = self._keys.get(entry.id)
        if key is None:
            key = self._keys[entry.id] = _Key(self._evicted_to + 1)
        self._keys.move_to_end(entry.id)
        if _clears(entry, key):
            self.actions -= len(key.entries)
            key.entries.clear()
            key.cleared_at = entry.offset
        key.entries.append(msgspec.structs.replace(entry, record=None, generation=self.generation))
        self.actions += 1


def _clears(entry: Entry, key: _Key) -> bool:
    """Say whether nothing that the key did before matters any more. Behind poison a purge counts for nothing."""
    is_purge = isinstance(entry.action, Purge) and entry.action.last_append is None
    return is_purge and not any(isinstance(known.action, Poison) for known in key.entries)
