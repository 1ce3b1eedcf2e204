"""Events as queries by tag give them: out of a row of the views or out of a record of the log, the same."""

from __future__ import annotations

from typing import cast

import msgspec

from headrace.journal.decoding import event_of_row
from headrace.journal.payloads import decode_payload
from headrace.model import StoredEvent
from headrace.store import EventRow, TagRow, tag_time_of
from headrace.tags.offsets import TagOffset

__all__ = ["TaggedEvent", "tagged", "tagged_row"]


class TaggedEvent(StoredEvent, frozen=True, kw_only=True):
    """An event under a tag. `number` counts the events of its journal under the tag, from 1, without gaps.

    `tag_offset` is where a query goes on after it. With `is_redacted` its payload was removed with the journal's.
    """

    tag: str
    topic: str
    id: str
    number: int
    tag_offset: TagOffset
    is_redacted: bool = False


def tagged_row(row: TagRow) -> TaggedEvent:
    """Return the event that a row of a view holds."""
    offset = TagOffset.of(tag_time_of(row.timestamp), row.number, row.seq_nr)
    if row.metadata is not None:
        event = event_of_row(cast("EventRow", row))  # a TagRow has all that this looks at
        return tagged(event, row.tag, row.topic, row.pid, row.number, offset, is_redacted=row.is_redacted)
    return TaggedEvent(
        row.seq_nr,
        decode_payload(row.payload_type, row.payload),
        row.tags,
        row.partition,
        row.offset,
        row.timestamp_ms,
        headers=row.headers,
        origin=row.origin,
        version=row.version,
        tag=row.tag,
        topic=row.topic,
        id=row.pid,
        number=row.number,
        tag_offset=offset,
        is_redacted=row.is_redacted,
    )


def tagged(
    event: StoredEvent, tag: str, topic: str, id_: str, number: int, offset: TagOffset, *, is_redacted: bool = False
) -> TaggedEvent:
    """Return an event with what a query adds to it."""
    return TaggedEvent(
        **msgspec.structs.asdict(event),
        tag=tag,
        topic=topic,
        id=id_,
        number=number,
        tag_offset=offset,
        is_redacted=is_redacted,
    )
