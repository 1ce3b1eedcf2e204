"""engine-peer: the counters of the other engine benches, beside the same on PyPI's `eventsourcing`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing

from benchmarks.bounds.peer_counters import PeerCounters, postgres_environment, sqlite_environment
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads.engine_contests import PARTITIONS
from benchmarks.workloads.engines import (
    IN_FLIGHT,
    TEXT,
    CounterState,
    EnginePlace,
    aggregate_ids,
    counter_engine,
    send_all,
)
from benchmarks.workloads.servers import server
from headrace.engine import EngineClient

COMMANDS = 20_000
# The peer commits each command by itself; a part of the work is enough to measure its rate.
PEER_COMMANDS = 1_000
# SQLite has one writer; more threads than one only wait for each other there.
SQLITE_THREADS = 1
POSTGRES_THREADS = 8


class PeerContest:
    """Each side counts the same; ours on the embedded tier and on Kafka, the peer on SQLite and PostgreSQL."""

    def __init__(
        self,
        embedded: EngineClient[CounterState],
        kafka: EngineClient[CounterState],
        sqlite: PeerCounters,
        postgres: PeerCounters,
        stage: Stage,
    ) -> None:
        self._clients = {"embedded_commands_per_s": embedded, "kafka_commands_per_s": kafka}
        self._peers = {"embedded_commands_per_s": sqlite, "kafka_commands_per_s": postgres}
        self._count = stage.count(COMMANDS, least=IN_FLIGHT)
        self._peer_count = stage.count(PEER_COMMANDS, least=80)

    async def work(self) -> Readings:
        """Send commands to both engines, one after the other."""
        readings = {}
        for metric, client in self._clients.items():
            with stopwatch() as watch:
                await send_all(client, self._count)
            readings[metric] = watch.rate(self._count)
        return readings

    async def bound(self) -> Readings:
        """Do the same with both applications of the peer."""
        readings = {}
        for metric, peer in self._peers.items():
            with stopwatch() as watch:
                done = peer.increment_all(TEXT, self._peer_count)
            readings[metric] = watch.rate(done)
        return readings


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    stage.folder.chmod(0o755)  # PostgreSQL, started by root, runs as another user
    folder, names = stage.folder, aggregate_ids()
    async with AsyncExitStack() as opened:
        kafka = opened.enter_context(server("kafka", stage))
        postgres = opened.enter_context(server("postgres", stage))
        stage.tell("making the peer's counters")
        peers = [
            opened.enter_context(closing(PeerCounters(environment, names, threads=threads)))
            for environment, threads in (
                (sqlite_environment(folder / "peer.db"), SQLITE_THREADS),
                (postgres_environment(postgres.url), POSTGRES_THREADS),
            )
        ]
        places = (
            EnginePlace(f"embedded:{folder / 'log'}", "", str(folder / "state")),
            EnginePlace(kafka.url, f"embedded:{folder / 'store'}", str(folder / "kafka-state")),
        )
        engines = [counter_engine(partitions=PARTITIONS) for _ in places]
        clients = [
            (await opened.enter_async_context(place.node("bench", engine))).engine(engine)
            for place, engine in zip(places, engines, strict=True)
        ]
        contest = PeerContest(clients[0], clients[1], peers[0], peers[1], stage)
        yield Contest(contest.work, contest.bound)


BENCH = Bench(
    name="engine-peer",
    work=f"commands to 1000 counters, {IN_FLIGHT} in flight, embedded and on Kafka",
    measures=(
        Measure(
            "embedded_commands_per_s",
            unit="commands/s",
            against="the same counters on `eventsourcing` with SQLite",
            target=at_least(20),
        ),
        Measure(
            "kafka_commands_per_s",
            unit="commands/s",
            against=f"the same counters on `eventsourcing` with PostgreSQL, {POSTGRES_THREADS} threads",
            target=at_least(20),
        ),
    ),
    setup=setup,
)
