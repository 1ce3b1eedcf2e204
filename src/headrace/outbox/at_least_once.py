"""Sending a batch at least once: plain appends, which are waited for until the log has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.errors import HeadraceError, TimedOut
from headrace.log import Log
from headrace.model import NewRecord
from headrace.outbox.leases import LaneLease
from headrace.outbox.messages import Lane, PendingMessage
from headrace.outbox.poison import is_about_a_record, not_behind
from headrace.outbox.ports import PoisonPolicy
from headrace.outbox.send import Compacted, RowPlacement, Sent

__all__ = ["AtLeastOnce"]


class AtLeastOnce:
    """Plain appends.

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
