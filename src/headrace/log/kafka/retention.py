"""Retention in Kafka: truncation on request; the brokers do the rest."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka

from headrace.errors import OffsetOutOfRange
from headrace.log import checks
from headrace.log.kafka.metadata import Change, Cluster, TopicCache
from headrace.log.kafka.read import find_bounds
from headrace.model import TopicPartition

__all__ = ["KafkaRetention"]


class KafkaRetention:
    """Kafka's Retention: the brokers remove records by age, and `truncate` removes them on request."""

    def __init__(self, cluster: Cluster, topic_cache: TopicCache, check_open: Callable[[], None]) -> None:
        self._cluster = cluster
        self._topic_cache = topic_cache
        self._check_open = check_open

    async def truncate(self, at: TopicPartition, *, before: int) -> int:
        """Remove what lies below `before`; below the log's start there is nothing left to do."""
        self._check_open()
        checks.check_offset("before", before)
        await self._topic_cache.check(checks.check_place(at))
        bounds = await find_bounds(self._cluster, at)
        if not 0 <= before <= bounds.high_watermark:
            raise OffsetOutOfRange(at.topic, at.partition, before, bounds.start, bounds.high_watermark)
        if before <= bounds.start:
            return bounds.start
        deleted = await self._cluster.ask(
            f"truncate {at}",
            self._cluster.client.delete_records,
            [confluent_kafka.TopicPartition(at.topic, at.partition, before)],
            topic=at.topic,
            change=Change(),
            is_answer=lambda found: found.low_watermark >= 0,
        )
        return int(deleted.low_watermark)

    async def release(self, at: TopicPartition, *, below: int) -> None:
        """Do nothing: Kafka deletes by time alone."""
        self._check_open()
        checks.check_offset("below", below)
        checks.check_place(at)

    async def enforce(self) -> None:
        """Do nothing: the brokers apply retention in their own time."""
        self._check_open()
