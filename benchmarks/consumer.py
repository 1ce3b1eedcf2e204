"""consumer: the time to a consumer's first record, for a new consumer and for one of the log's pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

from benchmarks.bounds.consumer_costs import ConsumerCosts, RawReader
from benchmarks.bounds.kafka import RawProducer, create_topic
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_most, p50
from benchmarks.workloads import events
from benchmarks.workloads.servers import server
from headrace.config import KafkaLogSettings
from headrace.log.kafka.client import ClientConfigs
from headrace.log.kafka.consumers import ConsumerPool
from headrace.model import TopicPartition

TOPIC = "raw"
RECORDS = 10_000
READS = 100
AT = TopicPartition(TOPIC, 0)


class ConsumerContest:
    """Both sides seek to offsets all over one partition and read the first record there."""

    def __init__(self, servers: str, *, records: int, reads: int) -> None:
        self._servers = servers
        self._configs = ClientConfigs(servers, KafkaLogSettings())
        self._offsets = [records * nr // reads for nr in range(reads)]
        # The next seek waits for the fetch that is on its way: both sides must wait equally long at the end.
        self._raw = RawReader(servers, wait_ms=self._configs.reader(follow=False)["fetch.wait.max.ms"])

    async def work(self) -> Readings:
        """Borrow from a pool that is empty at first, then from one that has a consumer."""
        new = []
        for offset in self._offsets:
            pool = self._pool()
            new.append(await _borrow(pool, offset))
            await pool.close()
        pool = self._pool()
        kept = [await _borrow(pool, offset) for offset in self._offsets]
        await pool.close()
        return _readings(new, kept)

    async def bound(self) -> Readings:
        """Open a consumer for each offset, then seek to each offset with one consumer."""
        new = [self._raw.from_new(*AT, offset) for offset in self._offsets]
        kept = [self._raw.from_kept(*AT, offset) for offset in self._offsets]
        return _readings(new, kept)

    def close(self) -> None:
        """Close the connections to the broker."""
        self._raw.close()

    def _pool(self) -> ConsumerPool:
        return ConsumerPool(self._configs, self._servers, max_idle=1)


async def _borrow(pool: ConsumerPool, offset: int) -> ConsumerCosts:
    started = perf_counter()
    consumer = pool.lend()
    lent = perf_counter()
    await consumer.threads.run(consumer.seek, AT, offset)
    sought = perf_counter()
    messages = await consumer.threads.run(consumer.take, 1, 60.0)
    polled = perf_counter()
    if [message.offset() for message in messages] != [offset]:
        raise BenchFailed(f"offset {offset} of {AT} was not read")
    pool.give_back(consumer)
    await consumer.threads.run(lambda: None)
    return ConsumerCosts(lent - started, sought - lent, polled - sought)


def _readings(new: Sequence[ConsumerCosts], kept: Sequence[ConsumerCosts]) -> Readings:
    def middle(cost: Callable[[ConsumerCosts], float], of: Sequence[ConsumerCosts]) -> float:
        return p50([cost(costs) for costs in of])

    return {
        "open_p50_ms": middle(lambda costs: costs.open_s, new),
        "seek_p50_ms": middle(lambda costs: costs.seek_s, kept),
        "first_poll_p50_ms": middle(lambda costs: costs.first_poll_s, kept),
        "all_three_p50_ms": middle(lambda costs: costs.total_s, new),
        "pooled_p50_ms": middle(lambda costs: costs.total_s, kept),
    }


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("kafka", stage) as kafka:
        create_topic(kafka.address, TOPIC, partitions=1)
        producer = RawProducer(kafka.address)
        records = stage.count(RECORDS, least=READS)
        producer.produce(TOPIC, events(records))
        producer.close()
        contest = ConsumerContest(kafka.address, records=records, reads=stage.count(READS))
        try:
            yield Contest(contest.work, contest.bound)
        finally:
            contest.close()


BENCH = Bench(
    name="consumer",
    work="the first record from a place: by a new consumer, and by one that the log's pool kept",
    measures=(
        Measure("open_p50_ms", unit="ms", against="raw consumer"),
        Measure("seek_p50_ms", unit="ms", against="raw consumer, kept open"),
        Measure("first_poll_p50_ms", unit="ms", against="raw consumer, kept open"),
        Measure("all_three_p50_ms", unit="ms", against="raw consumer", target=at_most(1.2)),
        Measure("pooled_p50_ms", unit="ms", against="raw consumer, kept open", target=at_most(1.2)),
    ),
    setup=setup,
)
