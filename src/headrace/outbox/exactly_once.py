"""Sending a batch exactly once: one transaction of the log holds the batch and a note of what is in it.

A note holds ids with event ids, so it stays true whatever happens to the database: these messages are in the log. Ids
may start again when a database is created again, restored or failed over, but no other message has the event id.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from headrace.errors import HeadraceError, UnknownTopic
from headrace.log import Log, TransactionalProducer, ensure_topic
from headrace.model import Bounds, Cleanup, NewRecord, TopicConfig, TopicPartition, partition_of
from headrace.outbox.leases import NOTE_FORMAT, LaneLease, LeaseLost
from headrace.outbox.messages import Lane, PendingMessage, event_id_of
from headrace.outbox.ports import PoisonPolicy
from headrace.outbox.rows import MessageRows
from headrace.outbox.send import Compacted, RowPlacement, Sent, is_about_a_record, not_behind, refused_by_broker

__all__ = ["PROGRESS_TOPIC", "ExactlyOnce", "Notes"]

Pairs: TypeAlias = Sequence[tuple[PendingMessage, NewRecord]]

PROGRESS_TOPIC = "headrace-outbox-progress"
_PARTITIONS = 16
_TRANSACTION_S = 30.0
_CONFIG = TopicConfig(cleanup=Cleanup.COMPACT, retention_ms=None)
# Another lane's transaction in the same partition may hold the note back; its owner is about to end it.
_NOTE_S = 5.0
# Of 50 bytes each: far below what a topic takes in one record.
_MOST_IDS = 2000
# How far the clock of a relay may have been behind the database's.
_SKEW_MS = 3_600_000


class Note(msgspec.Struct, frozen=True):
    """Ids of messages in the log, each with its event id."""

    sent: tuple[tuple[int, str], ...]


class FirstNote(msgspec.Struct, frozen=True):
    """The first format: bare ids, which only the log can confirm."""

    ids: tuple[int, ...]


class Notes:
    """The notes of one source's lanes.

    Promises: `read` returns only messages that are in the log, and all of the last batch that was committed before
    the transactional id was taken.
    """

    def __init__(self, log: Log, *, source: str) -> None:
        self._log = log
        self._source = source
        self._partitions: int | None = None

    def transactional_id(self, lane: Lane) -> str:
        """Return the id of the lane's transactions: no topic's name has a colon, so no two lanes share one."""
        return f"headrace-outbox-{self._source}:{lane.topic}:{lane.bucket}"

    def first_transactional_id(self, lane: Lane) -> str:
        """Return the id that the first format went with."""
        return f"headrace-outbox-{self._source}-{lane.topic}-{lane.bucket}"

    async def records(self, lease: LaneLease, event_ids: Mapping[int, str]) -> list[NewRecord]:
        """Return the notes of a batch; one that is very large takes several."""
        key = self._key(lease)
        at = await self.partition(key)
        sent = tuple(event_ids.items())
        parts = [Note(sent[start : start + _MOST_IDS]) for start in range(0, len(sent), _MOST_IDS)]
        return [
            NewRecord(PROGRESS_TOPIC, f"{key}#{nr}".encode(), msgspec.json.encode(part), partition=at.partition)
            for nr, part in enumerate(parts)
        ]

    async def read(self, lease: LaneLease) -> dict[int, str]:
        """Return ids and event ids of all notes since the lease's progress; usually that is one batch, or none.

        A database that was set back to an earlier state finds all that was sent since, unless it was compacted away.
        """
        key = self._key(lease)
        since = lease.progress_offset if lease.note_format == NOTE_FORMAT else None
        found: dict[int, str] = {}
        async for name, value in self._values(await self.partition(key), since):
            if name.rpartition("#")[0] == key:
                found.update(msgspec.json.decode(value, type=Note).sent)
        return found

    async def read_first(self, lease: LaneLease) -> Sequence[int]:
        """Return the ids of the last note in the first format."""
        key, found = self.first_transactional_id(lease.lane), None
        async for name, value in self._values(await self.partition(key), lease.progress_offset):
            found = value if name == key else found
        return () if found is None else msgspec.json.decode(found, type=FirstNote).ids

    async def confirmed(self, topic: str, rows: Sequence[PendingMessage]) -> dict[int, str]:
        """Return those of the rows that are in the log, by their event ids."""
        wanted = {row.event_id: row.id for row in rows}
        if not wanted:
            return {}
        since_ms = min(row.created_at if row.event_time is None else row.event_time for row in rows) - _SKEW_MS
        found: set[str] = set()
        for partition in range((await self._log.admin.describe(topic)).partitions):
            async for event_id in self._event_ids(TopicPartition(topic, partition), since_ms):
                found.add(event_id)
        return {wanted[event_id]: event_id for event_id in wanted.keys() & found}

    async def partition(self, key: str) -> TopicPartition:
        """Return where the notes of a key are."""
        if self._partitions is None:
            self._partitions = await self._make_topic()
        return TopicPartition(PROGRESS_TOPIC, partition_of(key.encode(), self._partitions))

    def _key(self, lease: LaneLease) -> str:
        """Return the key of the notes: those of another database under the same source are not ours to read."""
        return f"{self.transactional_id(lease.lane)}@{lease.database_id}"

    async def _values(self, at: TopicPartition, since: int | None) -> AsyncIterator[tuple[str, bytes]]:
        """Yield keys and values of all notes up to everything that was written before now."""
        bounds = await self._log.bounds(at)
        start = _start(bounds, since)
        if start >= bounds.high_watermark:
            return
        async for batch in self._log.read(at, start, bounds.high_watermark, timeout_s=_NOTE_S):
            for record in batch.records:
                if record.key is not None and record.value is not None:
                    yield record.key.decode(errors="replace"), record.value

    async def _event_ids(self, at: TopicPartition, since_ms: int) -> AsyncIterator[str]:
        bounds = await self._log.bounds(at)
        start = await self._log.offset_at(at, timestamp_ms=max(1, since_ms))
        if start is None or start >= bounds.high_watermark:
            return
        async for batch in self._log.read(at, start, bounds.high_watermark, headers_only=True):
            for record in batch.records:
                event_id = event_id_of(record.headers)
                if event_id is not None:
                    yield event_id

    async def _make_topic(self) -> int:
        try:
            return (await self._log.admin.describe(PROGRESS_TOPIC)).partitions
        except UnknownTopic:
            made = await ensure_topic(self._log.admin, PROGRESS_TOPIC, partitions=_PARTITIONS, config=_CONFIG)
            return made.partitions


def _start(bounds: Bounds, since: int | None) -> int:
    """Return where to begin. An offset that the log does not have yet is another log's: the topic was made again."""
    if since is None or since > bounds.high_watermark:
        return bounds.start
    return max(bounds.start, since)


@dataclass(slots=True)
class _Owned:
    """A transactional id that is ours, taken while the lease had this epoch in this database."""

    producer: TransactionalProducer
    epoch: int
    database_id: str

    def is_followed_by(self, lease: LaneLease) -> bool:
        """Return True if no other worker had the lane between that lease and this one."""
        return self.epoch + 1 == lease.epoch and self.database_id == lease.database_id


class ExactlyOnce:
    """Transactions, one a batch, on an id for each (source, topic, bucket).

    Taking the id fences a zombie, and ends what it left open, one way or the other. Then the notes say which messages
    are in the log already: just the last batch's, because a batch is deleted before the next one begins. So whatever
    a failed commit says of its outcome, the producer is dropped and the notes in the log decide.
    """

    def __init__(self, log: Log, rows: MessageRows, *, source: str) -> None:
        self._log = log
        self._rows = rows
        self._notes = Notes(log, source=source)
        self._placement = RowPlacement(log)
        self._owned: dict[Lane, _Owned] = {}

    async def recover(self, lease: LaneLease) -> Sent:
        """Take the id, unless no other worker had the lane since our last turn, and read the notes.

        What is noted and not in the table any more was settled; to settle it again would clear the lane's error.
        """
        owned = self._owned.get(lease.lane)
        if owned is not None and owned.is_followed_by(lease):
            owned.epoch = lease.epoch
            return Sent()
        event_ids = await self._rows.still_there(await self._take(lease))
        return Sent(list(event_ids), event_ids=event_ids)

    async def send(self, lease: LaneLease, batch: Compacted, policy: PoisonPolicy) -> Sent:
        """Commit the batch with its notes; on any error the id is dropped, and `recover` will find out."""
        records = await self._placement.records(lease.lane.topic, batch.kept)
        owned = self._owned.get(lease.lane)
        if owned is None or owned.epoch != lease.epoch or owned.database_id != lease.database_id:
            raise LeaseLost(lease.lane)
        try:
            return await self._send(lease, batch, list(zip(batch.kept, records, strict=True)), policy)
        except BaseException:
            await self._drop(lease.lane)
            raise

    async def close(self) -> None:
        """Close the producers of all ids."""
        for lane in list(self._owned):
            await self._drop(lane)

    async def _send(self, lease: LaneLease, batch: Compacted, pairs: Pairs, policy: PoisonPolicy) -> Sent:
        """Commit the batch, or as much of its beginning as the brokers take.

        A broker refuses a record when the transaction is half done, and does not say which one it was. So the batch is
        tried again, because the log knows more about the topic now, and then by halves, until the culprit stands alone.
        """
        size, refusals = len(pairs), 0
        while True:
            try:
                return await self._commit(self._owned[lease.lane].producer, lease, batch, pairs[:size], policy)
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

    async def _take(self, lease: LaneLease) -> dict[int, str]:
        """Take the id, which ends what its earlier owner left open, and return what is noted."""
        await self._drop(lease.lane)
        taken = self._notes.transactional_id(lease.lane)
        producer = await self._log.transactional(taken, timeout_s=_TRANSACTION_S)
        try:
            event_ids = await self._notes.read(lease)
            if lease.note_format != NOTE_FORMAT:
                event_ids |= await self._read_first_notes(lease)
        except BaseException:
            await producer.close()
            raise
        self._owned[lease.lane] = _Owned(producer, lease.epoch, lease.database_id)
        return event_ids

    async def _take_again(self, lease: LaneLease, batch: Compacted) -> None:
        """Take the id for another try. Raises LeaseLost if another worker sent messages of the batch meanwhile."""
        noted = set((await self._take(lease)).values())
        if any(row.event_id in noted for row in batch.rows):
            raise LeaseLost(lease.lane)

    async def _commit(
        self, producer: TransactionalProducer, lease: LaneLease, batch: Compacted, pairs: Pairs, policy: PoisonPolicy
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

    async def _read_first_notes(self, lease: LaneLease) -> dict[int, str]:
        """Return what the first format notes and the log confirms: its ids may be those of another database."""
        first = await self._log.transactional(self._notes.first_transactional_id(lease.lane), timeout_s=_TRANSACTION_S)
        await first.close()  # taken to fence a relay that still writes that format
        noted = await self._rows.of(lease.lane, await self._notes.read_first(lease))
        return await self._notes.confirmed(lease.lane.topic, noted)

    async def _drop(self, lane: Lane) -> None:
        owned = self._owned.pop(lane, None)
        if owned is not None:
            with contextlib.suppress(HeadraceError):  # fenced or unreachable: there is nothing left to give back
                await owned.producer.close()
