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

from headrace.journal.actions import Mark, Purge
from headrace.journal.folding import Entry

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
    """

    kind: HeadKind
    entries: Sequence[Entry] = ()


@dataclass(slots=True)
class _Key:
    """The actions of one key from `complete_from` on."""

    complete_from: int
    entries: list[Entry] = field(default_factory=list)


class Head:
    """The head of one partition."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.position = start
        self._evicted_to = -1
        self._keys: OrderedDict[str, _Key] = OrderedDict()
        self.actions = 0

    def take(self, entries: Sequence[Entry], position: int) -> None:
        """Add what the log holds from the old position to the new one. Repetitions change nothing."""
        for entry in entries:
            if entry.offset >= self.position and not isinstance(entry.action, Mark):
                self._add(entry)
                self.position = entry.offset + 1
        self.position = max(self.position, position)

    def ask(self, id_: str, *, after: int, up_to: int) -> HeadAnswer:
        """Say what the key's actions in (after, up_to] are. The position must be past `up_to`."""
        if after + 1 < self.start:
            return HeadAnswer(HeadKind.BEHIND)
        known = self._keys.get(id_)
        complete_from = known.complete_from if known is not None else self._evicted_to + 1
        if after + 1 < complete_from:
            return HeadAnswer(HeadKind.UNKNOWN)
        entries = known.entries if known is not None else ()
        return HeadAnswer(HeadKind.KNOWN, [entry for entry in entries if after < entry.offset <= up_to])

    def replicated(self, offset: int) -> None:
        """Drop what the store has: all at or below the offset."""
        if offset < self.start:
            return
        self.start = offset + 1
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
        if isinstance(entry.action, Purge) and entry.action.last_append is None:
            self.actions -= len(key.entries)
            key.entries.clear()
            key.complete_from = 0  # whatever came before it is gone with the purge
        key.entries.append(msgspec.structs.replace(entry, record=None))
        self.actions += 1
