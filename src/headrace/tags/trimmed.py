"""What was trimmed from the start of a tag's view; a query must not go on from before it.

Each tag has a setting of its own: there may be many tags, and a query reads that of its tag after every page.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.errors import TagTrimmed
from headrace.store import SharedSettings, TagRow, TagTime, tag_time_of
from headrace.tags.events import TagOffset

__all__ = ["Trimmed", "all_trimmed", "check_not_trimmed", "is_trimmed", "note_trimmed", "read_trimmed"]

_PREFIX = "tags-trimmed/"


class Trimmed(msgspec.Struct, frozen=True):
    """A tag's buckets before `before_ms` were removed; `last` is the offset of the last event that was in them.

    A query that has given that event misses nothing, however long ago that was.
    """

    before_ms: int
    last: str

    @property
    def place(self) -> TagOffset:
        """The place of the last event that was removed."""
        return TagOffset.parse(self.last)

    def and_also(self, other: Trimmed) -> Trimmed:
        """Return both together."""
        return Trimmed(max(self.before_ms, other.before_ms), max(self, other, key=lambda each: each.place).last)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Trimmed).decode


async def read_trimmed(settings: SharedSettings, tag: str) -> Trimmed | None:
    """Return what was removed of a tag; None if nothing was."""
    stored = await settings.get(f"{_PREFIX}{tag}")
    return None if stored is None else _decode(stored)


async def all_trimmed(settings: SharedSettings) -> dict[str, Trimmed]:
    """Return what was removed of all tags."""
    stored = await settings.all(_PREFIX)
    return {key.removeprefix(_PREFIX): _decode(value) for key, value in stored.items()}


async def note_trimmed(settings: SharedSettings, tag: str, note: Trimmed) -> None:
    """Store what is about to be removed, together with what was removed before, also by other processes."""
    while True:
        stored = await settings.get(f"{_PREFIX}{tag}")
        noted = note if stored is None else _decode(stored).and_also(note)
        if await settings.put(f"{_PREFIX}{tag}", _encode(noted).decode(), expected=stored):
            return


def check_not_trimmed(known: Trimmed | None, tag: str, after: TagOffset | None) -> None:
    """Raise TagTrimmed if some of the tag's events after a place were removed; None is the beginning."""
    if known is None or (after is not None and after.covers(known.place)):
        return
    raise TagTrimmed(tag, "the start" if after is None else f"offset {after}", known.before_ms, known.last)


def is_trimmed(trimmed: Mapping[str, Trimmed], row: TagRow) -> bool:
    """Return True if a row lies where rows were removed: it is not missing and must not be written again."""
    known = trimmed.get(row.tag)
    if known is None:
        return False
    time: TagTime = tag_time_of(row.timestamp)
    return time <= known.place.time
