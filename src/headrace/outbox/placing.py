"""From rows to records: which partition, which timestamp."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.log import Log
from headrace.model import NewRecord, partition_of
from headrace.outbox.messages import PendingMessage, record_of
from headrace.runtime import SYSTEM_CLOCK, Clock

__all__ = ["Placing"]

_TRUSTED_S = 60.0


class Placing:
    """Makes records. The log places by key; only where a partition key is given must we know the partitions."""

    def __init__(self, log: Log, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = log
        self._clock = clock
        self._partitions: dict[str, tuple[int, float]] = {}

    async def records(self, topic: str, rows: Sequence[PendingMessage]) -> list[NewRecord]:
        """Return the records of the rows, in order."""
        now_ms = self._clock.now_ms()
        if all(row.partition_key is None for row in rows):
            return [record_of(topic, row, partition=None, now_ms=now_ms) for row in rows]
        partitions = await self._partitions_of(topic)
        return [
            record_of(
                topic,
                row,
                partition=None if row.partition_key is None else partition_of(row.partition_key, partitions),
                now_ms=now_ms,
            )
            for row in rows
        ]

    def forget(self, topic: str) -> None:
        """Ask again for the topic's partitions."""
        self._partitions.pop(topic, None)

    async def _partitions_of(self, topic: str) -> int:
        known, at_s = self._partitions.get(topic, (0, 0.0))
        if known and time.monotonic() - at_s < _TRUSTED_S:
            return known
        described = await self._log.admin.describe(topic)
        self._partitions[topic] = (described.partitions, time.monotonic())
        return described.partitions
