"""Sending a batch, at least once: acknowledged by all, poison told apart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import HeadraceError, TimedOut
from headrace.log import Log
from headrace.model import NewRecord
from headrace.outbox.compacting import Compacted
from headrace.outbox.leases import Lease
from headrace.outbox.messages import PendingMessage, Place
from headrace.outbox.placing import Placing
from headrace.outbox.poison import is_about_a_record, not_behind
from headrace.outbox.ports import PoisonPolicy

__all__ = ["AtLeastOnce", "Sender", "Sent"]


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

    async def recover(self, lease: Lease) -> Sent:
        """Return what earlier senders, or an earlier try, got into the log without being able to say so."""
        ...

    async def send(self, lease: Lease, batch: Compacted, policy: PoisonPolicy) -> Sent:
        """Send the messages that are kept of the batch, in order. Raises what the log raises."""
        ...

    async def close(self) -> None:
        """Let go of what is held."""
        ...


class AtLeastOnce:
    """Plain appends.

    An append that outlasts its time is not given up: its records may still be on their way, and others sent behind
    them would land in another order. So it is remembered, and asked for again at the next turn of its place.
    """

    def __init__(self, log: Log, *, timeout_s: float) -> None:
        self._log = log
        self._placing = Placing(log)
        self._timeout_s = timeout_s
        self._on_its_way: dict[Place, tuple[Sent, asyncio.Task[None]]] = {}
        self._landed: dict[Place, Sent] = {}

    async def recover(self, lease: Lease) -> Sent:
        """Wait for what is still on its way, and tell what landed of a batch that failed. Raises TimedOut."""
        if lease.place in self._on_its_way:
            landed = self._landed.setdefault(lease.place, Sent())
            landed.merge(await self._wait(lease.place))
        return self._landed.pop(lease.place, Sent())

    async def send(self, lease: Lease, batch: Compacted, policy: PoisonPolicy) -> Sent:
        """Append the records; a batch that is refused is cut in halves until the culprits stand alone."""
        sent = Sent()
        try:
            await self._deliver(lease.place, batch, batch.kept, policy, sent)
        except BaseException:
            self._landed[lease.place] = sent  # what is in the log already must not be sent again
            raise
        return sent

    async def close(self) -> None:
        """Forget what is on its way; the log flushes it, or drops it, when it is closed."""
        for _, append in self._on_its_way.values():
            append.cancel()
        await asyncio.gather(*(append for _, append in self._on_its_way.values()), return_exceptions=True)
        self._on_its_way.clear()

    async def _deliver(
        self, place: Place, batch: Compacted, rows: Sequence[PendingMessage], policy: PoisonPolicy, sent: Sent
    ) -> None:
        if not rows:
            return
        try:
            sent.merge(await self._append(place, batch, rows))
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
        await self._deliver(place, batch, rows[:middle], policy, sent)
        free = not_behind(sent.refused, rows, policy)
        await self._deliver(place, batch, [row for row in rows[middle:] if free(row)], policy, sent)

    async def _append(self, place: Place, batch: Compacted, rows: Sequence[PendingMessage]) -> Sent:
        records = await self._placing.records(place.topic, rows)
        append = asyncio.create_task(self._append_all(records))
        landing = Sent()
        landing.add(batch, [row.id for row in rows])
        self._on_its_way[place] = (landing, append)
        return await self._wait(place)

    async def _append_all(self, records: Sequence[NewRecord]) -> None:
        await self._log.append(records)

    async def _wait(self, place: Place) -> Sent:
        """Return what is acknowledged now."""
        landing, append = self._on_its_way[place]
        done, _ = await asyncio.wait([append], timeout=self._timeout_s)
        if not done:
            raise TimedOut(f"sending {place}", self._timeout_s, outcome_known=False)
        del self._on_its_way[place]
        try:
            append.result()
        except HeadraceError:
            self._placing.forget(place.topic)  # its partitions may have changed
            raise
        return landing
