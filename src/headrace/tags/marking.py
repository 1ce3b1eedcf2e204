"""Marks that let waiting events through: idle partitions are told that time has passed.

One for all queries of a process: a partition that was marked for one event needs no second Mark for the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from headrace.errors import HeadraceError
from headrace.journal.actions import Mark
from headrace.journal.headers import encode_action
from headrace.log import Log
from headrace.model import NewRecord, Position, TopicPartition
from headrace.observe import get_logger
from headrace.tags.metrics import MARKS

__all__ = ["MARK_KEY", "Marker"]

MARK_KEY = b"headrace-tags"

_logger = get_logger(__name__)


class Marker:
    """Writes Marks with a timestamp of the caller's. With `is_reader` it writes none."""

    def __init__(self, log: Log, *, is_reader: bool = False) -> None:
        self._log = log
        self.is_reader = is_reader
        self._marked_ms: dict[TopicPartition, int] = {}

    async def mark(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> list[Position]:
        """Write a Mark into each partition that has none of that time yet; returns where they are."""
        wanted = [at for at in partitions if self._marked_ms.get(at, -1) < timestamp_ms]
        if self.is_reader or not wanted:
            return []
        before = {at: self._marked_ms.get(at, -1) for at in wanted}
        self._marked_ms.update(dict.fromkeys(wanted, timestamp_ms))
        try:
            positions = await self._log.append([_record(at, timestamp_ms) for at in wanted])
        except HeadraceError as error:
            self._marked_ms.update(before)
            _logger.warning("idle partitions not marked", partitions=len(wanted), error=str(error))
            return []
        for at in wanted:
            MARKS.labels(at.topic).inc()
        return [Position(p.topic, p.partition, p.offset, timestamp_ms) for p in positions]


def _record(at: TopicPartition, timestamp_ms: int) -> NewRecord:
    headers = encode_action(Mark(id=uuid.uuid4().hex))
    return NewRecord(at.topic, MARK_KEY, None, headers, partition=at.partition, timestamp_ms=timestamp_ms)
