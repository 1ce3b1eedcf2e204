"""What a partition holds, and where a moment lies in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec

from headrace.log.kafka.cluster import Cluster
from headrace.model import Bounds, Position, TopicPartition

__all__ = ["Settling", "find_bounds", "find_offset_at"]

_ASK_AGAIN_S = 0.002
_SETTLE_S = 0.2
_NONE_YET = -1  # what brokers answer when no record is as young as was asked for


async def find_bounds(cluster: Cluster, at: TopicPartition) -> Bounds:
    """Ask for the start, the last stable offset and the high watermark, together."""
    start, end, high = await asyncio.gather(
        _offset(cluster, at, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
        _offset(cluster, at, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
        _offset(cluster, at, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
    )
    # Three answers from three moments: keep them in order, whichever came first.
    return Bounds(start, max(start, end), max(start, end, high))


class Settling:
    """Where our own transactions ended, until readers can see them.

    A commit returns before the brokers have marked the partitions. Whoever asks for the bounds right after it
    would not find what was just committed; so those who ask wait for the markers, and those who commit don't.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ends: dict[TopicPartition, int] = {}

    def ended(self, positions: Iterable[Position]) -> None:
        """Remember a transaction that was just committed or aborted."""
        for topic, partition, offset, _ in positions:
            at = TopicPartition(topic, partition)
            self._ends[at] = max(offset, self._ends.get(at, -1))

    async def bounds(self, at: TopicPartition) -> Bounds:
        """Ask for the bounds; again for a while, if they don't show yet what has ended here.

        Another transaction that is open below it stands in the way for longer: then the answer is what it is.
        """
        bounds = await find_bounds(self._cluster, at)
        last = self._ends.pop(at, -1)
        deadline = time.monotonic() + _SETTLE_S
        while bounds.end <= last < bounds.high_watermark and time.monotonic() < deadline:
            await asyncio.sleep(_ASK_AGAIN_S)
            bounds = await find_bounds(self._cluster, at)
        return bounds


async def find_offset_at(cluster: Cluster, at: TopicPartition, timestamp_ms: int) -> int | None:
    """Ask for the lowest offset whose timestamp is not below."""
    spec = OffsetSpec.for_timestamp(timestamp_ms)
    offset = await _offset(cluster, at, spec, IsolationLevel.READ_COMMITTED, none_yet=_NONE_YET)
    return offset if offset >= 0 else None


async def _offset(
    cluster: Cluster,
    at: TopicPartition,
    spec: Any,  # noqa: ANN401
    isolation: Any,  # noqa: ANN401
    *,
    none_yet: int = 0,
) -> int:
    """Ask for an offset. Raises Unavailable when no broker says one.

    While a partition's leader is away librdkafka answers without an error and without an offset; taken for one,
    that would be an empty partition, and readers would miss what it holds. `none_yet` is the lowest true answer.
    """
    where = confluent_kafka.TopicPartition(at.topic, at.partition)
    answer = await cluster.ask(
        f"list offsets of {at}",
        cluster.client.list_offsets,
        {where: spec},
        topic=at.topic,
        is_answer=lambda found: found.offset >= none_yet,
        isolation_level=isolation,
    )
    return int(answer.offset)
