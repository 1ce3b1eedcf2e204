"""Which partition holds a key, by the topic's published generation."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import TopicExists, UnknownTopic
from headrace.log import Log
from headrace.model import Topic, TopicConfig, TopicPartition, partition_of

__all__ = ["JOURNAL_TOPIC", "Route", "Topology"]

# Old records go by time; the embedded log waits until the store has them.
JOURNAL_TOPIC = TopicConfig(keep_until_released=True)


class Route(NamedTuple):
    """Where a key's records are, and in which generation."""

    at: TopicPartition
    generation: int


class Topology:
    """The partitions of one topic. The number is looked up once: a topic grows by a procedure, never silently.

    A topic that is not there is made, with `partitions`, unless that is None.
    """

    def __init__(self, log: Log, topic: str, *, partitions: int | None = None) -> None:
        self._log = log
        self.topic = topic
        self._wanted = partitions
        self._partitions: int | None = None

    async def partitions(self) -> int:
        """Return how many partitions the topic has."""
        if self._partitions is None:
            self._partitions = (await self._topic()).partitions
        return self._partitions

    async def _topic(self) -> Topic:
        try:
            return await self._log.admin.describe(self.topic)
        except UnknownTopic:
            if self._wanted is None:
                raise
        try:
            return await self._log.admin.create(self.topic, partitions=self._wanted, config=JOURNAL_TOPIC)
        except TopicExists:  # another process was quicker
            return await self._log.admin.describe(self.topic)

    async def route(self, id_: str) -> Route:
        """Return where the key's records are."""
        return Route(TopicPartition(self.topic, partition_of(id_.encode(), await self.partitions())), 0)
