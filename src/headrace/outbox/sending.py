"""Sending a batch, at least once: acknowledged by all, poison told apart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import HeadraceError, TimedOut
from headrace.log import Log
from headrace.model import NewRecord
from headrace.outbox.leases import Lease
from headrace.outbox.messages import PendingMessage, Place
from headrace.outbox.placing import Placing
from headrace.outbox.poison import is_about_a_record, not_behind
from headrace.outbox.ports import PoisonPolicy

__all__ = ["AtLeastOnce", "Sender", "Sent"]


@dataclass(slots=True)
class Sent:
    """What became of a batch: ids that were acknowledged, ids that can't be sent, each with the reason.

    What is in neither was held back. `progress_offset` is where the log noted the batch, if it did.
    """

    ids: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    progress_offset: int | None = None


class Sender(Protocol):
    """Puts batches into the log.

    Promises: an id in `Sent.ids` is in the log for good. What raises may or may not be there.
    """

    async def recover(self, lease: Lease) -> Sent:
        """Return what earlier senders, or an earlier try, got into the log without being able to say so."""
        ...

    async def send(self, lease: Lease, rows: Sequence[PendingMessage], policy: PoisonPolicy) -> Sent:
        """Send the messages, in order. Raises what the log raises."""
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
        self._on_its_way: dict[Place, tuple[list[int], asyncio.Task[None]]] = {}

    async def recover(self, lease: Lease) -> Sent:
        """Wait for what is still on its way. Raises TimedOut while it is."""
        if lease.place not in self._on_its_way:
            return Sent()
        return Sent(await self._wait(lease.place))

    async def send(self, lease: Lease, rows: Sequence[PendingMessage], policy: PoisonPolicy) -> Sent:
        """Append the records; a batch that is refused is cut in halves until the culprits stand alone."""
        sent = Sent()
        await self._deliver(lease.place, rows, policy, sent)
        return sent

    async def close(self) -> None:
        """Forget what is on its way; the log flushes it, or drops it, when it is closed."""
        for _, append in self._on_its_way.values():
            append.cancel()
        await asyncio.gather(*(append for _, append in self._on_its_way.values()), return_exceptions=True)
        self._on_its_way.clear()

    async def _deliver(self, place: Place, rows: Sequence[PendingMessage], policy: PoisonPolicy, sent: Sent) -> None:
        if not rows:
            return
        try:
            sent.ids.extend(await self._append(place, rows))
        except Exception as error:
            if not is_about_a_record(error):
                raise
            if len(rows) == 1:
                sent.refused[rows[0].id] = str(error)
                return
        else:
            return
        middle = len(rows) // 2
        await self._deliver(place, rows[:middle], policy, sent)
        free = not_behind(sent.refused, rows, policy)
        await self._deliver(place, [row for row in rows[middle:] if free(row)], policy, sent)

    async def _append(self, place: Place, rows: Sequence[PendingMessage]) -> list[int]:
        records = await self._placing.records(place.topic, rows)
        append = asyncio.create_task(self._append_all(records))
        self._on_its_way[place] = ([row.id for row in rows], append)
        return await self._wait(place)

    async def _append_all(self, records: Sequence[NewRecord]) -> None:
        await self._log.append(records)

    async def _wait(self, place: Place) -> list[int]:
        """Return the ids that are acknowledged now."""
        ids, append = self._on_its_way[place]
        done, _ = await asyncio.wait([append], timeout=self._timeout_s)
        if not done:
            raise TimedOut(f"sending {place}", self._timeout_s, outcome_known=False)
        del self._on_its_way[place]
        try:
            append.result()
        except HeadraceError:
            self._placing.forget(place.topic)  # its partitions may have changed
            raise
        return ids
