"""Looking at what the store has of one journal, in one piece: its head, its rows, and its head again.

Rows are read from a few segments below what was deleted to the segment behind the last one: a row that was typed in
further away is out of every reader's sight. Rows of before the window are not kept, so that a long journal costs no
memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.pipeline.comparing.judging import Stored, claimed_place
from headrace.pipeline.comparing.key_windows import KeyWindow
from headrace.store import EventRow, JournalMeta, Place, StoreReader, segment_of

__all__ = ["look"]

_SEGMENTS_BELOW = 50  # as many as one question to Cassandra asks for


async def look(
    reader: StoreReader, topic: str, id_: str, window: KeyWindow, segment_sizes: Iterable[int], last_seq_nr: int
) -> Stored | None:
    """Return what the store has; None if replication changed it meanwhile.

    The head is written before rows are removed, so rows that were read between two equal heads belong to it.
    `segment_sizes` and `last_seq_nr` say where the records of the log may have put rows.
    """
    meta = await reader.meta(topic, id_)
    stored = Stored(meta)
    sizes = dict.fromkeys([*([meta.segment_size] if meta is not None else []), *segment_sizes])
    seen: set[tuple[int, int, int]] = set()
    for size in sizes:
        first, last = _bounds(meta, size, last_seq_nr)
        async for page in reader.rows(topic, id_, segment_size=size, first=first, last=last):
            for row in page:
                _sort(stored, window, row, seen if len(sizes) > 1 else None)
    return stored if await reader.meta(topic, id_) == meta else None


def _bounds(meta: JournalMeta | None, size: int, last_seq_nr: int) -> tuple[int, int]:
    deleted_to = meta.delete_to if meta is not None and not meta.is_purged else 0
    last = max(last_seq_nr, meta.seq_nr if meta is not None else 0, 1)
    first_segment = max(0, segment_of(max(deleted_to, 1), size) - _SEGMENTS_BELOW)
    return first_segment * size + 1, (segment_of(last, size) + 2) * size


def _sort(stored: Stored, window: KeyWindow, row: EventRow, seen: set[tuple[int, int, int]] | None) -> None:
    place = claimed_place(row)
    if seen is not None:
        key = (row.segment, row.seq_nr, row.timestamp_ms)
        if key in seen:
            return
        seen.add(key)
    stored.rows += 1
    if place < Place(0, 0) or (window.is_before(place) and _is_wrong(stored.meta, window, row)):
        stored.wrong_before.append(row)
    elif window.is_before(place):
        stored.last_before = max(stored.last_before, row.seq_nr)
    elif window.is_ahead(place):
        stored.ahead.append(row)
    else:
        stored.within.append(row)


def _is_wrong(meta: JournalMeta | None, window: KeyWindow, row: EventRow) -> bool:
    """Say whether a row of before the window contradicts the journal's head, or can't be at all."""
    if window.is_whole:
        return True
    if meta is None:
        return False
    return meta.is_purged or row.record_id != meta.record_id or not meta.delete_to < row.seq_nr <= meta.seq_nr
