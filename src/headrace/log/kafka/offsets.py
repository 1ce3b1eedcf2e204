"""What a partition holds, and where a moment lies in it."""

from __future__ import annotations

import asyncio
from typing import Any

import confluent_kafka
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec

from headrace.log.kafka.cluster import Cluster
from headrace.model import Bounds, TopicPartition

__all__ = ["find_bounds", "find_offset_at"]


async def find_bounds(cluster: Cluster, at: TopicPartition) -> Bounds:
    """Ask for the start, the last stable offset and the high watermark, together."""
    start, end, high = await asyncio.gather(
        _offset(cluster, at, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
        _offset(cluster, at, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
        _offset(cluster, at, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
    )
    # Three answers from three moments: keep them in order, whichever came first.
    return Bounds(start, max(start, end), max(start, end, high))


async def find_offset_at(cluster: Cluster, at: TopicPartition, timestamp_ms: int) -> int | None:
    """Ask for the lowest offset whose timestamp is not below."""
    spec = OffsetSpec.for_timestamp(timestamp_ms)
    offset = await _offset(cluster, at, spec, IsolationLevel.READ_COMMITTED)
    return offset if offset >= 0 else None


async def _offset(cluster: Cluster, at: TopicPartition, spec: Any, isolation: Any) -> int:  # noqa: ANN401
    where = confluent_kafka.TopicPartition(at.topic, at.partition)
    answer = await cluster.ask(
        f"list offsets of {at}",
        cluster.client.list_offsets,
        {where: spec},
        topic=at.topic,
        isolation_level=isolation,
    )
    return int(answer.offset)
