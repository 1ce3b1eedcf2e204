"""Where a query is: the place of the last event it delivered, as a value and as text to be stored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from headrace.errors import BadArgument
from headrace.store import TagTime

__all__ = ["After", "TagOffset", "after_of"]

_MS = 1000
_BEFORE_ALL = -1


class TagOffset(NamedTuple):
    """A place in the order of tagged events. `number` tells apart the events of one record.

    Its text (`str(offset)`) can be stored and parsed again; resuming from it gives what comes after.
    """

    log_time_ms: int
    topic_number: int
    partition: int
    offset: int
    number: int

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
        """Return the place that a stored text names."""
        parts = text.split(":")
        try:
            return cls(*(int(part) for part in parts))
        except (TypeError, ValueError) as error:
            raise BadArgument("after", text, "an offset is five numbers, as `str(event.tag_offset)` gives") from error

    @classmethod
    def of(cls, time: TagTime, number: int) -> TagOffset:
        """Return the place of one event."""
        return cls(*time, number)

    @property
    def time(self) -> TagTime:
        """The place of the record: the first one at or after this offset."""
        return TagTime(self.log_time_ms, *(max(part, 0) for part in self[1:4]))

    def __str__(self) -> str:
        return ":".join(str(part) for part in self)


After: TypeAlias = TagOffset | str | datetime | None


def after_of(after: After) -> TagOffset | None:
    """Return where to start, however the caller says it; None is the start of time."""
    if after is None or isinstance(after, TagOffset):
        return after
    return TagOffset.at(after) if isinstance(after, datetime) else TagOffset.parse(after)
