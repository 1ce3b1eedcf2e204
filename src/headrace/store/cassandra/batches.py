"""Cutting rows into batches: each of one partition, within limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from headrace.store.rows import EventRow

__all__ = ["cut", "size_of"]

_OVERHEAD_BYTES = 150


def cut(rows: Sequence[EventRow], *, max_rows: int, max_bytes: int) -> Iterator[list[EventRow]]:
    """Yield the rows by segment, in batches; a row above the limit goes by itself."""
    by_segment = attrgetter("segment")
    for _, group in groupby(sorted(rows, key=by_segment), by_segment):
        batch: list[EventRow] = []
        batch_bytes = 0
        for row in group:
            row_bytes = size_of(row)
            if batch and (len(batch) == max_rows or batch_bytes + row_bytes > max_bytes):
                yield batch
                batch, batch_bytes = [], 0
            batch.append(row)
            batch_bytes += row_bytes
        yield batch


def size_of(row: EventRow) -> int:
    """Estimate what a row takes in a request."""
    texts = (row.metadata, row.origin, row.version, *row.tags, *row.headers, *row.headers.values())
    return _OVERHEAD_BYTES + len(row.payload or b"") + sum(len(text) for text in texts if text)
