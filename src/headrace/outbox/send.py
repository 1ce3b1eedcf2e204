"""Sending a batch: its records and their partitions, compaction, and what a sender answers.

The two senders are in `at_least_once` and `exactly_once`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.log import Log
from headrace.model import NewRecord, partition_of
from headrace.outbox.leases import LaneLease
from headrace.outbox.messages import PendingMessage, record_of
from headrace.outbox.ports import PoisonPolicy
from headrace.runtime import SYSTEM_CLOCK, Clock

__all__ = ["Compacted", "RowPlacement", "Sender", "Sent", "compact", "keep_all"]

_TRUSTED_S = 60.0


class RowPlacement:
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


class Compacted(NamedTuple):
    """What to send of the rows, and the ids that each sent message stands for beside its own."""

    rows: Sequence[PendingMessage]
    kept: Sequence[PendingMessage]
    superseded: dict[int, list[int]]

    def ids_done(self, sent: Iterable[int]) -> list[int]:
        """Return all ids that are done when these were sent."""
        if not self.superseded:
            return list(sent)
        return [id_ for each in sent for id_ in (*self.superseded.get(each, ()), each)]


def keep_all(rows: Sequence[PendingMessage]) -> Compacted:
    """Send everything."""
    return Compacted(rows, rows, {})


def compact(rows: Sequence[PendingMessage]) -> Compacted:
    """Keep the last message of each key, in order; messages without a key are all kept."""
    last = {row.key: row.id for row in rows if row.key is not None}
    kept = [row for row in rows if row.key is None or last[row.key] == row.id]
    superseded: dict[int, list[int]] = {}
    for row in rows:
        if row.key is not None and last[row.key] != row.id:
            superseded.setdefault(last[row.key], []).append(row.id)
    return Compacted(rows, kept, superseded)


@dataclass(slots=True, eq=False)
class Sent:
    """What became of messages: ids that are done, ids that can't be sent, each with the reason.

    Done are those that were acknowledged, and those that an acknowledged one of a compacted topic stands for. What is
    in neither was held back. `event_ids` has the event id of each, `superseded` those that another one stands for.
    `progress_offset` is where the log noted the batch, if it did.
    """

    ids: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    progress_offset: int | None = None
    event_ids: dict[int, str] = field(default_factory=dict)
    superseded: set[int] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Return True if nothing came of anything."""
        return not self.ids and not self.refused

    def add(self, batch: Compacted, acknowledged: Iterable[int]) -> None:
        """Add what is done now that these messages of the batch were acknowledged."""
        themselves = list(acknowledged)
        done = batch.ids_done(themselves)
        self.ids.extend(done)
        self.superseded.update(set(done).difference(themselves))
        self.event_ids.update({row.id: row.event_id for row in batch.rows})

    def merge(self, other: Sent) -> None:
        """Add what is known from elsewhere."""
        known = set(self.ids)
        self.ids.extend(id_ for id_ in other.ids if id_ not in known)
        self.refused.update(other.refused)
        self.event_ids.update(other.event_ids)
        self.superseded.update(other.superseded)
        offsets = [each for each in (self.progress_offset, other.progress_offset) if each is not None]
        self.progress_offset = max(offsets, default=None)


class Sender(Protocol):
    """Puts batches into the log.

    Promises: an id in `Sent.ids` is in the log for good. What raises may or may not be there.
    """

    async def recover(self, lease: LaneLease) -> Sent:
        """Return what earlier senders, or an earlier try, got into the log without being able to say so."""
        ...

    async def send(self, lease: LaneLease, batch: Compacted, policy: PoisonPolicy) -> Sent:
        """Send the messages that are kept of the batch, in order. Raises what the log raises."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...
