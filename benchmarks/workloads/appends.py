"""Many appends at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.workloads.events import Event
from headrace.log import Log
from headrace.model import NewRecord

__all__ = ["IN_FLIGHT", "append_all", "appends_of"]

IN_FLIGHT = 1000


def appends_of(topic: str, events: Sequence[Event], *, size: int) -> list[list[NewRecord]]:
    """Return the events as records of `topic`, `size` to an append."""
    records = [NewRecord(topic, event.key, event.value) for event in events]
    return [records[at : at + size] for at in range(0, len(records), size)]


async def append_all(log: Log, appends: Iterable[Sequence[NewRecord]], *, in_flight: int = IN_FLIGHT) -> None:
    """Append each element of `appends` separately, `in_flight` of them at any time."""
    waiting = iter(appends)
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(_append_some(log, waiting))


async def _append_some(log: Log, waiting: Iterator[Sequence[NewRecord]]) -> None:
    for records in waiting:
        await log.append(records)
