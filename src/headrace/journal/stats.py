"""How far replication of a topic has come."""

from __future__ import annotations

from typing import NamedTuple

from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.store import StoreReader

__all__ = ["PartitionStats", "partition_stats"]


class PartitionStats(NamedTuple):
    """One partition: the offsets that the log holds, and the last one that the store has (None: none yet)."""

    partition: int
    start: int
    end: int
    replicated: int | None

    @property
    def lag(self) -> int:
        """How many offsets the store is behind."""
        return self.end - 1 - (self.replicated if self.replicated is not None else self.start - 1)


async def partition_stats(log: Log, store: StoreReader, topology: Topology) -> list[PartitionStats]:
    """Ask the log and the store about every partition."""
    stats = []
    layout = await topology.layout()
    for partition in range(layout.partitions):
        at = TopicPartition(topology.topic, partition)
        bounds, replicated = await log.bounds(at), layout.of_topic(await store.replicated(at))
        offset = replicated.offset if replicated is not None else None
        stats.append(PartitionStats(partition, bounds.start, bounds.end, offset))
    return stats
