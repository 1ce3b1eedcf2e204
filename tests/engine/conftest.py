"""What the tests of engines stand on: nodes with one partition, over a log that can be made to fail."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cluster.owner_exam import UnsureLog
from tests.engine.node_process import EnginePlace

from headrace.cluster import (
    Identity,
    LeaseKeeper,
    OwnedPartition,
    Owner,
    batch_of,
    ensure_lease_topic,
    new_process,
)
from headrace.config import EmbeddedLogSettings, EmbeddedStoreSettings, LogSettings, StoreSettings
from headrace.engine import (
    AggregateRecord,
    AggregateValues,
    CommandRequest,
    Engine,
    EnginePartition,
    audit_engine,
    ensure_topics,
    open_partition,
    result_of,
)
from headrace.journal import Journal
from headrace.log import Log, open_log
from headrace.model import Record, TopicPartition
from headrace.runtime import SYSTEM_CLOCK, Clock
from headrace.state import BatchName, is_reserved
from headrace.store import Store, StoreReader, open_store
from headrace.testing.conformance.log_setting import eventually


class EngineNode:
    """One node with its lease and its copy of partition 0, as HostingNode would have it."""

    def __init__(self, log: Any, prefix: str, engine: Engine[Any], name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.store: Store | None = None
        self.log = log
        self.clock = clock
        self.engine = engine
        self.name = name
        self.keeper = LeaseKeeper(log, prefix, Identity("cluster", name, new_process()))
        at = TopicPartition(engine.state_topic, 0)
        self.owner = Owner(log, OwnedPartition(prefix, (at,)), self.keeper, self)
        self.tasks: list[asyncio.Task[Any]] = []
        self.epochs: list[int] = []
        self._is_owned = False
        self._codec = engine.state_codec()

    async def start(self, *, rank: int | None = 0) -> EngineNode:
        limits = await ensure_topics(self.log, None, self.engine)
        self.partition: EnginePartition[Any] = await open_partition(
            self.log, self.engine, 0, limits, node=self.name, clock=self.clock, store=self._reader()
        )
        self.partition.begin(self.owner)
        self.owner.propose(rank)
        self.tasks = [asyncio.create_task(self.keeper.run()), asyncio.create_task(self.owner.run())]
        return self

    def _reader(self) -> Callable[[], StoreReader] | None:
        store = self.store
        return None if store is None else lambda: store.reader

    async def serving(self) -> EngineNode:
        async def is_owner() -> bool:
            return self.owner.may_serve()

        await eventually(is_owner, every_s=0.005, what="becoming the owner")
        return self

    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        self.epochs.append(epoch)
        if not self._is_owned:
            await self.partition.owns(epoch)
        self._is_owned = True

    async def lost(self) -> None:
        self._is_owned = False
        await self.partition.lost()

    async def send(
        self, aggregate: str, command: Any, *, timeout_s: float = 20.0, attempt: int = 1, **options: Any
    ) -> Any:
        kind, data = self.engine.commands.encode(command)
        request = CommandRequest(aggregate=aggregate, kind=kind, data=data, **options)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        answer = await self.partition.submit(request, deadline_s=deadline_s, attempt=attempt)
        return result_of(self.engine, self._codec, answer.reply, since=answer.since, is_repeated=answer.is_repeated)

    async def record(self, aggregate: str) -> AggregateRecord | None:
        return (await self.partition.read(aggregate, timeout_s=20)).record

    async def stop(self) -> None:
        """End without a word, as a crash would."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.partition.close()


class EngineSetting:
    """A log, and the nodes on it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.unsure = UnsureLog(log)
        self.prefix = f"p-{uuid.uuid4().hex[:8]}"
        self.nodes: list[EngineNode] = []
        # Set by tests that write to an engine's topics behind its back.
        self.is_spoiled = False
        # Nodes that are made from now on find events there which have left the log.
        self.store: Store | None = None

    def name(self) -> str:
        return f"e-{uuid.uuid4().hex[:10]}"

    async def node(
        self, engine: Engine[Any], name: str = "n1", *, clock: Clock = SYSTEM_CLOCK, **options: Any
    ) -> EngineNode:
        await ensure_lease_topic(self.log, self.prefix, partitions=2)
        self.nodes.append(EngineNode(self.unsure, self.prefix, engine, name, clock))
        self.nodes[-1].store = self.store
        return await self.nodes[-1].start(**options)

    async def owner(self, engine: Engine[Any], name: str = "n1", *, clock: Clock = SYSTEM_CLOCK) -> EngineNode:
        return await (await self.node(engine, name, clock=clock)).serving()

    async def fails_over(self, node: EngineNode, name: str) -> EngineNode:
        """End a node without a word, and return another one that owns its partition."""
        await node.stop()
        self.nodes.remove(node)
        return await self.owner(node.engine, name, clock=node.clock)

    async def records(self, topic: str) -> list[Record]:
        """Return the application's records of a topic."""
        bounds = await self.log.bounds(TopicPartition(topic, 0))
        batches = self.log.read(TopicPartition(topic, 0), bounds.start, bounds.high_watermark, timeout_s=20)
        return [each async for batch in batches for each in batch.records if not is_reserved(each.key)]

    async def batches(self, engine: Engine[Any]) -> list[BatchName | None]:
        """Return the batches of all records, of the journal and of the state topic."""
        topics = [engine.state_topic, *([engine.journal_topic] if engine.journal_topic else [])]
        return [batch_of(each) for topic in topics for each in await self.records(topic)]

    async def payloads(self, engine: Engine[Any]) -> list[Any]:
        """Return the data of all events in the journal, in order."""
        values = [msgspec.json.decode(each.value or b"{}") for each in await self.records(engine.journal_topic or "")]
        return [event["payload"]["data"] for value in values for event in value["events"]]

    async def states(self, engine: Engine[Any]) -> list[AggregateRecord | None]:
        values = AggregateValues(engine.state_codec())
        found = await self.records(engine.state_topic)
        return [None if each.value is None else values.decode(each.value) for each in found]

    async def audit(self, folder: Path) -> None:
        """Check that whatever happened to the engines, their states are the folds of their journals."""
        store = await open_store(
            f"embedded:{folder}", settings=StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
        )
        try:
            for engine in {node.engine.name: node.engine for node in self.nodes if node.engine.journal_topic}.values():
                journal = Journal(self.log, store, engine.journal_topic or "", cache=None, read_only=True)
                assert list((await audit_engine(self.log, journal, engine)).differences) == []
        finally:
            await store.close()

    async def close(self) -> None:
        for node in self.nodes:
            await node.stop()
        await self.log.close()


# For tests of what happens before anything reaches the log: a broker would show the same, and take longer.
embedded_only = pytest.mark.parametrize("log_address", ["embedded"], indirect=True)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.servers)])
def log_address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where the log is: every test that asks for it runs in a folder of its own, and on the run's broker."""
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'log'}"
    return f"kafka://{request.getfixturevalue('kafka').address}"


@pytest.fixture
def place(log_address: str, tmp_path: Path) -> EnginePlace:
    """Return a cluster of the test's own, for nodes as an application runs them."""
    return EnginePlace(log_address, str(tmp_path), f"c-{uuid.uuid4().hex[:8]}")


@pytest.fixture
async def setting(log_address: str, tmp_path: Path) -> AsyncIterator[EngineSetting]:
    """Open the log, an embedded one without fsync. N42: at the end of each test the audit of its engines is clean."""
    settings = LogSettings(embedded=EmbeddedLogSettings(fsync=False))
    opened = EngineSetting(await open_log(log_address, settings=settings))
    yield opened
    for node in opened.nodes:
        await node.stop()
    if not opened.is_spoiled:
        await opened.audit(tmp_path / "audit")
    await opened.close()
