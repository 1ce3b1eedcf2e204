"""A partition's records, made by hand, for tests of the fold, the store and replication that need no log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.journal.append import AppendOptions, record_of
from headrace.model import Event, Headers, Record, TopicPartition
from headrace.protocol.actions import Delete, Mark, Purge
from headrace.protocol.fold import record_id_of
from headrace.protocol.headers import encode_action
from headrace.store import Place

__all__ = ["Script", "events"]

FIRST_MS = 1_700_000_000_000


def events(first: int, last: int | None = None) -> list[Event]:
    """Make the events `first` to `last`, each with a payload of its own."""
    return [Event(n, {"n": n}, tags=(f"t{n % 3}",)) for n in range(first, (last or first) + 1)]


class Script:
    """Writes records one after another; `offset` is where the next one goes, `skip` leaves a hole."""

    def __init__(self, topic: str = "t", partition: int = 0, *, offset: int = 0) -> None:
        self.at = TopicPartition(topic, partition)
        self.offset = offset
        self.records: list[Record] = []
        self.timestamp_ms = FIRST_MS

    def append(
        self,
        id_: str,
        first: int,
        last: int | None = None,
        *,
        expected: int | None = None,
        append_id: str | None = None,
        since: Place | None = None,
        given: Sequence[Event] | None = None,
        **options: Any,
    ) -> Record:
        """Write an append of the events `first` to `last`, or of those given."""
        record = record_of(
            self.at,
            id_,
            given or events(first, last),
            AppendOptions(**options),
            expected=expected,
            append_id=append_id,
            since=since,
        )
        return self.put(id_, record.value, record.headers)

    def delete(self, id_: str, to: int, *, born: int | None = None) -> Record:
        """Write a delete; with `born`, one that is meant for the journal which began at that offset."""
        at = self.at
        incarnation = None if born is None else record_id_of(at.topic, 0, at.partition, born)
        return self.put(id_, None, encode_action(Delete(to=to, incarnation=incarnation)))

    def purge(self, id_: str, *, last_append: int | None = None, generation: int = 0) -> Record:
        """Write a purge; with `last_append`, one that depends on it."""
        seen = Place(generation, last_append) if last_append is not None else None
        return self.put(id_, None, encode_action(Purge(last_append=seen)))

    def mark(self, id_: str, *, segment_size: int | None = None) -> Record:
        """Write a mark, which may change the topic's segment size."""
        return self.put(id_, None, encode_action(Mark(id=f"m{self.offset}", segment_size=segment_size)))

    def poison(self, id_: str) -> Record:
        """Write a record with an undecodable header."""
        return self.put(id_, None, (("journal.action", b"{"),))

    def put(self, id_: str, value: bytes | None, headers: Headers) -> Record:
        """Write any record."""
        self.timestamp_ms += 1
        at = self.at
        record = Record(at.topic, at.partition, self.offset, self.timestamp_ms, id_.encode(), value, headers)
        self.offset += 1
        self.records.append(record)
        return record

    def skip(self, count: int = 1) -> None:
        """Leave offsets unused, as aborted transactions do."""
        self.offset += count
