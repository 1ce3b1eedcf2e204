"""Sending a batch exactly once: one transaction of the log holds the batch and a note of what is in it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.errors import HeadraceError
from headrace.log import Log, TransactionalProducer
from headrace.model import NewRecord
from headrace.outbox.compacting import Compacted
from headrace.outbox.leases import NOTE_FORMAT, Lease, LeaseLost
from headrace.outbox.messages import PendingMessage, Place
from headrace.outbox.notes import PROGRESS_TOPIC, Notes
from headrace.outbox.placing import Placing
from headrace.outbox.poison import is_about_a_record, not_behind, refused_by_broker
from headrace.outbox.ports import PoisonPolicy
from headrace.outbox.rows import Rows
from headrace.outbox.sending import Sent

__all__ = ["ExactlyOnce"]

Pairs: TypeAlias = Sequence[tuple[PendingMessage, NewRecord]]

_TRANSACTION_S = 30.0


@dataclass(slots=True)
class _Owned:
    """A transactional id that is ours, taken while the lease had this epoch in this database."""

    producer: TransactionalProducer
    epoch: int
    database_id: str

    def is_followed_by(self, lease: Lease) -> bool:
        """Return True if nobody else had the place between that lease and this one."""
        return self.epoch + 1 == lease.epoch and self.database_id == lease.database_id


class ExactlyOnce:
    """Transactions, one a batch, on an id for each (source, topic, bucket).

    Taking the id fences a zombie, and ends what it left open, one way or the other. Then the notes say which messages
    are in the log already: just the last batch's, because a batch is deleted before the next one begins. So whatever
    a failed commit says of its outcome, the producer is dropped and the log itself is asked.
    """

    def __init__(self, log: Log, rows: Rows, *, source: str) -> None:
        self._log = log
        self._rows = rows
        self._notes = Notes(log, source=source)
        self._placing = Placing(log)
        self._owned: dict[Place, _Owned] = {}

    async def recover(self, lease: Lease) -> Sent:
        """Take the id, unless nobody else had the place since our last turn, and read the notes.

        What is noted and not in the table any more was settled; to settle it again would clear the place's error.
        """
        owned = self._owned.get(lease.place)
        if owned is not None and owned.is_followed_by(lease):
            owned.epoch = lease.epoch
            return Sent()
        event_ids = await self._rows.still_there(await self._take(lease))
        return Sent(list(event_ids), event_ids=event_ids)

    async def send(self, lease: Lease, batch: Compacted, policy: PoisonPolicy) -> Sent:
        """Commit the batch with its notes; on any error the id is dropped, and `recover` will find out."""
        records = await self._placing.records(lease.place.topic, batch.kept)
        owned = self._owned.get(lease.place)
        if owned is None or owned.epoch != lease.epoch or owned.database_id != lease.database_id:
            raise LeaseLost(lease.place)
        try:
            return await self._send(lease, batch, list(zip(batch.kept, records, strict=True)), policy)
        except BaseException:
            await self._drop(lease.place)
            raise

    async def close(self) -> None:
        """Let go of all ids."""
        for place in list(self._owned):
            await self._drop(place)

    async def _send(self, lease: Lease, batch: Compacted, pairs: Pairs, policy: PoisonPolicy) -> Sent:
        """Commit the batch, or as much of its beginning as the brokers take.

        A broker refuses a record when the transaction is half done, and does not say which one it was. So the batch is
        tried again, because the log knows more about the topic now, and then by halves, until the culprit stands alone.
        """
        size, refusals = len(pairs), 0
        while True:
            try:
                return await self._commit(self._owned[lease.place].producer, lease, batch, pairs[:size], policy)
            except HeadraceError as error:
                reason = refused_by_broker(error)
                if reason is None or getattr(reason, "topic", None) == PROGRESS_TOPIC:
                    raise
            await self._take_again(lease, batch)
            refusals += 1
            if refusals > 1 and size == 1:
                row = pairs[0][0]
                return Sent(refused={row.id: str(reason)}, event_ids={row.id: row.event_id})
            size = size if refusals == 1 else max(1, size // 2)

    async def _take(self, lease: Lease) -> dict[int, str]:
        """Take the id, which ends what its earlier owner left open, and return what is noted."""
        await self._drop(lease.place)
        taken = self._notes.transactional_id(lease.place)
        producer = await self._log.transactional(taken, timeout_s=_TRANSACTION_S)
        try:
            event_ids = await self._notes.read(lease)
            if lease.note_format != NOTE_FORMAT:
                event_ids |= await self._read_first_notes(lease)
        except BaseException:
            await producer.close()
            raise
        self._owned[lease.place] = _Owned(producer, lease.epoch, lease.database_id)
        return event_ids

    async def _take_again(self, lease: Lease, batch: Compacted) -> None:
        """Take the id for another try. Raises LeaseLost if somebody else sent messages of the batch meanwhile."""
        noted = set((await self._take(lease)).values())
        if any(row.event_id in noted for row in batch.rows):
            raise LeaseLost(lease.place)

    async def _commit(
        self, producer: TransactionalProducer, lease: Lease, batch: Compacted, pairs: Pairs, policy: PoisonPolicy
    ) -> Sent:
        await producer.begin()
        acknowledged, sent = await self._fill(producer, pairs, policy)
        sent.add(batch, acknowledged)
        if not sent.ids:
            await producer.abort()
            return sent
        await producer.append(await self._notes.records(lease, {id_: sent.event_ids[id_] for id_ in sent.ids}))
        positions = await producer.commit()
        sent.progress_offset = positions[-1].offset
        return sent

    async def _fill(
        self, producer: TransactionalProducer, batch: Pairs, policy: PoisonPolicy
    ) -> tuple[list[int], Sent]:
        """Put all records in; if the log itself refuses one, nothing is in yet, and they go in one by one."""
        try:
            await producer.append([record for _, record in batch])
            return [row.id for row, _ in batch], Sent()
        except Exception as error:
            if not is_about_a_record(error):
                raise
        acknowledged, sent, rows = list[int](), Sent(), [row for row, _ in batch]
        for row, record in batch:
            if not not_behind(sent.refused, rows, policy)(row):
                continue
            try:
                await producer.append([record])
                acknowledged.append(row.id)
            except Exception as error:
                if not is_about_a_record(error):
                    raise
                sent.refused[row.id] = str(error)
        return acknowledged, sent

    async def _read_first_notes(self, lease: Lease) -> dict[int, str]:
        """Return what the first format notes and the log confirms: its ids may be those of another database."""
        first = await self._log.transactional(self._notes.first_transactional_id(lease.place), timeout_s=_TRANSACTION_S)
        await first.close()  # taken to fence a relay that still writes that format
        noted = await self._rows.of(lease.place, await self._notes.read_first(lease))
        return await self._notes.confirmed(lease.place.topic, noted)

    async def _drop(self, place: Place) -> None:
        owned = self._owned.pop(place, None)
        if owned is not None:
            with contextlib.suppress(HeadraceError):  # fenced or unreachable: there is nothing left to give back
                await owned.producer.close()
