"""Events as queries by tag give them, and the offset of a query: the place of its last event."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias, cast

import msgspec

from headrace.errors import BadArgument, IntegrityBroken
from headrace.model import StoredEvent
from headrace.protocol import decode_payload, event_of_row
from headrace.store import LAST_TAG_TIME, EventRow, TagRow, TagTime, tag_time_of

__all__ = ["After", "TagOffset", "TaggedEvent", "after_of", "tagged", "tagged_row"]

_MS = 1000
_BEFORE_ALL = -1
_NO_SEQ_NR = (1 << 63) - 1  # above all numbers: the event that an older text names does not come after it
_PARTS = (5, 6)


class TagOffset(NamedTuple):
    """A place in the order of tagged events. `number` tells apart the events of one record.

    `seq_nr` is the event's own. It identifies the event after lost views have been written again with other numbers;
    offsets of older versions lack it. The text of an offset (`str(offset)`) can be stored and parsed again. A query
    that resumes from an offset gives the events after it.
    """

    log_time_ms: int
    topic_number: int
    partition: int
    offset: int
    number: int
    seq_nr: int = _NO_SEQ_NR

    @classmethod
    def at(cls, moment: datetime | int) -> TagOffset:
        """Return the place before all events of a moment: a datetime with a time zone, or milliseconds."""
        if isinstance(moment, datetime):
            if moment.tzinfo is None:
                raise BadArgument("after", moment, "a time needs a time zone, as in datetime.now(UTC)")
            moment = int(moment.astimezone(UTC).timestamp() * _MS)
        if moment < 0:
            raise BadArgument("after", moment, "no event is older than 1970")
        return cls(moment, _BEFORE_ALL, _BEFORE_ALL, _BEFORE_ALL, _BEFORE_ALL)

    @classmethod
    def parse(cls, text: str) -> TagOffset:
        """Parse the text of an offset. Raises BadArgument."""
        rule = "an offset is five or six numbers, as `str(event.tag_offset)` gives"
        parts = text.split(":")
        if len(parts) not in _PARTS:
            raise BadArgument("after", text, rule)
        try:
            return cls(*(int(part) for part in parts))
        except ValueError as error:
            raise BadArgument("after", text, rule) from error

    @classmethod
    def of(cls, time: TagTime, number: int, seq_nr: int) -> TagOffset:
        """Return the place of one event."""
        return cls(*time, number, seq_nr)

    def renumbered(self, rows: Iterable[tuple[int, int]]) -> TagOffset:
        """Return the offset with the event's current number; `rows` are (number, seq_nr) of its record in the views.

        Nothing changes if the numbers are the same or can't be compared.
        """
        found = sorted(rows)
        if not found or self.seq_nr == _NO_SEQ_NR or (self.number, self.seq_nr) in found:
            return self
        passed = [number for number, seq_nr in found if seq_nr <= self.seq_nr]
        return self._replace(number=max(passed, default=found[0][0] - 1))

    def covers(self, other: TagOffset) -> bool:
        """Return True if a query at this offset has passed the other one, whatever numbers its record has by now."""
        if self[:4] != other[:4] or _NO_SEQ_NR in (self.seq_nr, other.seq_nr):
            return self >= other
        return self.seq_nr >= other.seq_nr

    @property
    def has_seq_nr(self) -> bool:
        """True if the event's seq_nr is known: offsets of older versions lack it, and so do times."""
        return self.seq_nr != _NO_SEQ_NR

    @property
    def before_record(self) -> TagOffset:
        """The place before all events of the record, whatever their numbers; `covers` still finds the event."""
        return self if self.partition < 0 else self._replace(number=_BEFORE_ALL)

    @property
    def time(self) -> TagTime:
        """The place of the record that this offset is in."""
        return TagTime(self.log_time_ms, *(max(part, 0) for part in self[1:4]))

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self if self.seq_nr != _NO_SEQ_NR else self[:5]))


After: TypeAlias = TagOffset | str | datetime | None


def after_of(after: After) -> TagOffset | None:
    """Return the offset to start after, from any form a caller may use; None is the beginning. Raises BadArgument."""
    if after is None:
        return None
    if isinstance(after, datetime):
        return TagOffset.at(after)
    if not isinstance(after, TagOffset | str):
        raise BadArgument("after", after, "it must be an event's tag_offset, its text, or a datetime")
    offset = TagOffset.parse(after) if isinstance(after, str) else after
    lowest = (0, *[_BEFORE_ALL] * 5)
    highest = (*LAST_TAG_TIME, _NO_SEQ_NR, _NO_SEQ_NR)
    if not all(low <= part <= high for low, part, high in zip(lowest, offset, highest, strict=True)):
        raise BadArgument("after", str(after), "no event can have this offset; give one that a query gave")
    return offset


class TaggedEvent(StoredEvent, frozen=True, kw_only=True):
    """An event under a tag. `number` counts the events of its journal under the tag, from 1, without gaps.

    A query goes on after it from `tag_offset`. With `is_redacted` its payload was removed together with the journal's.
    """

    tag: str
    topic: str
    id: str
    number: int
    tag_offset: TagOffset
    is_redacted: bool = False


def tagged_row(row: TagRow) -> TaggedEvent:
    """Return the event that a row of a view holds. Raises IntegrityBroken if it can't be decoded."""
    try:
        return _decoded_row(row)
    except ValueError as error:
        reason = f"its row under tag {row.tag!r} can't be decoded ({error})"
        raise IntegrityBroken(row.pid, row.seq_nr, reason) from error


def _decoded_row(row: TagRow) -> TaggedEvent:
    offset = TagOffset.of(tag_time_of(row.timestamp), row.number, row.seq_nr)
    if row.metadata is not None:
        event = event_of_row(cast("EventRow", row))  # a TagRow has all fields that this uses
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
    """Return a stored event as an event under a tag."""
    return TaggedEvent(
        **msgspec.structs.asdict(event),
        tag=tag,
        topic=topic,
        id=id_,
        number=number,
        tag_offset=offset,
        is_redacted=is_redacted,
    )
