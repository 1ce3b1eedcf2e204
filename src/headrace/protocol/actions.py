"""Actions, which are what the records of a journal say: Append, Mark, Delete, Purge; and the values of their fields."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from headrace.errors import BadArgument
from headrace.store import Place

__all__ = [
    "Action",
    "Append",
    "Delete",
    "Mark",
    "PayloadFormat",
    "Poison",
    "Purge",
    "Verdict",
    "duration_of",
    "duration_text",
    "raw_json",
]

_UNITS_MS = {
    "d": 86_400_000,
    "h": 3_600_000,
    "min": 60_000,
    "s": 1000,
    "ms": 1,
    "us": 0.001,
    "ns": 0.000001,
}
_NAMES = {
    "d": ("d", "day"),
    "h": ("h", "hr", "hour"),
    "min": ("m", "min", "minute"),
    "s": ("s", "sec", "second"),
    "ms": ("ms", "milli", "millisecond"),
    "us": ("µs", "us", "micro", "microsecond"),
    "ns": ("ns", "nano", "nanosecond"),
}
_MS_BY_NAME = {name: _UNITS_MS[unit] for unit, names in _NAMES.items() for n in names for name in (n, f"{n}s")}
_WRITTEN = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("millisecond", 1))
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")


def duration_of(text: str) -> timedelta:
    """Parse "1 day", "10 seconds", "5min"."""
    match = _TEXT.fullmatch(text)
    if match is None or match[2] not in _MS_BY_NAME:
        raise BadArgument("duration", text, "it must be a number and a unit, as in '1 day' or '90 seconds'")
    try:
        return timedelta(milliseconds=float(match[1]) * _MS_BY_NAME[match[2]])
    except OverflowError as error:
        raise BadArgument("duration", text, f"it must not be longer than {timedelta.max.days} days") from error


def duration_text(duration: timedelta) -> str:
    """Write a duration in the largest unit that holds it exactly."""
    total_ms = duration // timedelta(milliseconds=1)
    if total_ms < 1:
        raise BadArgument("duration", str(duration), "it must be at least a millisecond")
    name, unit_ms = next((name, unit_ms) for name, unit_ms in _WRITTEN if total_ms % unit_ms == 0)
    count = total_ms // unit_ms
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def raw_json(written: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    """Return the bytes of a JSON value; None for one that is absent or null."""
    if isinstance(written, msgspec.UnsetType):
        return None
    data = bytes(written)
    return None if data == b"null" else data


PayloadFormat: TypeAlias = Literal["json", "binary"]


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Events `first` to `last`, written together. The events themselves are the record's value.

    `expected` makes it void unless the journal is at that seq_nr. A retry has the `append_id` of the first attempt
    and, in `since`, the end of the log before that attempt. It is void if a purge lies at or above `since`. Two appends
    with the same `digest` carry the same events.
    """

    first: int
    last: int
    payload_format: PayloadFormat
    metadata: bytes | None = None
    origin: str | None = None
    version: str | None = None
    expected: int | None = None
    append_id: str | None = None
    since: Place | None = None
    digest: str | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the log to read up to. It changes no journal, but may change its partition.

    `generation`: the topic grew; this generation begins here. `segment_size`: incarnations that begin later use this
    size. `layout`: the topic's layout as JSON, for a store that has lost it.
    """

    id: str
    origin: str | None = None
    version: str | None = None
    generation: int | None = None
    segment_size: int | None = None
    layout: str | None = None


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes the events up to `to` that were written before it.

    `incarnation` is the record id of the journal that the writer saw. If it is given, the delete counts only for that
    incarnation: not if the journal was purged since then and perhaps begun again.
    """

    to: int
    origin: str | None = None
    version: str | None = None
    incarnation: UUID | None = None


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """Removes the whole journal; with `last_append` only if nothing was appended after that place."""

    origin: str | None = None
    version: str | None = None
    last_append: Place | None = None


class Poison(msgspec.Struct, frozen=True):
    """A record that is meant for the journal but can't be decoded."""

    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's decision that ends the hold of a journal whose record at offset `held_from` can't be decoded.

    The record is skipped (`is_skip`) or decoded again, by a version that may be able to; then the records held behind
    it are applied. Older versions read a Verdict as a Mark. It is void for a journal that is not held there.
    `generation` is that of the record, because a key that moved, or a topic that was created again, may have the same
    offset twice. Verdicts of older versions have None.
    """

    id: str
    held_from: int
    is_skip: bool
    generation: int | None = None
    origin: str | None = None
    version: str | None = None

    def is_about(self, place: Place) -> bool:
        """Return True if this verdict decides about the record at a place."""
        return self.held_from == place.offset and self.generation in (None, place.generation)


Action: TypeAlias = Append | Mark | Delete | Purge | Poison | Verdict
