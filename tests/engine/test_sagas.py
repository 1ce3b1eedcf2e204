"""Sagas: commands for the events of an engine, each exactly once, whatever becomes of commits, owners and functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import EngineNode, EngineSetting, embedded_only
from tests.engine.models import Close, Deposit, Deposited, Note, Noted, Withdraw, Withdrawn, bank_engine, counter_engine
from tests.suites.journal_setting import replicate

from headrace.config import EmbeddedStoreSettings, StoreSettings
from headrace.engine import Engine, EngineLimits, SagaContext, metrics, saga
from headrace.engine.places import InputPlaces, decode_place, saga_key
from headrace.engine.sagas import SagaSource
from headrace.errors import BadArgument, ContextEnded, RecordsLost, UnknownCommand, UnknownTopic
from headrace.journal import removed_records
from headrace.model import StoredEvent, TopicPartition
from headrace.store import Store, open_store
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.crashes import SimulatedCrash, crash_at


def mirror_of(setting: EngineSetting) -> tuple[Engine[Any], Engine[Any]]:
    """Return a bank, and another one that a saga pays what the first one is paid."""
    name = setting.name()
    bank, mirror = bank_engine(name), bank_engine(f"{name}-mirror", command_topic=f"{name}-mirror-commands")

    @saga(of=bank)
    async def mirrored(event: Deposited, context: SagaContext) -> None:
        await asyncio.sleep(0)
        context.send(mirror, f"to-{context.aggregate}", Deposit(event.amount))

    return bank, mirror


async def until_through(node: EngineNode, name: str = "mirrored") -> None:
    """Wait until a saga has seen all events."""
    end = (await node.log.bounds(node.partition.changelogs[0]._replace(topic=node.engine.journal_topic))).end

    async def is_through() -> bool:
        place = decode_place(node.partition._replica.reserved(saga_key(name)))
        records = [each async for each in _events(node, end)]
        return place is not None and (not records or place.next_offset > records[-1].offset)

    await eventually(is_through, every_s=0.01, what="the end of the journal")


async def _events(node: EngineNode, end: int) -> Any:
    at = node.partition.changelogs[0]._replace(topic=node.engine.journal_topic)
    async for batch in node.log.read(at, (await node.log.bounds(at)).start, end):
        for record in batch.records:
            yield record


async def sent_of(setting: EngineSetting, mirror: Engine[Any]) -> list[tuple[str, Any]]:
    records = await setting.records(str(mirror.command_topic))
    return [((each.key or b"").decode(), msgspec.json.decode(each.value or b"")) for each in records]


async def test_each_event_leads_to_its_command_once_with_an_id_made_of_the_event(setting: EngineSetting) -> None:
    """N39: only events of the annotation count; the commands lie in the command topic of their engine."""
    bank, mirror = mirror_of(setting)
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    await node.send("a", Withdraw(1))
    await node.send("b", Deposit(2))
    await until_through(node)
    assert await sent_of(setting, mirror) == [("to-a", {"amount": 1}), ("to-b", {"amount": 2})]
    ids = [
        dict(each.headers)["headrace.command-id"] or b"" for each in await setting.records(str(mirror.command_topic))
    ]
    assert [each.startswith(b"mirrored/") and each.endswith(b"/1/1") for each in ids] == [True, True]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("where", ["engine.before-commit", "engine.after-commit"])
async def test_an_owner_that_crashes_around_the_commit_of_a_saga_sends_each_command_once(
    setting: EngineSetting, where: str
) -> None:
    """N39: the commands and the saga's place are one transaction, at each crash point of it."""
    bank, mirror = mirror_of(setting)
    node = await setting.owner(bank)
    await until_begun(node)
    with crash_at(where, nth=2):  # the first commit is the command's own
        await node.send("a", Deposit(1))
        running = node.partition._running
        assert running is not None
        with pytest.raises(SimulatedCrash):
            await asyncio.wait_for(asyncio.shield(running), 20)
    node = await setting.fails_over(node, "n2")
    await node.send("a", Deposit(2))
    await until_through(node)
    assert await sent_of(setting, mirror) == [("to-a", {"amount": 1}), ("to-a", {"amount": 2})]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """The store beside the log."""
    settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
    opened = await open_store(f"embedded:{tmp_path / 'store'}", settings=settings)
    yield opened
    await opened.close()


async def removed_below(setting: EngineSetting, engine: Engine[Any], before: int) -> None:
    """Remove records from the journal's log, as retention does."""
    setting.is_spoiled = True  # the audit's own store is empty
    await setting.log.retention.truncate(TopicPartition(str(engine.journal_topic), 0), before=before)


@embedded_only
@pytest.mark.parametrize("at_once", [2, 10_000])
async def test_a_saga_that_comes_late_gets_the_events_of_the_store_and_of_the_log(
    setting: EngineSetting, store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """N39: a new saga, and one that fell behind the journal's retention, miss nothing and repeat nothing."""
    monkeypatch.setattr(removed_records, "__kwdefaults__", {"limit": at_once})
    setting.store = store
    bank, mirror = mirror_of(setting)
    silent = bank_engine(bank.name)
    node = await setting.owner(silent)
    for n in range(1, 6):
        await node.send("ab"[n % 2], Deposit(n))
    await replicate(setting.log, store, bank.name)
    await removed_below(setting, bank, 4)
    await node.send("a", Deposit(6))
    await node.stop()
    setting.nodes.clear()
    node = await setting.owner(bank, "n2")
    await until_through(node)
    assert [data["amount"] for _, data in await sent_of(setting, mirror)] == [1, 2, 3, 4, 5, 6]
    await node.stop()
    setting.nodes.clear()
    node = await setting.owner(silent, "n3")
    for n in (7, 8):
        await node.send("a", Deposit(n))
    await replicate(setting.log, store, bank.name)
    end = (await setting.log.bounds(TopicPartition(bank.name, 0))).high_watermark
    await removed_below(setting, bank, end)
    await node.stop()
    setting.nodes.clear()
    node = await setting.owner(bank, "n4")
    await node.send("b", Deposit(9))
    await until_through(node)
    assert [data["amount"] for _, data in await sent_of(setting, mirror)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    ids = {dict(each.headers)["headrace.command-id"] for each in await setting.records(str(mirror.command_topic))}
    assert len(ids) == 9


@embedded_only
async def test_a_saga_whose_events_are_in_neither_store_nor_log_stops_and_names_them(
    setting: EngineSetting, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """N39: it does not go on as if there had been nothing; the error has the offsets that are lost."""
    setting.store = store
    bank, mirror = mirror_of(setting)
    node = await setting.owner(bank_engine(bank.name))
    for n in range(1, 6):
        await node.send("a", Deposit(n))
    await replicate(setting.log, store, bank.name, up_to=1)
    await removed_below(setting, bank, 4)
    await node.stop()
    setting.nodes.clear()
    node = await setting.owner(bank, "n2")

    async def is_told() -> bool:
        return retried(bank.name) > 0

    await eventually(is_told, every_s=0.01, what="the error")
    source = SagaSource(
        bank.sagas["mirrored"], bank, InputPlaces({}.get), TopicPartition(bank.name, 0), lambda: store.reader
    )
    with pytest.raises(RecordsLost, match=r"offsets 2 to 3 of .* are gone from the log") as lost:
        await source.removed(0, 4)
    assert (lost.value.first, lost.value.last) == (2, 3)
    assert "offsets 2 to 3" in caplog.text
    with pytest.raises(UnknownTopic):
        await setting.log.admin.describe(str(mirror.command_topic))


@embedded_only
async def test_a_saga_reports_events_that_were_purged_before_it_read_them(setting: EngineSetting, store: Store) -> None:
    """N39: neither log nor store has them; they are counted as lost, and the rest goes on."""
    setting.store = store
    bank, mirror = mirror_of(setting)
    node = await setting.owner(bank_engine(bank.name, none_states="purge"))
    await node.send("a", Deposit(1))
    await node.send("b", Deposit(2))
    await node.send("a", Close())
    await replicate(setting.log, store, bank.name)
    await removed_below(setting, bank, (await setting.log.bounds(TopicPartition(bank.name, 0))).high_watermark)
    await node.stop()
    setting.nodes.clear()
    node = await setting.owner(bank, "n2")
    await node.send("b", Deposit(3))
    await until_through(node)
    assert [data["amount"] for _, data in await sent_of(setting, mirror)] == [2, 3]
    assert metrics.INPUTS.labels(bank.name, "lost")._value.get() == 1


def retried(topic: str) -> float:
    return float(metrics.INPUTS.labels(topic, "retried")._value.get())


async def until_begun(node: EngineNode) -> None:
    async def is_begun() -> bool:
        return node.partition._replica.reserved(saga_key("mirrored")) is not None

    await eventually(is_begun, every_s=0.005, what="the saga's first place")


async def test_the_command_of_an_event_arrives_at_its_aggregate(setting: EngineSetting) -> None:
    """N39: another engine takes it from its topic and does it, and remembers the event's id."""
    bank, mirror = mirror_of(setting)
    node, other = await setting.owner(bank), await setting.owner(mirror, "n2")
    await node.send("a", Deposit(3))

    async def has_arrived() -> bool:
        return await other.record("to-a") is not None

    await eventually(has_arrived, every_s=0.01, what="the command")
    record = await other.record("to-a")
    assert record is not None
    assert (record.version, [each.id.startswith("mirrored/") for each in record.ids]) == (1, [True])


@embedded_only
async def test_a_saga_that_fails_is_tried_again_or_sets_the_event_aside(setting: EngineSetting) -> None:
    """N39: its partition of the journal waits for it; with dead letters it goes on after three attempts."""
    name = setting.name()
    bank = bank_engine(name, command_topic=f"{name}-commands")
    attempts: list[str] = []

    @saga(of=bank)
    def patient(event: Noted, context: SagaContext) -> None:
        attempts.append(f"patient {event.text}")
        if len(attempts) < 2:
            raise ValueError("not yet")
        context.send(bank, "patient", Deposit(1))

    @saga(of=bank, on_error="dead-letter")
    def hasty(event: Withdrawn | Deposited, context: SagaContext) -> None:
        if isinstance(event, Withdrawn):
            attempts.append("hasty")
            raise KeyError("never")
        if context.aggregate == "a":
            context.send(bank, "hasty", Deposit(event.amount))

    node = await setting.owner(bank)
    await node.send("a", Note("n"))
    await node.send("a", Deposit(5))
    await node.send("a", Withdraw(2))
    await node.send("a", Deposit(6))

    async def all_arrived() -> bool:
        records = [await node.record("patient"), await node.record("hasty")]
        return [record.version for record in records if record is not None] == [1, 2]

    await eventually(all_arrived, every_s=0.01, what="the commands of both sagas")
    assert attempts.count("hasty") == 3
    assert attempts.count("patient n") == 2
    (letter,) = await setting.records(f"{name}.hasty.dead-letters")
    assert b"never" in (dict(letter.headers)["headrace.error"] or b"")


@embedded_only
async def test_a_saga_that_never_returns_fails(setting: EngineSetting) -> None:
    """N39: its function is ended after `handler_s`, and the event tried again or set aside."""
    name = setting.name()
    bank = bank_engine(name, command_topic=f"{name}-commands", limits=EngineLimits(handler_s=0.05))
    attempts: list[int] = []

    @saga(of=bank, on_error="dead-letter")
    async def hanging(event: Deposited, context: SagaContext) -> None:
        attempts.append(event.amount)
        if event.amount == 1:
            await asyncio.Event().wait()
        context.send(bank, "b", Withdraw(0))

    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    await node.send("a", Deposit(2))

    async def has_arrived() -> bool:
        return await node.record("b") is not None

    await eventually(has_arrived, every_s=0.01, what="the command of the second event")
    assert attempts == [1, 1, 1, 2]
    (letter,) = await setting.records(f"{name}.hanging.dead-letters")
    assert b"saga 'hanging' at event" in (dict(letter.headers)["headrace.error"] or b"")


async def test_a_saga_goes_on_when_something_that_it_awaits_is_cancelled(setting: EngineSetting) -> None:
    """N39: that fails like any other error, and is tried again."""
    name = setting.name()
    bank, mirror = bank_engine(name), bank_engine(f"{name}-mirror", command_topic=f"{name}-mirror-commands")
    attempts: list[int] = []

    @saga(of=bank)
    async def mirrored(event: Deposited, context: SagaContext) -> None:
        attempts.append(event.amount)
        if len(attempts) == 1:
            asking = asyncio.get_running_loop().create_future()
            asking.cancel()
            await asking
        context.send(mirror, "a", Deposit(event.amount))

    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    await until_through(node)
    assert (await sent_of(setting, mirror), attempts) == ([("a", {"amount": 1})], [1, 1])


def test_a_saga_that_can_not_be_is_refused_when_it_is_declared() -> None:
    """N39: without a journal, with a name twice, with other parameters, or to an engine without a command topic."""
    bank, counter = bank_engine("bank"), counter_engine("counter")

    def fine(event: Deposited, context: SagaContext) -> None:
        context.send(bank, "a", Deposit(1))

    saga(of=bank)(fine)
    with pytest.raises(BadArgument, match="has a saga of this name"):
        saga(of=bank)(fine)
    with pytest.raises(BadArgument, match="no journal"):
        saga(of=counter)(fine)
    with pytest.raises(BadArgument, match="an event and a SagaContext"):
        saga(of=bank)(lambda event: None)
    with pytest.raises(BadArgument, match="on_error"):
        saga(of=bank, name="other", on_error="ignore")(fine)  # type: ignore[arg-type]
    event = StoredEvent(1, None, (), partition=0, offset=0, timestamp_ms=0)
    context = SagaContext("s", "t", "a", event)
    with pytest.raises(UnknownCommand):
        context.send(bank, "a", Deposited(1))
    context.send(bank, "a", Deposit(1))
    with pytest.raises(BadArgument, match="command_topic"):
        context.records()


async def test_a_command_that_a_saga_sends_too_late_is_refused(setting: EngineSetting) -> None:
    """N39: a task that the function left running can't send: what it sent would be in no transaction."""
    name = setting.name()
    bank, mirror = bank_engine(name), bank_engine(f"{name}-mirror", command_topic=f"{name}-mirror-commands")
    late: list[asyncio.Task[None]] = []

    @saga(of=bank)
    async def hasty(event: Deposited, context: SagaContext) -> None:
        async def send() -> None:
            await asyncio.sleep(0.01)
            context.send(mirror, "a", Deposit(event.amount))

        late.append(asyncio.create_task(send()))

    node = await setting.owner(bank)
    await node.send("a", Deposit(1))

    async def has_run() -> bool:
        return bool(late)

    await eventually(has_run, every_s=0.005, what="the saga")
    with pytest.raises(ContextEnded, match=r"context\.send comes after the saga"):
        await late[0]


@embedded_only
async def test_a_saga_gets_old_events_as_upcasters_make_them(setting: EngineSetting) -> None:
    """One stored event that becomes several leads to a command for each, with ids of their own."""
    bank, mirror = mirror_of(setting)
    setting.is_spoiled = True  # the upcaster makes another state of the journal than the one that is stored
    before = await setting.owner(bank_engine(bank.name))
    await before.send("a", Note("old"))
    await before.stop()
    bank.upcast("Noted")(lambda data: [Deposited(1), Withdrawn(3), Deposited(2)])
    await until_through(await setting.owner(bank))
    assert await sent_of(setting, mirror) == [("to-a", {"amount": 1}), ("to-a", {"amount": 2})]
    records = await setting.records(str(mirror.command_topic))
    assert len({dict(each.headers)["headrace.command-id"] for each in records}) == 2
