"""Tagged events as replication hands them to the views, without a log in the way, and the Marks of live queries."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from prometheus_client import REGISTRY

from benchmarks.workloads.events import events
from headrace.protocol.key_writes import KeyFold
from headrace.store import EventRow

__all__ = ["TAGS", "folds", "marks_written"]

TAGS = ("red", "green", "blue")
NOW_MS = 1_790_000_000_000
KEYS = 1000


def folds(count: int, *, batch: int, round_nr: int) -> Iterator[tuple[int, dict[str, KeyFold]]]:
    """Yield batches of events with three tags, by journal, and the offset that each ends at.

    A round continues where the one before ended.
    """
    written = events(count, keys=KEYS)
    first = round_nr * count
    for start in range(0, count, batch):
        found: dict[str, KeyFold] = {}
        for nr in range(start, min(start + batch, count)):
            row = _row(first + nr, written[nr].value)
            found.setdefault(written[nr].key.decode(), KeyFold(None)).tagged.append(row)
        yield first + min(start + batch, count) - 1, found


def _row(offset: int, payload: bytes) -> EventRow:
    return EventRow(
        segment=0,
        seq_nr=offset // KEYS + 1,
        generation=0,
        partition=0,
        offset=offset,
        log_time_ms=NOW_MS + offset // 10,
        timestamp_ms=NOW_MS + offset // 10,
        record_id=UUID(int=1),
        tags=TAGS,
        payload_type="binary",
        payload=payload,
    )


def marks_written() -> float:
    """Return how many Marks the queries of this process have written."""
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "headrace_tags_marks_total"
    )
