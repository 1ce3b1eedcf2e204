"""A run of one partition's records, sorted by key: what both replication and reads start from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.journal.actions import Mark
from headrace.journal.folding import Entry
from headrace.journal.headers import decode_action
from headrace.model import Record
from headrace.store import DEFAULT_SEGMENT_SIZE

__all__ = ["BOUNDARY_KEY", "PartitionBatch", "batch_of", "entry_of", "next_generation"]

# The key of the marks that begin a generation; a pass over the log for one key must see them.
BOUNDARY_KEY = "headrace-boundary"


@dataclass(slots=True)
class PartitionBatch:
    """The entries of each key, in order; and what holds for the whole partition after the run."""

    generation: int
    log_time_ms: int
    segment_size: int = DEFAULT_SEGMENT_SIZE
    by_id: dict[str, list[Entry]] = field(default_factory=dict)
    skipped: int = 0


def entry_of(
    record: Record, generation: int, *, log_time_ms: int = 0, segment_size: int = DEFAULT_SEGMENT_SIZE
) -> Entry | None:
    """Return the entry a record stands for; None for a record that is nobody's or of an unknown kind."""
    action = decode_action(record)
    if action is None or record.key is None:
        return None
    return Entry(
        topic=record.topic,
        id=record.key.decode(errors="surrogateescape"),
        generation=generation,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        action=action,
        log_time_ms=log_time_ms,
        segment_size=segment_size,
        record=record,
    )


def next_generation(generation: int, mark: Mark) -> int:
    """Return the generation after a mark: the first mark of a higher one begins it."""
    return max(generation, mark.generation or 0)


def batch_of(
    records: Iterable[Record], generation: int, *, log_time_ms: int = 0, segment_size: int = DEFAULT_SEGMENT_SIZE
) -> PartitionBatch:
    """Sort records by key. Log time is the running maximum of timestamps.

    `generation` is that of the first record; a Mark may begin the next one, or change the segment size.
    """
    batch = PartitionBatch(generation, log_time_ms, segment_size)
    for record in records:
        batch.log_time_ms = max(batch.log_time_ms, record.timestamp_ms)
        entry = entry_of(record, batch.generation, log_time_ms=batch.log_time_ms, segment_size=batch.segment_size)
        if entry is None:
            batch.skipped += 1
        elif not isinstance(entry.action, Mark):
            batch.by_id.setdefault(entry.id, []).append(entry)
        else:
            batch.generation = next_generation(batch.generation, entry.action)
            batch.segment_size = entry.action.segment_size or batch.segment_size
    return batch
