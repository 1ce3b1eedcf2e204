"""Counters as aggregates of an engine: the commands that engine benches send, and what they leave in the log."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

import headrace
from benchmarks.harness import BenchFailed, Readings, p50, stopwatch
from benchmarks.workloads.events import KEYS
from headrace.app import Headrace
from headrace.cluster import batch_of
from headrace.config import ClusterSettings, HeadraceSettings, KeyspaceSettings
from headrace.engine import Engine, EngineClient, Success
from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.runtime import rare_collections
from headrace.state import BatchName, is_reserved

__all__ = [
    "IN_FLIGHT",
    "TEXT",
    "CounterState",
    "EnginePlace",
    "Increment",
    "WrittenBatches",
    "aggregate_ids",
    "counter_engine",
    "measured",
    "send_all",
    "send_one_by_one",
    "serve_counters",
]

IN_FLIGHT = 1000
# The event's payload is 200 bytes with this: {"type":"Incremented","data":{"text":"…"}}.
TEXT = "x" * 158


class CounterState(msgspec.Struct, frozen=True):
    """How often a counter was incremented."""

    count: int


class Increment(msgspec.Struct, frozen=True):
    """Count one more, and keep a text in the journal."""

    text: str


class Incremented(msgspec.Struct, frozen=True):
    """One more was counted."""

    text: str


def counter_engine(name: str = "counters", *, partitions: int) -> Engine[CounterState]:
    """Return an engine whose handlers do next to nothing: what is measured is the engine."""
    counters: Engine[CounterState] = Engine(name, state=CounterState, partitions=partitions)

    @counters.command
    def increment(counter: CounterState | None, command: Increment) -> Incremented:
        return Incremented(command.text)

    @counters.event
    def incremented(counter: CounterState | None, event: Incremented) -> CounterState:
        return CounterState(1 if counter is None else counter.count + 1)

    return counters


class EnginePlace(NamedTuple):
    """Where a cluster is: its log, the store of its claims (empty: where the log is), the folder of its copies."""

    log: str
    store: str
    folder: str

    @asynccontextmanager
    async def node(self, name: str, *engines: Engine[Any]) -> AsyncIterator[Headrace]:
        """Run a node in this process, as `headrace node run` does."""
        settings = HeadraceSettings(
            cluster=ClusterSettings(name="bench", node_id=name), keyspace=KeyspaceSettings(state_dir=self.folder)
        )
        opened = headrace.connect(self.log, store=self.store or None, settings=settings)
        async with opened as hr, hr.node(*engines):
            with rare_collections():
                yield hr


def aggregate_ids(count: int = KEYS) -> list[str]:
    """Return the ids of all counters."""
    return [f"counter-{nr:04d}" for nr in range(count)]


async def send_all(client: EngineClient[CounterState], count: int, *, in_flight: int = IN_FLIGHT) -> None:
    """Send `count` commands, going round the counters, `in_flight` of them at any time."""
    ids = aggregate_ids()
    waiting = iter(ids[nr % len(ids)] for nr in range(count))
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(_send_some(client, waiting))


async def _send_some(client: EngineClient[CounterState], waiting: Iterator[str]) -> None:
    command = Increment(TEXT)
    for id_ in waiting:
        _check(await client.aggregate(id_).send(command))


async def send_one_by_one(client: EngineClient[CounterState], count: int) -> Sequence[float]:
    """Return the seconds of each command when there is only one at a time."""
    ids, command, seen = aggregate_ids(), Increment(TEXT), []
    for nr in range(count):
        with stopwatch() as watch:
            result = await client.aggregate(ids[nr % len(ids)]).send(command)
        _check(result)
        seen.append(watch.seconds)
    return seen


async def measured(client: EngineClient[CounterState], commands: int, single: int) -> Readings:
    """Return the rate of many callers, and how long one command of a single caller takes."""
    with stopwatch() as watch:
        await send_all(client, commands)
    return {"commands_per_s": watch.rate(commands), "one_command_p50_ms": p50(await send_one_by_one(client, single))}


def _check(result: object) -> None:
    if not isinstance(result, Success):
        raise BenchFailed(f"a counter was not incremented: {result}")


class WrittenBatches:
    """What an engine writes, batch by batch, so that a bound can write the same records in the same transactions."""

    def __init__(self, log: Log, engine: Engine[Any]) -> None:
        self._log = log
        topics = [topic for topic in (engine.journal_topic, engine.state_topic) if topic is not None]
        self._starts = {TopicPartition(topic, nr): 0 for topic in topics for nr in range(engine.partitions)}

    async def take(self) -> list[list[Record]]:
        """Return the batches since the last call, the journal's records before those of the states in each."""
        batches: defaultdict[tuple[BatchName, int], list[Record]] = defaultdict(list)
        for at in self._starts:
            for record in await self._new_records(at):
                name = batch_of(record)
                if name is not None and not is_reserved(record.key):
                    batches[name, at.partition].append(record)
        return [records for _, records in sorted(batches.items(), key=lambda each: each[0])]

    async def _new_records(self, at: TopicPartition) -> Iterable[Record]:
        start, end = self._starts[at], (await self._log.bounds(at)).high_watermark
        self._starts[at] = end
        batches = self._log.read(at, start, end) if start < end else _nothing()
        return [record async for batch in batches for record in batch.records]


async def _nothing() -> AsyncIterator[Any]:
    return
    yield


def serve_counters(log: str, store: str, folder: str, name: str, partitions: int) -> None:
    """Serve the counters, and stay until killed."""

    async def run() -> None:
        async with EnginePlace(log, store, folder).node(name, counter_engine(partitions=partitions)):
            print("serves", flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())
