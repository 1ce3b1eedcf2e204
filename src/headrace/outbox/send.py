"""Sending a batch: its records and their partitions, compaction, poison messages, and delivery at least once.

Delivery exactly once is in `exactly_once`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.errors import (
    BadArgument,
    HeadraceError,
    RecordTooLarge,
    TimedOut,
    TimestampTooFarAhead,
    TransactionFailed,
)
from headrace.log import Log
from headrace.model import NewRecord, partition_of
from headrace.outbox.leases import LaneLease
from headrace.outbox.messages import Lane, PendingMessage, record_of
from headrace.outbox.ports import PoisonPolicy
from headrace.runtime import SYSTEM_CLOCK, Clock

__all__ = [
    "AtLeastOnce",
    "Compacted",
    "RowPlacement",
    "Sender",
    "Sent",
    "compact",
    "is_about_a_record",
    "keep_all",
    "not_behind",
    "refused_by_broker",
]

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


# A time that is refused and is older than this may be too old for its topic.
_RECENT_MS = 3_600_000

# What a log says to one record and not to the batch. Everything else may pass, or an operator may fix it:
# a broker that is away, a topic that is missing, a permission that was taken.
_ABOUT_A_RECORD = (BadArgument, RecordTooLarge, TimestampTooFarAhead)


def is_about_a_record(error: Exception, *, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Return True if one of the records is at fault, whatever the state of the log.

    No record has a time later than this machine's clock. So if one with a recent time is refused for it, the clocks
    are apart, and all other records would be refused as well.
    """
    if isinstance(error, TimestampTooFarAhead) and (error.timestamp_ms or 0) > clock.now_ms() - _RECENT_MS:
        return False
    return isinstance(error, _ABOUT_A_RECORD)


def refused_by_broker(error: Exception) -> Exception | None:
    """Return what a broker said to one of a transaction's records, where the transaction failed by it."""
    reason = error.__cause__ if isinstance(error, TransactionFailed) else error
    return reason if isinstance(reason, Exception) and is_about_a_record(reason) else None


def not_behind(
    refused: Mapping[int, str], rows: Sequence[PendingMessage], policy: PoisonPolicy
) -> Callable[[PendingMessage], bool]:
    """Return the claim that a message is not held back by one of the refused ones."""
    if not refused or policy == "skip":
        return lambda row: True
    if policy == "block_topic":
        first = min(refused)
        return lambda row: row.id < first
    blocked: dict[bytes, int] = {}
    for row in rows:
        if row.id in refused and row.order_key is not None:
            blocked.setdefault(row.order_key, row.id)
    return lambda row: row.order_key is None or row.id < blocked.get(row.order_key, row.id + 1)


class AtLeastOnce:
    """Sends batches by plain appends, which are waited for until the log has answered.

    An append that outlasts its time is not given up: its records may still be on their way, and others sent behind
    them would land in another order. So it is remembered, and asked for again at the next turn of its lane.
    """

    def __init__(self, log: Log, *, timeout_s: float) -> None:
        self._log = log
        self._placement = RowPlacement(log)
        self._timeout_s = timeout_s
        self._on_its_way: dict[Lane, tuple[Sent, asyncio.Task[None]]] = {}
        self._landed: dict[Lane, Sent] = {}

    async def recover(self, lease: LaneLease) -> Sent:
        """Wait for what is still on its way, and return what landed of a batch that failed. Raises TimedOut."""
        if lease.lane in self._on_its_way:
            landed = self._landed.setdefault(lease.lane, Sent())
            landed.merge(await self._wait(lease.lane))
        return self._landed.pop(lease.lane, Sent())

    async def send(self, lease: LaneLease, batch: Compacted, policy: PoisonPolicy) -> Sent:
        """Append the records; a batch that is refused is cut in halves until the culprits stand alone."""
        sent = Sent()
        try:
            await self._deliver(lease.lane, batch, batch.kept, policy, sent)
        except BaseException:
            self._landed[lease.lane] = sent  # what is in the log already must not be sent again
            raise
        return sent

    async def close(self) -> None:
        """Forget what is on its way; the log flushes it, or drops it, when it is closed."""
        for _, append in self._on_its_way.values():
            append.cancel()
        await asyncio.gather(*(append for _, append in self._on_its_way.values()), return_exceptions=True)
        self._on_its_way.clear()

    async def _deliver(
        self, lane: Lane, batch: Compacted, rows: Sequence[PendingMessage], policy: PoisonPolicy, sent: Sent
    ) -> None:
        if not rows:
            return
        try:
            sent.merge(await self._append(lane, batch, rows))
        except Exception as error:
            if not is_about_a_record(error):
                raise
            if len(rows) == 1:
                sent.refused[rows[0].id] = str(error)
                sent.event_ids[rows[0].id] = rows[0].event_id
                return
        else:
            return
        middle = len(rows) // 2
        await self._deliver(lane, batch, rows[:middle], policy, sent)
        free = not_behind(sent.refused, rows, policy)
        await self._deliver(lane, batch, [row for row in rows[middle:] if free(row)], policy, sent)

    async def _append(self, lane: Lane, batch: Compacted, rows: Sequence[PendingMessage]) -> Sent:
        records = await self._placement.records(lane.topic, rows)
        append = asyncio.create_task(self._append_all(records))
        landing = Sent()
        landing.add(batch, [row.id for row in rows])
        self._on_its_way[lane] = (landing, append)
        return await self._wait(lane)

    async def _append_all(self, records: Sequence[NewRecord]) -> None:
        await self._log.append(records)

    async def _wait(self, lane: Lane) -> Sent:
        """Return what is acknowledged now."""
        landing, append = self._on_its_way[lane]
        done, _ = await asyncio.wait([append], timeout=self._timeout_s)
        if not done:
            raise TimedOut(f"sending {lane}", self._timeout_s, outcome_known=False)
        del self._on_its_way[lane]
        try:
            append.result()
        except HeadraceError:
            self._placement.forget(lane.topic)  # its partitions may have changed
            raise
        return landing
