"""Heads that a worker keeps between the batches of a partition, because reading them costs as much as writing rows."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.model import TopicPartition
from headrace.store import JournalMeta, Place

__all__ = ["KeptHeads"]

_KEPT = 100_000
_KEPT_FOR_S = 60.0


@dataclass(slots=True)
class _Partition:
    """The end of the last batch of a partition, and the heads as they were there; the first was kept at `since_s`."""

    end: Place
    since_s: float
    heads: OrderedDict[str, JournalMeta] = field(default_factory=OrderedDict)


class KeptHeads:
    """Heads of journals, by partition, as they are at the end of the last batch that this process applied.

    Promises: a kept head is the fold of all records of its journal up to the partition's replicated offset. If that
    offset is not where this process left it, another process has moved it, and nothing is kept. A process that wrote
    later heads and died before it moved the offset does no harm: the same records give the same rows and heads again,
    at the same places. Heads are read again after `kept_for_s`, so that one that was repaired in the store counts.
    """

    def __init__(
        self, *, most: int = _KEPT, kept_for_s: float = _KEPT_FOR_S, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._kept_for_s = kept_for_s
        self._now_s = now_s
        self._partitions: OrderedDict[TopicPartition, _Partition] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(kept.heads) for kept in self._partitions.values())

    def after(self, at: TopicPartition, place: Place) -> Mapping[str, JournalMeta]:
        """Return the heads of a partition that is replicated up to a place; none if another process moved it there."""
        kept = self._partitions.get(at)
        if kept is None or kept.end != place or self._now_s() - kept.since_s > self._kept_for_s:
            self._partitions.pop(at, None)
            return {}
        return kept.heads

    def keep(
        self, at: TopicPartition, start: Place, end: Place, heads: Mapping[str, JournalMeta], gone: Iterable[str]
    ) -> None:
        """Keep the heads that a batch from `start` to `end` has written, and forget the other journals it changed.

        Nothing is kept beyond a generation: a journal that leaves the partition may come back changed.
        """
        self.after(at, start)
        if start.generation != end.generation:
            self._partitions.pop(at, None)
            return
        kept = self._partitions.setdefault(at, _Partition(end, self._now_s()))
        self._partitions.move_to_end(at)
        kept.end = end
        for id_ in gone:
            kept.heads.pop(id_, None)
        for id_, head in heads.items():
            kept.heads[id_] = head
            kept.heads.move_to_end(id_)
        self._shrink()

    def _shrink(self) -> None:
        """Forget the partitions, then the journals, that were not changed for the longest time."""
        excess = len(self) - self._most
        while excess > 0:
            oldest = next(iter(self._partitions.values()))
            excess -= 1
            oldest.heads.popitem(last=False)
            if not oldest.heads:
                self._partitions.popitem(last=False)
