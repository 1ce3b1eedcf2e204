"""The layout of a topic: which partition holds which key, generation by generation. `Topology` reads and stores it.

When a topic grows, a generation begins at a boundary in each old partition. When a topic is deleted and created again,
a generation begins everywhere at once. A key that moved has its earlier records in its old partition, below the
boundary, and its later ones in the new partition.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.model import TopicPartition, partition_of
from headrace.store import ReplicatedOffset

__all__ = ["Generation", "Layout", "Stay", "layout_key"]


def layout_key(topic: str) -> str:
    """Return the name of the setting that holds a topic's layout."""
    return f"topic/{topic}"


class Generation(msgspec.Struct, frozen=True):
    """One generation. `boundaries` are the offsets where it begins, by old partition; empty for a new topic."""

    partitions: int
    boundaries: Mapping[int, int] = {}


class Stay(msgspec.Struct, frozen=True):
    """The stay of a key in one partition: offsets from `start` up to `end` (exclusive; None is open).

    A key may come back to a partition where it was before.
    """

    at: TopicPartition
    start: int
    end: int | None


class Layout(msgspec.Struct, frozen=True):
    """All generations of a topic. While it is growing, `since` has the ends of the log from before it began to grow."""

    topic: str
    topic_id: str
    generations: tuple[Generation, ...]
    growing_to: int | None = None
    since: Mapping[int, int] = {}

    @property
    def generation(self) -> int:
        """The published generation."""
        return len(self.generations) - 1

    @property
    def is_recreated(self) -> bool:
        """True if the published generation began because the topic was deleted and created again."""
        return self.generation > 0 and not self.generations[-1].boundaries

    @property
    def partitions(self) -> int:
        """The published number of partitions."""
        return self.generations[-1].partitions

    @property
    def growths(self) -> tuple[Generation, ...]:
        """The generations that began when this topic grew; not those of an earlier topic of the same name."""
        return self.generations[self._origin + 1 :]

    def route(self, id_: str) -> TopicPartition:
        """Return the partition that a key's records go to."""
        return self._at(id_, self.generations[-1])

    def first_generation(self, partition: int) -> int:
        """Return the generation of a partition's first record."""
        for number in range(self._origin, len(self.generations)):
            if partition < self.generations[number].partitions:
                return number
        return self.generation

    def of_topic(self, replicated: ReplicatedOffset | None) -> ReplicatedOffset | None:
        """Return a replicated offset if it is of this topic; None if it is of an earlier topic of the same name."""
        if replicated is None or replicated.generation < self.first_generation(replicated.at.partition):
            return None
        return replicated

    def generation_at(self, partition: int, offset: int) -> int:
        """Return the generation of a partition's record; a boundary itself belongs to the generation before it."""
        found = self.first_generation(partition)
        for number in range(found + 1, len(self.generations)):
            boundary = self.generations[number].boundaries.get(partition)
            if boundary is not None and boundary < offset:
                found = number
        return found

    def stays(self, id_: str) -> list[Stay]:
        """Return where a key's records are, oldest first; the last stay has no end."""
        stays: list[Stay] = []
        for number in range(self._origin, len(self.generations)):
            generation = self.generations[number]
            at = self._at(id_, generation)
            if stays and stays[-1].at != at:
                end = generation.boundaries[stays[-1].at.partition]
                stays[-1] = msgspec.structs.replace(stays[-1], end=end)
            if not stays or stays[-1].at != at:
                stays.append(Stay(at, generation.boundaries.get(at.partition, 0), None))
        return stays

    def is_home(self, id_: str, generation: int, at: TopicPartition) -> bool:
        """Return True if a key belonged in a partition in a generation."""
        return self._at(id_, self.generations[min(generation, self.generation)]) == at

    def growing(self, partitions: int, ends: Mapping[int, int]) -> Layout:
        """Return the layout of the topic when it has begun to grow."""
        return msgspec.structs.replace(self, growing_to=partitions, since=dict(ends))

    def grown(self, boundaries: Mapping[int, int]) -> Layout:
        """Return the layout with the new generation published."""
        if self.growing_to is None:
            raise AssertionError("a topic is grown after it was growing")
        grown = Generation(self.growing_to, dict(boundaries))
        return msgspec.structs.replace(self, generations=(*self.generations, grown), growing_to=None, since={})

    def recreated(self, topic_id: str, partitions: int) -> Layout:
        """Return the layout after the topic was deleted and created again: all its records are new."""
        recreated = Generation(partitions)
        return Layout(self.topic, topic_id, (*self.generations, recreated))

    @property
    def _origin(self) -> int:
        """The generation that this topic, not an earlier one of the same name, began with."""
        return max(n for n, generation in enumerate(self.generations) if n == 0 or not generation.boundaries)

    def _at(self, id_: str, generation: Generation) -> TopicPartition:
        return TopicPartition(self.topic, partition_of(id_.encode(), generation.partitions))
