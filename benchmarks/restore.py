"""restore: a state of many keys is built from its changelog on Kafka, and opened again from its checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.bounds.kafka import RawConsumer, RawTransactions
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads import Event
from benchmarks.workloads.servers import server
from headrace.log import Log, open_log
from headrace.model import TopicPartition
from headrace.state import BytesValues, StatePartition, StateSpec, open_state_store

KEYS = 1_000_000
VALUE = bytes(200)
TOPIC = "restored"
SPEC: StateSpec[str, bytes] = StateSpec(name="values", topic=TOPIC, key=str, value=BytesValues())
AGAINST = "confluent-kafka consuming them: key, value, headers and time of each"
# Records of one transaction: an owner under load writes about as many.
_TRANSACTION = 1000


class RestoreContest:
    """One changelog: the work makes a copy of it, the bound only reads it."""

    def __init__(self, log: Log, address: str, folder: Path, count: int) -> None:
        self._log = log
        self._address = address
        self._folder = folder / "copy"
        self._count = count
        self._consumer = RawConsumer(address)

    async def open(self) -> StatePartition:
        """Open the copy, and read what it has not."""
        copy = await StatePartition.open(
            self._log, [SPEC], 0, open_store=lambda _: open_state_store(f"rocksdb:{self._folder}")
        )
        await copy.catch_up()
        return copy

    async def fill(self) -> None:
        """Make the topic, and write a value of every key in transactions, as an owner does."""
        await (await self.open()).close()
        producer = RawTransactions(self._address)
        try:
            for start in range(0, self._count, _TRANSACTION):
                keys = range(start, min(start + _TRANSACTION, self._count))
                producer.commit(TOPIC, [Event(b"key-%08d" % nr, VALUE) for nr in keys])
        finally:
            producer.close()

    async def work(self) -> Readings:
        """Build the copy from the log's start, then open it from its checkpoint and ask for a key."""
        shutil.rmtree(self._folder)
        with stopwatch() as restoring:
            copy = await self.open()
        keys = await copy.state(SPEC).count()
        await copy.close()
        if keys != self._count:
            raise BenchFailed(f"{keys} of {self._count} keys were restored")
        with stopwatch() as opening:
            copy = await self.open()
            found = await copy.state(SPEC).get(f"key-{self._count - 1:08d}")
        await copy.close()
        if found != VALUE:
            raise BenchFailed("the last key has no value")
        return {"from_log_per_s": restoring.rate(self._count), "from_checkpoint_s": opening.seconds}

    async def bound(self) -> Readings:
        """Read the same records with the driver alone, and take key, value and time of each, as a restore must."""
        (end,) = self._consumer.ends(TOPIC, range(1)).values()
        bounds = await self._log.bounds(TopicPartition(TOPIC, 0))
        with stopwatch() as consuming:
            count = self._consumer.consume(TOPIC, {0: (bounds.start, end)})
        if count != self._count:
            raise BenchFailed(f"{count} of {self._count} records were consumed")
        return {"from_log_per_s": consuming.rate(count)}

    def close(self) -> None:
        """Close the connection of the bound."""
        self._consumer.close()


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("kafka", stage) as kafka:
        log = await open_log(kafka.url)
        contest = RestoreContest(log, kafka.address, stage.folder, stage.count(KEYS, least=1000))
        try:
            await contest.fill()
            yield Contest(contest.work, contest.bound)
        finally:
            contest.close()
            await log.close()


BENCH = Bench(
    name="restore",
    work=f"a copy on RocksDB of a changelog of {KEYS:,} keys with {len(VALUE)}-byte values, from the log's start and "
    "from its checkpoint",
    measures=(
        Measure("from_log_per_s", unit="records/s", against=AGAINST, target=at_least(0.5)),
        Measure("from_checkpoint_s", unit="s"),
    ),
    setup=setup,
)
