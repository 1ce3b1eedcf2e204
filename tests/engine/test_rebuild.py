"""Rebuilds of an engine's state from its journal, in one process: what is written, and what nobody can do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import EngineSetting, embedded_only
from tests.engine.models import Account, Close, Deposit, Query, Withdraw, bank_engine

from headrace.config import EmbeddedStoreSettings, StoreSettings
from headrace.engine import (
    AggregateRecord,
    AggregateValues,
    CommandContext,
    Engine,
    EngineGroup,
    EngineLimits,
    PartitionRebuild,
    RebuiltAggregate,
    Rejected,
    audit_engine,
    fence_partition,
    make_topics,
    rebuild_aggregates,
)
from headrace.engine.auditing import stored_values
from headrace.engine.folding import AggregateFold
from headrace.engine.rebuilding import rebuilt_record
from headrace.engine.records import NOTHING_FORGOTTEN
from headrace.engine.timers import Timer
from headrace.errors import CommandIdReused, CommandTooLate, EventsMissing, RebuildRefused, WrongEngineTopic
from headrace.journal import Journal
from headrace.model import NewRecord, StoredEvent
from headrace.store import Store, open_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """The store beside the log."""
    settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
    opened = await open_store(f"embedded:{tmp_path / 'store'}", settings=settings)
    yield opened
    await opened.close()


class Rebuilding:
    """A rebuild of some aggregates, and what it needs."""

    def __init__(self, setting: EngineSetting, store: Store, engine: Engine[Any]) -> None:
        self.setting = setting
        self.engine = engine
        self.journal: Any = Journal(setting.log, store, engine.journal_topic or "", cache=None, read_only=True)
        self.group = EngineGroup(prefix=setting.prefix, cluster_id="cluster")
        self.values = AggregateValues(engine.state_codec())

    async def run(self, *ids: str) -> int:
        return await rebuild_aggregates(
            self.setting.log, self.journal, self.engine, self.values, self.group, ids, max_record_bytes=1_000_000
        )

    async def run_all(self, *ids: str) -> int:
        """Rebuild these, which are all aggregates of partition 0, as a task of Spark does."""
        log = self.setting.log
        fenced = await fence_partition(log, self.engine, self.group, 0)
        stored = await stored_values(log, self.engine, 0)
        rebuild = PartitionRebuild(
            log, self.engine, self.values, self.group, 0, fenced=fenced, max_record_bytes=1_000_000, is_of_all=True
        )
        async with rebuild.begun() as writer:
            for id_ in ids:
                fold = AggregateFold(self.engine, id_)
                async for event in self.journal.read(id_):
                    fold.add(event)
                await writer.write([writer.record(RebuiltAggregate(fold, stored.get(id_)))])
            await writer.end()
        return len(ids)

    async def put(self, id_: str, value: bytes | None) -> None:
        """Write a record to the state topic behind the engine's back."""
        await self.setting.log.append([NewRecord(self.engine.state_topic, id_.encode(), value, partition=0)])

    async def is_clean(self) -> bool:
        return (await audit_engine(self.setting.log, self.journal, self.engine)).is_clean


@embedded_only
async def test_an_aggregate_is_rebuilt_from_its_journal(setting: EngineSetting, store: Store) -> None:
    """N25: a record that is lost, damaged or wrong is made again; the engine goes on with state and version."""
    bank = bank_engine(setting.name())
    rebuilding, node = Rebuilding(setting, store, bank), await setting.owner(bank)
    for id_ in ("closed", "damaged", "lost", "wrong"):
        await node.send(id_, Deposit(5))
        await node.send(id_, Deposit(2), command_id=f"{id_}-2")
    await node.send("closed", Close())
    await node.stop()
    values = rebuilding.values
    await rebuilding.put("lost", None)
    await rebuilding.put("damaged", b"\xff")
    await rebuilding.put("wrong", values.encode(AggregateRecord(1, 9, b'{"balance":9}')))
    await rebuilding.put("closed", values.encode(AggregateRecord(1, 2, b'{"balance":7}')))
    assert not await rebuilding.is_clean()
    assert await rebuilding.run("lost", "damaged", "wrong", "closed", "lost") == 4
    assert await rebuilding.is_clean()
    node = await setting.owner(bank, "n2")
    for id_ in ("lost", "damaged", "wrong"):
        done = await node.send(id_, Deposit(1))
        assert (done.state, done.version) == (Account(8), 3)
    assert (await node.send("closed", Deposit(1))).version == 4


@embedded_only
async def test_command_ids_survive_a_rebuild_or_are_too_late(setting: EngineSetting, store: Store) -> None:
    """N25, N21, N33: ids in a record stay with replies, those of Appends as done; the rest is never done again."""
    bank = bank_engine(setting.name())
    rebuilding, node = Rebuilding(setting, store, bank), await setting.owner(bank)
    since = (await node.partition.read("kept", timeout_s=20)).since
    for id_ in ("kept", "lost"):
        await node.send(id_, Deposit(5), command_id="paid")
        assert isinstance(await node.send(id_, Withdraw(50), command_id="refused"), Rejected)
    await node.stop()
    await rebuilding.put("lost", None)
    await rebuilding.run("kept", "lost")
    node = await setting.owner(bank, "n2")
    again = await node.send("kept", Deposit(5), command_id="paid", since=since, attempt=2)
    assert (again.is_repeated, again.version, again.events[0].amount) == (True, 1, 5)
    assert (await node.send("kept", Withdraw(50), command_id="refused", since=since)).is_repeated
    again = await node.send("lost", Deposit(5), command_id="paid", since=since)
    assert (again.is_repeated, again.is_kept, again.version) == (True, False, 1)
    with pytest.raises(CommandTooLate):
        await node.send("lost", Withdraw(50), command_id="refused", since=since)
    with pytest.raises(CommandTooLate):
        await node.send("kept", Deposit(7), command_id="never seen", since=since)
    after = (await node.partition.read("kept", timeout_s=20)).since
    assert (await node.send("kept", Deposit(7), command_id="never seen", since=after)).version == 2


async def test_the_epochs_of_a_lost_topic_go_on_above_the_old_ones(setting: EngineSetting, store: Store) -> None:
    """N25, N33: callers remember batches of the topic that is gone; none of them seems newer than the rebuild."""
    bank = bank_engine(setting.name())
    rebuilding, node = Rebuilding(setting, store, bank), await setting.owner(bank)
    await node.send("a", Deposit(5), command_id="x")
    await node.stop()
    node = await setting.owner(bank, "n2")
    since = (await node.send("a", Deposit(5))).since
    await node.stop()
    await setting.log.admin.delete(bank.state_topic)
    with pytest.raises(WrongEngineTopic, match=r"partition 0 of it is empty.*headrace engine rebuild"):
        await setting.node(bank, "n3")
    setting.nodes.pop()
    await make_topics(setting.log, None, bank)
    with pytest.raises(WrongEngineTopic, match="partition 0 of it is empty"):
        await setting.node(bank, "n3")
    setting.nodes.pop()
    await rebuilding.run("a")
    node = await setting.owner(bank, "n3")
    epoch, number = map(int, since.split(":"))
    with pytest.raises(CommandTooLate):
        await node.send("a", Deposit(9), command_id="y", since=(epoch + 1000, number))
    assert (await node.send("a", Deposit(5), command_id="x", since=(epoch, number))).is_repeated
    assert (await node.send("a", Deposit(1))).version == 3


@embedded_only
async def test_the_id_of_a_kept_command_is_told_from_others(setting: EngineSetting, store: Store) -> None:
    """N25, N32: where the journal keeps commands, an id that was rebuilt is refused for another command."""
    bank = bank_engine(setting.name(), keep_commands=True)
    rebuilding, node = Rebuilding(setting, store, bank), await setting.owner(bank)
    await node.send("a", Deposit(5), command_id="x")
    await node.stop()
    await rebuilding.put("a", None)
    await rebuilding.run("a")
    node = await setting.owner(bank, "n2")
    assert (await node.send("a", Deposit(5), command_id="x")).is_repeated
    with pytest.raises(CommandIdReused):
        await node.send("a", Deposit(6), command_id="x")


async def test_nobody_owns_a_partition_between_the_look_and_the_write(setting: EngineSetting, store: Store) -> None:
    """N25: if a node had the partition since it was fenced, what the rebuild read may be old: nothing is written."""
    bank = bank_engine(setting.name())
    rebuilding, node = Rebuilding(setting, store, bank), await setting.owner(bank)
    await node.send("a", Deposit(5))
    await node.owner.release()
    fenced = await fence_partition(setting.log, bank, rebuilding.group, 0)
    rebuild = PartitionRebuild(
        setting.log, bank, rebuilding.values, rebuilding.group, 0, fenced=fenced, max_record_bytes=1_000_000
    )
    later = await setting.owner(bank, "n2")
    await later.send("a", Deposit(1))
    await later.owner.release()
    with pytest.raises(RebuildRefused, match="another node or rebuild has owned"):
        async with rebuild.begun() as writer:
            await writer.write([writer.record(RebuiltAggregate(AggregateFold(bank, "a"), None))])
    assert await rebuilding.is_clean()


class _Shortened:
    """A journal whose first event was deleted."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def read_many(self, ids: Collection[str]) -> AsyncIterator[tuple[str, AsyncIterator[StoredEvent]]]:
        for id_ in ids:
            yield id_, self._journal.read(id_, 2)


@embedded_only
async def test_a_journal_without_its_first_events_is_refused(setting: EngineSetting, store: Store) -> None:
    """N25: no state follows from a part of the events; the record stays as it is."""
    bank = bank_engine(setting.name())
    rebuilding, node = Rebuilding(setting, store, bank), await setting.owner(bank)
    await node.send("a", Deposit(5))
    await node.send("a", Deposit(5))
    await node.stop()
    rebuilding.journal = _Shortened(rebuilding.journal)
    with pytest.raises(EventsMissing, match="has event 2 where event 1 should be"):
        await rebuilding.run("a")
    states = await setting.states(bank)
    assert states[-1] is not None
    assert msgspec.json.decode(states[-1].state or b"") == {"balance": 10}


def test_a_rebuilt_record_keeps_the_timers_of_one_that_can_be_read() -> None:
    """N40: a journal has no timers, so those of the record that is there go on."""
    bank = bank_engine("bank")
    timers = (Timer("reminder", 5, "Deposit", b'{"amount":1}'),)
    known = AggregateRecord(1, 0, None, timers=timers)
    made = rebuilt_record(AggregateFold(bank, "a"), None, known, (), bank.limits, forgotten=NOTHING_FORGOTTEN, now_ms=1)
    assert made.timers == timers


@pytest.mark.parametrize("is_of_all", [False, True])
async def test_an_aggregate_that_has_nothing_but_a_timer_keeps_it(
    setting: EngineSetting, store: Store, is_of_all: bool
) -> None:
    """N25, N40: a command may set a timer before there is any event; a rebuild of one or of all leaves it there."""
    engine: Engine[int] = Engine(setting.name(), state=int, partitions=1)

    @engine.command
    def plan(count: int | None, command: Deposit, context: CommandContext[int]) -> None:
        context.schedule(Query(), after="1h", name="reminder")

    @engine.command
    def remind(count: int | None, command: Query) -> None:
        return None

    rebuilding, node = Rebuilding(setting, store, engine), await setting.owner(engine)
    await node.send("a", Deposit(1))
    before = await node.record("a")
    await node.stop()
    await rebuilding.run_all("a") if is_of_all else await rebuilding.run("a")
    node = await setting.owner(engine, "n2")
    after = await node.record("a")
    assert before is not None
    assert after is not None
    assert [each.name for each in after.timers] == ["reminder"]
    assert after.timers == before.timers


@pytest.mark.parametrize("is_of_all", [False, True])
async def test_the_ids_of_an_aggregate_that_is_gone_are_not_done_again(
    setting: EngineSetting, store: Store, is_of_all: bool
) -> None:
    """N25, N33: nothing is left of a purged aggregate but that its ids are forgotten, and a rebuild keeps that."""
    bank = bank_engine(setting.name(), none_states="purge", limits=EngineLimits(command_ids_s=0.05))
    rebuilding, node = Rebuilding(setting, store, bank), await setting.owner(bank)
    since = (await node.partition.read("a", timeout_s=20)).since
    await node.send("a", Deposit(5), command_id="paid", since=since)
    await node.send("a", Close())
    await node.stop()
    await asyncio.sleep(0.1)
    await rebuilding.run_all("a") if is_of_all else await rebuilding.run("a")
    node = await setting.owner(bank, "n2")
    with pytest.raises(CommandTooLate):
        await node.send("a", Deposit(5), command_id="paid", since=since, attempt=2)
    assert (await node.send("a", Deposit(1))).version == 1
