"""Which offsets the keys have that a head has forgotten: 16 bytes an action, instead of the action itself.

A key that is not in it did nothing that was forgotten, so what the head does not hold of it is not there. Of a key that
is in it the log is asked for a few records, not for all. Keys are told apart by a hash of 64 bits: of two that have the
same each is given the other's offsets too, and reads a record more.
"""

from __future__ import annotations

from array import array

__all__ = ["HeadIndex"]

_BUCKETS = 1024


class HeadIndex:
    """Offsets by key. What is at or below a replicated offset is thrown out, some buckets at a time."""

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._entries = 0
        self._cut = -1
        self._turn = 0

    def __len__(self) -> int:
        return self._entries

    def add(self, key: str, offset: int) -> None:
        """Note that a key has an action at an offset."""
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
        """Forget all at or below an offset: the store has it. A part of the work is done with each call."""
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
