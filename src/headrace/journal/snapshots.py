"""Snapshots: saved states of a journal's entity, so that a read can start from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import NoStateYet, ReadOnlyHandle, SnapshotDamaged, UnknownTopic
from headrace.journal.read import JournalReader
from headrace.journal.window import View
from headrace.model import MAX_SEQ_NR, Event, Payload
from headrace.protocol import (
    MAX_VALUE_BYTES,
    check_id,
    check_seq_nr,
    check_size,
    check_timestamp,
    decode_payload,
    encode_events,
    exists,
    pointer_of,
)
from headrace.runtime import SYSTEM_CLOCK
from headrace.store import Place, SnapshotRow, Snapshots

__all__ = ["JournalSnapshots", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved state, as of a seq_nr."""

    seq_nr: int
    payload: Any
    timestamp_ms: int


class JournalSnapshots:
    """The snapshots of one topic's journals: the newest few of each.

    A snapshot belongs to one incarnation of its journal: a purge removes it, and the journal after the purge never
    sees it.
    """

    def __init__(self, snapshots: Snapshots, reader: JournalReader, *, kept: int, read_only: bool) -> None:
        self._snapshots = snapshots
        self._reader = reader
        self._kept = kept
        self._is_read_only = read_only

    async def save(self, id_: str, seq_nr: int, payload: Payload, *, timestamp_ms: int | None = None) -> None:
        """Save the state as of a seq_nr that the journal has reached. If there are more than are kept, the oldest goes.

        That is this one if all that are kept have higher numbers. Its time is now, or `timestamp_ms` if that is given.
        """
        self._check_writable("save a snapshot")
        id_, seq_nr = check_id(id_), check_seq_nr("seq_nr", seq_nr)
        (encoded,) = encode_events([Event(seq_nr, payload)])
        check_size("payload", len(encoded.payload or b""), MAX_VALUE_BYTES)
        saved_ms = SYSTEM_CLOCK.now_ms() if timestamp_ms is None else check_timestamp("timestamp_ms", timestamp_ms)
        # Before the barrier, so that it lies above every snapshot and every removal that the slots show.
        rows = await self._snapshots.load(self._reader.topic, id_)
        try:
            view = await self._reader.view(id_)
        except UnknownTopic as error:  # nothing was written to the topic yet
            raise NoStateYet(id_, seq_nr, 0) from error
        meta = view.meta
        if meta is None or not exists(meta) or meta.record_id is None or not 1 <= seq_nr <= pointer_of(meta):
            raise NoStateYet(id_, seq_nr, pointer_of(meta))
        # It covers everything up to the barrier. The journal's own place would not do: a slot that was deleted at a
        # place stays deleted at that place, and nothing could be saved again until the next event.
        place = max(meta.place, view.barrier)
        mine = sorted((row for row in rows if row.record_id == meta.record_id), key=lambda row: row.seq_nr)
        others = [row for row in mine if row.seq_nr != seq_nr]
        if sum(row.seq_nr > seq_nr for row in others) >= self._kept:
            return
        row = SnapshotRow(
            slot=_slot(mine, self._kept, seq_nr),
            seq_nr=seq_nr,
            generation=place.generation,
            offset=place.offset,
            timestamp_ms=saved_ms,
            record_id=meta.record_id,
            payload_type=encoded.payload_type,
            payload=encoded.payload,
        )
        await self._snapshots.save(self._reader.topic, id_, row)
        for old in others[: max(0, len(others) + 1 - self._kept)]:
            await self._snapshots.delete(self._reader.topic, id_, old.slot, at=Place(old.generation, old.offset))

    async def load(
        self, id_: str, *, max_seq_nr: int | None = None, max_timestamp_ms: int | None = None
    ) -> Snapshot | None:
        """Return the newest snapshot; if given, not above the seq_nr and not after the time. None if there is none.

        Raises SnapshotDamaged if it can't be decoded. An older one does not take its place by itself: the events
        between the two may have been deleted.
        """
        id_ = check_id(id_)
        if max_seq_nr is not None:
            check_seq_nr("max_seq_nr", max_seq_nr, most=None)
        if max_timestamp_ms is not None:
            check_timestamp("max_timestamp_ms", max_timestamp_ms)
        rows = await self._of_incarnation(id_)
        fitting = [
            row
            for row in rows
            if (max_seq_nr is None or row.seq_nr <= max_seq_nr)
            and (max_timestamp_ms is None or row.timestamp_ms <= max_timestamp_ms)
        ]
        if not fitting:
            return None
        newest = max(fitting, key=lambda row: (row.seq_nr, row.timestamp_ms))
        try:
            payload = decode_payload(newest.payload_type, newest.payload)
        except ValueError as error:
            raise SnapshotDamaged(id_, newest.seq_nr, str(error)) from error
        return Snapshot(newest.seq_nr, payload, newest.timestamp_ms)

    async def delete(self, id_: str, *, max_seq_nr: int | None = None, min_seq_nr: int | None = None) -> int:
        """Remove the snapshots up to a seq_nr, or from one on, or all; return their number."""
        self._check_writable("delete snapshots")
        id_ = check_id(id_)
        first = 1 if min_seq_nr is None else check_seq_nr("min_seq_nr", min_seq_nr, most=None)
        last = MAX_SEQ_NR if max_seq_nr is None else check_seq_nr("max_seq_nr", max_seq_nr, most=None)
        gone = [row for row in await self._of_incarnation(id_) if first <= row.seq_nr <= last]
        for row in gone:
            await self._snapshots.delete(self._reader.topic, id_, row.slot, at=Place(row.generation, row.offset))
        return len(gone)

    def _check_writable(self, operation: str) -> None:
        if self._is_read_only:
            raise ReadOnlyHandle(f"{operation} in topic {self._reader.topic!r}", "the journal")

    async def _of_incarnation(self, id_: str) -> list[SnapshotRow]:
        try:
            view: View = await self._reader.view(id_)
        except UnknownTopic:  # nothing was written to the topic yet
            return []
        if view.meta is None or not exists(view.meta):
            return []
        rows = await self._snapshots.load(self._reader.topic, id_)
        return [row for row in rows if row.record_id == view.meta.record_id]


_SPARE = 11


def _slot(mine: Sequence[SnapshotRow], kept: int, seq_nr: int) -> int:
    """Return the slot of a new snapshot: that of the same number, or one that holds none of the newest.

    Two processes that save at the same time see the same slots. There are some more than are kept, and the number
    chooses among those, so that the two do not write to one slot: the newer snapshot could be lost, whose events may
    be deleted by then.
    """
    for row in mine:
        if row.seq_nr == seq_nr:
            return row.slot
    taken = {row.slot for row in mine[-kept:]}
    free = [slot for slot in range(kept + _SPARE) if slot not in taken]
    return free[seq_nr % len(free)]
