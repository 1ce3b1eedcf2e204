"""Sending a batch exactly once: one transaction of the log holds the batch and a note of its ids."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import HeadraceError, UnknownTopic
from headrace.log import Log, TransactionalProducer, ensure_topic
from headrace.model import Cleanup, NewRecord, TopicConfig, TopicPartition, partition_of
from headrace.outbox.leases import Lease, LeaseLost
from headrace.outbox.messages import PendingMessage, Place
from headrace.outbox.placing import Placing
from headrace.outbox.poison import is_about_a_record, not_behind
from headrace.outbox.ports import PoisonPolicy
from headrace.outbox.sending import Sent

__all__ = ["PROGRESS_TOPIC", "ExactlyOnce"]

PROGRESS_TOPIC = "headrace-outbox-progress"
_PARTITIONS = 16
_CONFIG = TopicConfig(cleanup=Cleanup.COMPACT, retention_ms=None)
_TRANSACTION_S = 30.0
# Another place's transaction in the same partition may hold the note back; its owner is about to end it.
_NOTE_S = 5.0


class Note(msgspec.Struct, frozen=True):
    """What the progress topic says of a place: the ids of its last committed batch."""

    ids: tuple[int, ...]


@dataclass(slots=True)
class _Owned:
    """A transactional id that is ours, taken while the lease had this epoch."""

    producer: TransactionalProducer
    epoch: int


class ExactlyOnce:
    """Transactions, one a batch, on an id for each (source, topic, bucket).

    Taking the id fences a zombie, and ends what it left open. Then the note says which ids are in the log already:
    just the last batch's, because a batch is deleted before the next one begins.
    """

    def __init__(self, log: Log, *, source: str) -> None:
        self._log = log
        self._source = source
        self._placing = Placing(log)
        self._owned: dict[Place, _Owned] = {}
        self._progress_partitions: int | None = None

    async def recover(self, lease: Lease) -> Sent:
        """Take the id, unless nobody else had the place since our last turn, and read the note."""
        owned = self._owned.get(lease.place)
        if owned is not None and owned.epoch + 1 == lease.epoch:
            owned.epoch = lease.epoch
            return Sent()
        await self._drop(lease.place)
        at = await self._progress_partition(lease.place)
        producer = await self._log.transactional(self._id_of(lease.place), timeout_s=_TRANSACTION_S)
        try:
            ids = await self._read_note(at, lease)
        except BaseException:
            await producer.close()
            raise
        self._owned[lease.place] = _Owned(producer, lease.epoch)
        return Sent(list(ids))

    async def send(self, lease: Lease, rows: Sequence[PendingMessage], policy: PoisonPolicy) -> Sent:
        """Commit the batch with its note; on any error the id is dropped, and `recover` will find out."""
        records = await self._placing.records(lease.place.topic, rows)
        owned = self._owned.get(lease.place)
        if owned is None or owned.epoch != lease.epoch:
            raise LeaseLost(lease.place)
        try:
            return await self._commit(owned.producer, lease.place, list(zip(rows, records, strict=True)), policy)
        except BaseException:
            await self._drop(lease.place)
            raise

    async def close(self) -> None:
        """Let go of all ids."""
        for place in list(self._owned):
            await self._drop(place)

    async def _commit(
        self,
        producer: TransactionalProducer,
        place: Place,
        batch: list[tuple[PendingMessage, NewRecord]],
        policy: PoisonPolicy,
    ) -> Sent:
        await producer.begin()
        sent = await self._fill(producer, batch, policy)
        if not sent.ids:
            await producer.abort()
            return sent
        note = msgspec.json.encode(Note(tuple(sent.ids)))
        key = self._id_of(place).encode()
        at = await self._progress_partition(place)
        await producer.append([NewRecord(PROGRESS_TOPIC, key, note, partition=at.partition)])
        positions = await producer.commit()
        sent.progress_offset = positions[-1].offset
        return sent

    async def _fill(
        self, producer: TransactionalProducer, batch: list[tuple[PendingMessage, NewRecord]], policy: PoisonPolicy
    ) -> Sent:
        """Put all records in; if one is refused, nothing is in yet, and they go in one by one."""
        try:
            await producer.append([record for _, record in batch])
            return Sent([row.id for row, _ in batch])
        except Exception as error:
            if not is_about_a_record(error):
                raise
        sent, rows = Sent(), [row for row, _ in batch]
        for row, record in batch:
            if not not_behind(sent.refused, rows, policy)(row):
                continue
            try:
                await producer.append([record])
                sent.ids.append(row.id)
            except Exception as error:
                if not is_about_a_record(error):
                    raise
                sent.refused[row.id] = str(error)
        return sent

    async def _read_note(self, at: TopicPartition, lease: Lease) -> Sequence[int]:
        """Return the ids of the last note, read up to everything that anybody wrote before the id was taken."""
        bounds = await self._log.bounds(at)
        start = max(bounds.start, min(lease.progress_offset or 0, bounds.high_watermark))
        key, found = self._id_of(lease.place).encode(), None
        if start < bounds.high_watermark:
            async for batch in self._log.read(at, start, bounds.high_watermark, timeout_s=_NOTE_S):
                for record in batch.records:
                    if record.key == key and record.value is not None:
                        found = record.value
        return () if found is None else msgspec.json.decode(found, type=Note).ids

    async def _progress_partition(self, place: Place) -> TopicPartition:
        if self._progress_partitions is None:
            self._progress_partitions = await self._make_progress_topic()
        return TopicPartition(PROGRESS_TOPIC, partition_of(self._id_of(place).encode(), self._progress_partitions))

    async def _make_progress_topic(self) -> int:
        try:
            return (await self._log.admin.describe(PROGRESS_TOPIC)).partitions
        except UnknownTopic:
            made = await ensure_topic(self._log.admin, PROGRESS_TOPIC, partitions=_PARTITIONS, config=_CONFIG)
            return made.partitions

    def _id_of(self, place: Place) -> str:
        return f"headrace-outbox-{self._source}-{place.topic}-{place.bucket}"

    async def _drop(self, place: Place) -> None:
        owned = self._owned.pop(place, None)
        if owned is not None:
            with contextlib.suppress(HeadraceError):  # fenced or unreachable: there is nothing left to give back
                await owned.producer.close()
