"""Cutting rows into batches: each of one partition, within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from headrace.store.rows import EventRow

__all__ = ["cut", "cut_groups", "size_of"]

R = TypeVar("R")

_OVERHEAD_BYTES = 150


def cut(rows: Sequence[EventRow], *, max_rows: int, max_bytes: int) -> Iterator[list[EventRow]]:
    """Yield the rows by segment, in batches; a row above the limit goes by itself."""
    return cut_groups(rows, key=attrgetter("segment"), size_of=size_of, max_rows=max_rows, max_bytes=max_bytes)


def cut_groups(
    rows: Sequence[R], *, key: Callable[[R], Any], size_of: Callable[[R], int], max_rows: int, max_bytes: int
) -> Iterator[list[R]]:
    """Yield rows of one key in batches; a row above the limit goes by itself."""
    for _, group in groupby(sorted(rows, key=key), key):
        batch: list[R] = []
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
