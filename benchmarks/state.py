"""state: puts and gets of a state on RocksDB with its changelog on Kafka, and its rebuild from the log."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch

from benchmarks.bounds.kafka import RawConsumer, RawTransactions, create_topic
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads import Event
from benchmarks.workloads.servers import server
from headrace.log import Log, open_log
from headrace.model import TopicPartition
from headrace.state import BytesValues, ProducerWriter, StatePartition, StateSpec, open_state_store

KEYS = 50_000
CALLERS = 500
SCANNED = 20_000
VALUE = bytes(200)
TOPIC = "state"
RAW = "raw-state"
SPEC: StateSpec[str, bytes] = StateSpec(name="values", topic=TOPIC, key=str, value=BytesValues())
RAW_BATCH = f"a transaction of {CALLERS} records with confluent-kafka, then one rocksdict batch of them"


class StateContest:
    """Both sides write the same keys to a topic and a RocksDB of their own."""

    def __init__(self, log: Log, address: str, folder: Path, count: int) -> None:
        self._log = log
        self._address = address
        self._folder = folder
        self._keys = [f"key-{nr:08d}" for nr in range(count)]
        self._raw = Rdict(str(folder / "raw"), Options(raw_mode=True))
        self._producer = RawTransactions(address)
        self._consumer = RawConsumer(address)
        self._round = 0

    async def open(self, name: str) -> StatePartition:
        """Open a copy in a folder of its own."""
        return await StatePartition.open(
            self._log, [SPEC], 0, open_store=lambda _: open_state_store(f"rocksdb:{self._folder / name}")
        )

    async def work(self) -> Readings:
        """Put and get every key, scan some, and build a copy from the log."""
        self._round += 1
        producer = await self._log.transactional("bench-state")
        partition = await self.open("owner")
        try:
            await partition.catch_up()
            partition.own(ProducerWriter(producer))
            state = partition.state(SPEC)

            async def put_on(caller: int) -> None:
                for key in self._keys[caller::CALLERS]:
                    await state.put(key, VALUE)

            with stopwatch() as putting:
                await asyncio.gather(*(put_on(caller) for caller in range(CALLERS)))
            with stopwatch() as getting:
                for key in self._keys:
                    await state.get(key)
            with stopwatch() as scanning:
                scanned = 0
                page = await state.range(limit=1000)
                while scanned < SCANNED and page.next_after is not None:
                    scanned += len(page.items)
                    page = await state.range(after=page.next_after, limit=1000)
        finally:
            await partition.close()
            await producer.close()
        count = len(self._keys)
        return {
            "puts_per_s": putting.rate(count),
            "gets_per_s": getting.rate(count),
            "scanned_per_s": scanning.rate(max(scanned, 1)),
            "restored_per_s": await self._restored(),
            "reopened_s": await self._reopened(),
        }

    async def _restored(self) -> float:
        """Build a copy from the log's start."""
        bounds = await self._log.bounds(TopicPartition(TOPIC, 0))
        with stopwatch() as watch:
            copy = await self.open(f"copy-{self._round}")
            await copy.catch_up()
        await copy.close()
        shutil.rmtree(self._folder / f"copy-{self._round}")
        return watch.rate(bounds.high_watermark - bounds.start)

    async def _reopened(self) -> float:
        """Open the owner's copy again, from its checkpoint."""
        with stopwatch() as watch:
            copy = await self.open("owner")
            await copy.catch_up()
        await copy.close()
        return watch.seconds

    async def bound(self) -> Readings:
        """Do the same with the drivers alone."""
        with stopwatch() as putting:
            for start in range(0, len(self._keys), CALLERS):
                keys = [key.encode() for key in self._keys[start : start + CALLERS]]
                self._producer.commit(RAW, [Event(key, VALUE) for key in keys])
                batch = WriteBatch(raw_mode=True)
                for data in keys:
                    batch.put(data, VALUE)
                self._raw.write(batch)
        with stopwatch() as getting:
            for key in self._keys:
                self._raw[key.encode()]
        with stopwatch() as scanning:
            scanned = sum(1 for _, _ in zip(range(SCANNED), self._raw.items(), strict=False))
        (end,) = self._consumer.ends(RAW, range(1)).values()
        with stopwatch() as consuming:
            count = self._consumer.consume(RAW, {0: (0, end)})
        if not count:
            raise BenchFailed("nothing was consumed")
        return {
            "puts_per_s": putting.rate(len(self._keys)),
            "gets_per_s": getting.rate(len(self._keys)),
            "scanned_per_s": scanning.rate(max(scanned, 1)),
            "restored_per_s": consuming.rate(count),
        }

    def close(self) -> None:
        """Close everything."""
        self._raw.close()
        self._producer.close()
        self._consumer.close()


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("kafka", stage) as kafka:
        create_topic(kafka.address, RAW, partitions=1)
        log = await open_log(kafka.url)
        contest = StateContest(log, kafka.address, stage.folder, stage.count(KEYS, least=1000))
        try:
            yield Contest(contest.work, contest.bound)
        finally:
            contest.close()
            await log.close()


BENCH = Bench(
    name="state",
    work=f"a state of {len(VALUE)}-byte values on RocksDB, its changelog on Kafka: puts by {CALLERS} callers, gets by "
    "one, a scan, a copy from the log's start, and one from its checkpoint",
    measures=(
        Measure("puts_per_s", unit="puts/s", against=RAW_BATCH, target=at_least(0.5)),
        Measure("gets_per_s", unit="gets/s", against="rocksdict's get of the same keys", target=at_least(0.5)),
        Measure("scanned_per_s", unit="pairs/s", against="rocksdict's iterator"),
        Measure("restored_per_s", unit="records/s", against="confluent-kafka consuming them", target=at_least(0.5)),
        Measure("reopened_s", unit="s"),
    ),
    setup=setup,
)
