"""Notes in the log of what was sent: written in the batch's own transaction, read by whoever takes the place.

A note holds ids with event ids, so it is true forever: these messages are in the log. Whatever happens to the
database, whose ids may begin anew when it is made again, restored or failed over, no other message has the event id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from headrace.errors import UnknownTopic
from headrace.log import Log, ensure_topic
from headrace.model import Bounds, Cleanup, NewRecord, TopicConfig, TopicPartition, partition_of
from headrace.outbox.headers import event_id_of
from headrace.outbox.leases import NOTE_FORMAT, Lease
from headrace.outbox.messages import PendingMessage, Place

__all__ = ["PROGRESS_TOPIC", "Notes"]

PROGRESS_TOPIC = "headrace-outbox-progress"
_PARTITIONS = 16
_CONFIG = TopicConfig(cleanup=Cleanup.COMPACT, retention_ms=None)
# Another place's transaction in the same partition may hold the note back; its owner is about to end it.
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
    """The notes of one source's places.

    Promises: `read` returns only messages that are in the log, and all of the last batch that was committed before
    the transactional id was taken.
    """

    def __init__(self, log: Log, *, source: str) -> None:
        self._log = log
        self._source = source
        self._partitions: int | None = None

    def transactional_id(self, place: Place) -> str:
        """Return the id of the place's transactions: no topic's name has a colon, so no two places share one."""
        return f"headrace-outbox-{self._source}:{place.topic}:{place.bucket}"

    def first_transactional_id(self, place: Place) -> str:
        """Return the id that the first format went with."""
        return f"headrace-outbox-{self._source}-{place.topic}-{place.bucket}"

    async def records(self, lease: Lease, event_ids: Mapping[int, str]) -> list[NewRecord]:
        """Return the notes of a batch; one that is very large takes several."""
        key = self._key(lease)
        at = await self.partition(key)
        sent = tuple(event_ids.items())
        parts = [Note(sent[start : start + _MOST_IDS]) for start in range(0, len(sent), _MOST_IDS)]
        return [
            NewRecord(PROGRESS_TOPIC, f"{key}#{nr}".encode(), msgspec.json.encode(part), partition=at.partition)
            for nr, part in enumerate(parts)
        ]

    async def read(self, lease: Lease) -> dict[int, str]:
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

    async def read_first(self, lease: Lease) -> Sequence[int]:
        """Return the ids of the last note in the first format."""
        key, found = self.first_transactional_id(lease.place), None
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

    def _key(self, lease: Lease) -> str:
        """Return the key of the notes: those of another database under the same source are not ours to read."""
        return f"{self.transactional_id(lease.place)}@{lease.database_id}"

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
