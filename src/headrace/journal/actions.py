"""What stands in the log is not events but actions: Append, Mark, Delete, Purge."""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from headrace.store import Place

__all__ = ["Action", "Append", "Delete", "Mark", "PayloadFormat", "Poison", "Purge", "Verdict"]

PayloadFormat: TypeAlias = Literal["json", "binary"]


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Events `first` to `last`, written together. The events themselves are the record's value.

    `expected` makes it void unless the journal is at that seq_nr. A retry has the `append_id` of the first attempt
    and, in `since`, the end of the log before it: it is void if a purge lies at or above. `digest` tells whether two
    appends of one id carry the same events.
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
    """Changes no journal: a place in the log to read up to. Some carry news about their partition.

    `generation`: the topic grew, from here on. `segment_size`: incarnations that begin after it use this size.
    `layout`: how the topic's keys lie over its partitions, as JSON, for a store that has lost it.
    """

    id: str
    origin: str | None = None
    version: str | None = None
    generation: int | None = None
    segment_size: int | None = None
    layout: str | None = None


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Events up to `to` that were written before it are gone.

    `incarnation` is the record id of the journal that its writer looked at. With it the delete counts only if the
    journal is still that one: not if it was purged since, and perhaps begun anew.
    """

    to: int
    origin: str | None = None
    version: str | None = None
    incarnation: UUID | None = None


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """The whole journal is gone. With `last_append` only if nothing was appended after that place."""

    origin: str | None = None
    version: str | None = None
    last_append: Place | None = None


class Poison(msgspec.Struct, frozen=True):
    """A record that is meant for the journal but can't be decoded."""

    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Ends the hold of a journal whose record at offset `held_from` can't be decoded.

    That record is passed over (`is_skip`), or tried again, by a version that may be able to; those held behind it
    follow. To readers that don't know it, a Mark. Void for a journal that is not held there. `generation` is that of
    the record: a key that moved, or a topic that was made again, has the same offset once more. None in older ones.
    """

    id: str
    held_from: int
    is_skip: bool
    generation: int | None = None
    origin: str | None = None
    version: str | None = None

    def is_about(self, place: Place) -> bool:
        """Return True if the record at a place is the one that this decides about."""
        return self.held_from == place.offset and self.generation in (None, place.generation)


Action: TypeAlias = Append | Mark | Delete | Purge | Poison | Verdict
