"""What was removed from the start of a tag's view, and who must not go on from before it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.errors import TagTrimmed
from headrace.store import TagRow, TagTime, tag_time_of
from headrace.tags.offsets import TagOffset

__all__ = ["Trimmed", "check_not_trimmed", "is_trimmed"]


class Trimmed(msgspec.Struct, frozen=True):
    """A tag's buckets before `before_ms` were removed; `last` is the offset of the last event that was in them.

    Who has come as far as that event misses nothing, however long ago it was.
    """

    before_ms: int
    last: str

    @property
    def place(self) -> TagOffset:
        """The place of the last event that was removed."""
        return TagOffset.parse(self.last)

    def and_also(self, other: Trimmed) -> Trimmed:
        """Return what was removed by both together."""
        return Trimmed(max(self.before_ms, other.before_ms), max(self, other, key=lambda each: each.place).last)


def check_not_trimmed(trimmed: Mapping[str, Trimmed], tag: str, after: TagOffset | None) -> None:
    """Raise TagTrimmed if some of the tag's events after a place were removed; None is the start of time."""
    known = trimmed.get(tag)
    if known is None or (after is not None and after.covers(known.place)):
        return
    raise TagTrimmed(tag, "the start" if after is None else f"offset {after}", known.before_ms, known.last)


def is_trimmed(trimmed: Mapping[str, Trimmed], row: TagRow) -> bool:
    """Say whether a row lies where rows were removed: it is not to be missed, nor to be written again."""
    known = trimmed.get(row.tag)
    if known is None:
        return False
    time: TagTime = tag_time_of(row.timestamp)
    return time <= known.place.time
