"""Numbering: each event of a (pid, tag) gets the next number, in the order of the log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.model import TopicPartition
from headrace.store import EventRow, TagNumber, TagRow, TagTime, timeuuid
from headrace.tags.buckets import Bucket
from headrace.tags.fills import TagFill

__all__ = ["Numbered", "Numbering", "number_of", "unique_tags"]


class Numbered(NamedTuple):
    """What a batch brings for one pid: rows to write first, and how far each tag's numbers have come."""

    rows: list[TagRow]
    numbers: dict[str, TagNumber]


def unique_tags(tags: Iterable[str]) -> list[str]:
    """Return an event's tags, each once: an event has one place under a tag."""
    return list(dict.fromkeys(tags))


def number_of(row: TagRow) -> TagNumber:
    """Return how far the numbering has come with a row."""
    return TagNumber(
        topic=row.topic,
        pid=row.pid,
        tag=row.tag,
        seq_nr=row.seq_nr,
        number=row.number,
        generation=row.generation,
        offset=row.offset,
    )


class Numbering:
    """Numbers the events of one topic. What a tag's fill decides about is left to it."""

    def __init__(
        self, topic: str, topic_number: int, bucket: Bucket, fills: Mapping[str, TagFill] | None = None
    ) -> None:
        self.topic = topic
        self.topic_number = topic_number
        self.bucket = bucket
        self._fills = fills or {}

    def number(self, pid: str, events: Iterable[EventRow], known: Mapping[str, TagNumber]) -> Numbered:
        """Number events of a pid that come in the order of the log.

        What lies at or below a tag's known place was numbered before, and its row is there: rows are written before
        numbers. Places are compared, never seq_nrs: those begin anew after a purge, numbers don't.
        """
        done = Numbered([], {})
        for event in events:
            for tag in self._tags(event):
                last = known.get(tag)
                if last is not None and event.place <= last.place:
                    continue
                count = done.numbers.get(tag, last)
                row = self.row(pid, event, tag, count.number + 1 if count is not None else 1)
                done.rows.append(row)
                done.numbers[tag] = number_of(row)
        return done

    def _tags(self, event: EventRow) -> list[str]:
        tags = unique_tags(event.tags)
        if not self._fills:
            return tags
        at = TopicPartition(self.topic, event.partition)
        return [tag for tag in tags if tag not in self._fills or not self._fills[tag].leaves_out(at, event.place)]

    def time_of(self, event: EventRow) -> TagTime:
        """Return an event's place in the order of tagged events."""
        return TagTime(event.log_time_ms, self.topic_number, event.partition, event.offset)

    def row(self, pid: str, event: EventRow, tag: str, number: int) -> TagRow:
        """Return an event's row under a tag."""
        return TagRow(
            tag=tag,
            bucket_ms=self.bucket.start_of(event.log_time_ms),
            timestamp=timeuuid(self.time_of(event)),
            pid=pid,
            number=number,
            seq_nr=event.seq_nr,
            topic=self.topic,
            generation=event.generation,
            partition=event.partition,
            offset=event.offset,
            timestamp_ms=event.timestamp_ms,
            tags=event.tags,
            payload_type=event.payload_type,
            payload=event.payload,
            metadata=event.metadata,
            headers=event.headers,
            origin=event.origin,
            version=event.version,
        )
