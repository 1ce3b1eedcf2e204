"""Journals on real Kafka and Cassandra, written and replicated before a bench begins, and read by many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import headrace
from benchmarks.harness import BenchFailed, Stage
from benchmarks.workloads.appends import IN_FLIGHT
from benchmarks.workloads.events import Event
from benchmarks.workloads.servers import server
from headrace.app import Headrace
from headrace.journal import Journal, Topology, replicate_batch
from headrace.model import Event as JournalEvent
from headrace.model import TopicPartition
from headrace.services import RunningService

__all__ = [
    "KEYSPACE",
    "Ground",
    "JournalAppend",
    "append_to",
    "appends_to",
    "ground",
    "many",
    "opened",
    "read_all",
    "replicate",
]

KEYSPACE = "bench"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ground:
    """The two servers, and Headrace on them."""

    kafka: RunningService
    cassandra: RunningService
    hr: Headrace


class JournalAppend(NamedTuple):
    """One append: a journal's id and the events for it."""

    id: str
    events: list[JournalEvent]


@asynccontextmanager
async def ground(stage: Stage) -> AsyncIterator[Ground]:
    """Start both servers and connect."""
    with server("kafka", stage) as kafka, server("cassandra", stage) as cassandra:
        store = f"cassandra://{cassandra.address}/{KEYSPACE}"
        async with headrace.connect(f"kafka://{kafka.address}", store=store) as hr:
            yield Ground(kafka, cassandra, hr)


def appends_to(events: Sequence[Event], *, size: int, numbers: dict[str, int]) -> list[JournalAppend]:
    """Return the events as appends of `size` each, going round their keys.

    `numbers` are the journals' last seq_nrs; they are increased.
    """
    keys = list(dict.fromkeys(event.key.decode() for event in events))
    appends = []
    for nr, at in enumerate(range(0, len(events), size)):
        id_ = keys[nr % len(keys)]
        first = numbers.get(id_, 0) + 1
        some = [JournalEvent(first + nr, event.value) for nr, event in enumerate(events[at : at + size])]
        numbers[id_] = some[-1].seq_nr
        appends.append(JournalAppend(id_, some))
    return appends


async def opened(hr: Headrace, topic: str, *, partitions: int) -> Journal:
    """Return the journals of a new topic, which is there when the clock starts."""
    journal = hr.journal(topic, partitions=partitions)
    await journal.mark("set-up", "set-up")
    return journal


async def append_to(journal: Journal, appends: Iterable[JournalAppend], *, in_flight: int = IN_FLIGHT) -> None:
    """Append each separately, `in_flight` of them at any time."""
    await many(lambda append: journal.append(append.id, append.events), appends, in_flight=in_flight)


async def many(work: Callable[[T], Awaitable[object]], items: Iterable[T], *, in_flight: int) -> None:
    """Do the work for each item, `in_flight` of them at any time."""
    waiting = iter(items)
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(_some(work, waiting))


async def read_all(journal: Journal, id_: str, *, expected: int) -> None:
    """Read a journal to its end, which must be event `expected`, without a hole."""
    count = 0
    async for _event in journal.read(id_):
        count += 1
    if count != expected:
        raise BenchFailed(f"journal {id_} has {expected} events but {count} were read")


async def replicate(hr: Headrace, topic: str) -> None:
    """Replicate everything in the topic into the store."""
    layout = await Topology(hr.log, hr.store.settings, topic).layout()
    for partition in range(layout.partitions):
        at = TopicPartition(topic, partition)
        end = (await hr.log.bounds(at)).end
        records = [record async for batch in hr.log.read(at, 0, end) for record in batch.records] if end else []
        await replicate_batch(hr.store, layout, at, records, up_to=end - 1)


async def _some(work: Callable[[T], Awaitable[object]], waiting: Iterator[T]) -> None:
    for item in waiting:
        await work(item)
