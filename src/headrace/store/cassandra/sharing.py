"""Small reads and writes of several partitions in one request.

A journal is a partition of its own, and most journals have one or two new rows in a batch. With a request for each,
requests are nearly all that such a batch costs, for us and for the server. Partitions that have all their replicas on
the same nodes therefore share a request: any of these nodes can coordinate it, and holds all of its rows. Partitions
elsewhere would burden the coordinator.

A server warns of an unlogged batch of more than 10 partitions or 5 KiB, and refuses one of 50 KiB.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

__all__ = ["SHARED_PARTITIONS", "RequestShare", "shared"]

T = TypeVar("T")

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
