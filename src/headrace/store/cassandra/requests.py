"""Requests to Cassandra: queries with encoded values, partitions that share a request, and pages read one ahead.

The driver's own `bind` builds a description of every column for every value, and raises two exceptions to find out that
a time is in milliseconds: 20 µs a row, half of the work of replication. Here the driver's types still encode, but are
called directly (4 µs).

A journal is a partition of its own, and most journals have one or two new rows in a batch. With a request for each,
requests are nearly all that such a batch costs, for us and for the server. Partitions that have all their replicas on
the same nodes therefore share a request: any of these nodes can coordinate it, and holds all of its rows. Partitions
elsewhere would burden the coordinator.

A server warns of an unlogged batch of more than 10 partitions or 5 KiB, and refuses one of 50 KiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from cassandra.cqltypes import DateType, LongType, TimestampType
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, BoundStatement

__all__ = ["SHARED_PARTITIONS", "Binding", "RequestShare", "one_ahead", "shared", "unlogged"]

T = TypeVar("T")

Encode: TypeAlias = Callable[[Any, int], bytes]

_TIMES = (DateType, TimestampType)


class Binding:
    """Binds one prepared query. Times are given in milliseconds."""

    def __init__(self, prepared: Any) -> None:  # noqa: ANN401 - the driver has no types
        self._prepared = prepared
        self._version = prepared.protocol_version
        self._encoders = tuple(_encoder(column.type) for column in prepared.column_metadata)

    def bound(self, values: Sequence[object]) -> Any:  # noqa: ANN401
        """Return the query with its values."""
        statement = BoundStatement(self._prepared)
        statement.raw_values = values
        statement.values = self._encoded(self._encoders, values)
        return statement

    def routing_key(self, key: Sequence[object]) -> bytes | None:
        """Return the partition of a table that holds `key`, which the values begin with; None if there is no such."""
        if self._prepared.routing_key_indexes != list(range(len(key))):
            return None
        statement = BoundStatement(self._prepared)
        statement.values = self._encoded(self._encoders[: len(key)], key)
        found: bytes | None = statement.routing_key
        return found

    def fill(self, batch: Any, key: Sequence[object], rows: Iterable[Sequence[object]]) -> None:  # noqa: ANN401
        """Add the query once for each row to a batch; the values of all begin with `key`, encoded once."""
        statement = BoundStatement(self._prepared)
        own = self._encoders[len(key) :]
        same = self._encoded(self._encoders[: len(key)], key)
        for row in rows:
            statement.values = same + self._encoded(own, row)
            batch.add(statement)  # the batch copies the values, so the statement can be used again

    def fill_encoded(self, batch: Any, key: Sequence[object], rows: Iterable[list[object]]) -> None:  # noqa: ANN401
        """Do the same with rows whose values are encoded already."""
        statement = BoundStatement(self._prepared)
        same = self._encoded(self._encoders[: len(key)], key)
        for row in rows:
            statement.values = same + row
            batch.add(statement)

    def _encoded(self, encoders: Sequence[Encode], values: Sequence[object]) -> list[object]:
        version = self._version
        return [
            value if value is None or value is UNSET_VALUE else encode(value, version)
            for encode, value in zip(encoders, values, strict=True)
        ]


def unlogged() -> Any:  # noqa: ANN401
    """Return an empty batch of idempotent writes to one partition."""
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.is_idempotent = True
    return batch


def _encoder(kind: Any) -> Encode:  # noqa: ANN401
    chosen = LongType if kind in _TIMES else kind
    encode: Encode = chosen.serialize
    return encode


SHARED_PARTITIONS = 10


class RequestShare(NamedTuple, Generic[T]):
    """What is asked of one partition: the nodes that hold it (None if it can't share a request), and its size."""

    nodes: Hashable | None
    size: int
    item: T


def shared(shares: Iterable[RequestShare[T]], *, most: int) -> Iterator[list[T]]:
    """Yield what goes together, each as soon as it is full: up to `most` in size, and ten partitions."""
    waiting: dict[Hashable, tuple[int, list[T]]] = {}
    for nodes, size, item in shares:
        if nodes is None or size > most:
            yield [item]
            continue
        taken, held = waiting.pop(nodes, (0, []))
        if taken + size > most or len(held) == SHARED_PARTITIONS:
            yield held
            taken, held = 0, []
        held.append(item)
        waiting[nodes] = (taken + size, held)
    for _, held in waiting.values():
        yield held


async def one_ahead(pages: AsyncGenerator[T, None]) -> AsyncIterator[T]:
    """Yield the pages; while the caller handles one, the next one is fetched, and no more than that."""
    upcoming = _next_page(pages)
    try:
        while (page := await upcoming) is not None:
            upcoming = _next_page(pages)
            yield page
    finally:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
        await pages.aclose()


def _next_page(pages: AsyncGenerator[T, None]) -> asyncio.Future[T | None]:
    return asyncio.ensure_future(anext(pages, None))
