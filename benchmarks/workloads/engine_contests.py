"""Commands to an engine, beside what its batches cost without it: transactions of Kafka, rows of SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from benchmarks.bounds.kafka import RawTransactions, create_topic
from benchmarks.bounds.sqlite import RecordTable
from benchmarks.harness import Contest, Readings, Stage, p50, stopwatch
from benchmarks.workloads.engines import (
    IN_FLIGHT,
    CounterState,
    EnginePlace,
    WrittenBatches,
    counter_engine,
    send_all,
    send_one_by_one,
)
from benchmarks.workloads.servers import server
from headrace.app import Headrace
from headrace.engine import Engine, EngineClient
from headrace.model import NewRecord, Record

__all__ = ["PARTITIONS", "against_sqlite_rows", "against_transactions", "one_against_transaction"]

PARTITIONS = 4
COMMANDS = 50_000
SINGLE = 500

Batches: TypeAlias = Sequence[Sequence[Record]]


class CommandContest:
    """The engine sends its batches; the bound writes the same ones. `write` takes them, ready-made, and is timed."""

    def __init__(self, hr: Headrace, engine: Engine[CounterState], count: int) -> None:
        self._client: EngineClient[CounterState] = hr.engine(engine)
        self._written = WrittenBatches(hr.log, engine)
        self._count = count
        self.batches: Batches = []

    async def work(self) -> Readings:
        """Send the commands, many at once, and look at what they became."""
        with stopwatch() as watch:
            await send_all(self._client, self._count)
        self.batches = await self._written.take()
        return {"commands_per_s": watch.rate(self._count), "batch_size": self._count / len(self.batches)}

    async def work_one_by_one(self) -> Readings:
        """Send the commands one at a time."""
        seen = await send_one_by_one(self._client, self._count)
        self.batches = await self._written.take()
        return {"one_command_p50_ms": p50(seen)}


@asynccontextmanager
async def against_transactions(stage: Stage) -> AsyncIterator[Contest]:
    """Set many commands beside a producer that commits the same batches."""
    async with _kafka(stage, stage.count(COMMANDS, least=IN_FLIGHT)) as (contest, producer):

        async def bound() -> Readings:
            batches = [_raw_records(batch) for batch in contest.batches]
            with stopwatch() as watch:
                for batch in batches:
                    producer.commit_records(batch)
            # One state for each aggregate of a batch, and one append for each command.
            return {"commands_per_s": watch.rate(_commands_in(contest.batches))}

        yield Contest(contest.work, bound)


@asynccontextmanager
async def one_against_transaction(stage: Stage) -> AsyncIterator[Contest]:
    """Set single commands beside a producer that commits the same two records."""
    async with _kafka(stage, stage.count(SINGLE, least=20)) as (contest, producer):

        async def bound() -> Readings:
            batches = [_raw_records(batch) for batch in contest.batches]
            return {"one_command_p50_ms": p50([_seconds(lambda: producer.commit_records(each)) for each in batches])}  # noqa: B023

        yield Contest(contest.work_one_by_one, bound)


@asynccontextmanager
async def against_sqlite_rows(stage: Stage) -> AsyncIterator[Contest]:
    """Set many commands on the embedded tier beside rows of a table."""
    place = EnginePlace(f"embedded:{stage.folder / 'log'}", "", str(stage.folder / "state"))
    engine = counter_engine(partitions=PARTITIONS)
    table = RecordTable(stage.folder / "raw.db", partitions=PARTITIONS)
    try:
        async with place.node("bench", engine) as hr:
            contest = CommandContest(hr, engine, stage.count(COMMANDS, least=IN_FLIGHT))

            async def bound() -> Readings:
                groups = [table.rows_of(batch) for batch in contest.batches]
                with stopwatch() as watch:
                    for rows in groups:
                        table.insert(rows, group_size=len(rows))
                return {"commands_per_s": watch.rate(_commands_in(contest.batches))}

            yield Contest(contest.work, bound)
    finally:
        table.close()


@asynccontextmanager
async def _kafka(stage: Stage, count: int) -> AsyncIterator[tuple[CommandContest, RawTransactions]]:
    """Run a node on Kafka; what the engine claims is in an embedded store, which no command touches."""
    engine = counter_engine(partitions=PARTITIONS)
    with server("kafka", stage) as kafka:
        for topic in (engine.journal_topic, engine.state_topic):
            create_topic(kafka.address, f"raw-{topic}", partitions=PARTITIONS)
        place = EnginePlace(kafka.url, f"embedded:{stage.folder / 'store'}", str(stage.folder / "state"))
        producer = RawTransactions(kafka.address)
        try:
            async with place.node("bench", engine) as hr:
                yield CommandContest(hr, engine, count), producer
        finally:
            producer.close()


def _raw_records(batch: Sequence[Record]) -> list[NewRecord]:
    return [
        NewRecord(f"raw-{each.topic}", each.key, each.value, each.headers, partition=each.partition) for each in batch
    ]


def _commands_in(batches: Batches) -> int:
    """Return how many commands are in the batches: each has one record in the journal."""
    journal = batches[0][0].topic
    return sum(record.topic == journal for batch in batches for record in batch)


def _seconds(call: Callable[[], None]) -> float:
    with stopwatch() as watch:
        call()
    return watch.seconds
