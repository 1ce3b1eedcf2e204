"""Which partition holds a key, by the topic's published generation."""

from __future__ import annotations

from typing import NamedTuple

from headrace.log import Log
from headrace.model import TopicPartition, partition_of

__all__ = ["Route", "Topology"]


class Route(NamedTuple):
    """Where a key's records are, and in which generation."""

    at: TopicPartition
    generation: int


class Topology:
    """The partitions of one topic. The number is looked up once: a topic grows by a procedure, never silently."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self.topic = topic
        self._partitions: int | None = None

    async def partitions(self) -> int:
        """Return how many partitions the topic has."""
        if self._partitions is None:
            self._partitions = (await self._log.admin.describe(self.topic)).partitions
        return self._partitions

    async def route(self, id_: str) -> Route:
        """Return where the key's records are."""
        return Route(TopicPartition(self.topic, partition_of(id_.encode(), await self.partitions())), 0)
