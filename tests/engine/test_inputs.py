"""Commands from topics: each exactly once, whatever becomes of commits and owners; rejected ones move on too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as some
from sqlalchemy import create_engine
from tests.engine.conftest import EngineNode, EngineSetting, embedded_only
from tests.engine.models import Account, Deposit, bank_engine

from headrace.cluster import batch_of
from headrace.engine import Engine, EngineLimits, Failed, Reject, background, metrics
from headrace.engine.places import InputPlace, InputPlaces, InputSpan, decode_place, encode_place, input_key
from headrace.engine.pump import TopicPump, WrittenRecords
from headrace.errors import (
    BadArgument,
    CommandFailed,
    NotPartitionOwner,
    NotReadable,
    TransactionFailed,
    Unreachable,
    WrongEngineTopic,
)
from headrace.model import Cleanup, NewRecord, Record, TopicConfig, TopicPartition, partition_of
from headrace.outbox import JsonSerializer, Outbox, Relay, event_id_of, migrate
from headrace.state import JsonValues
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.crashes import SimulatedCrash, crash_at
from headrace.testing.engines import EngineHarness


class Hang(msgspec.Struct, frozen=True):
    """Wait for something that never comes."""


def command(topic: str, aggregate: str, value: Any, kind: str = "Deposit", **headers: str) -> NewRecord:
    """Return a record with a command, as any producer would write it."""
    named = {"headrace.command": kind, **{f"headrace.{name.replace('_', '-')}": text for name, text in headers.items()}}
    pairs = tuple((name, text.encode()) for name, text in named.items())
    return NewRecord(topic, aggregate.encode(), msgspec.json.encode(value), pairs)


def topic_bank(setting: EngineSetting, **options: Any) -> Engine[Account]:
    name = setting.name()
    return bank_engine(name, command_topic=f"{name}-commands", **options)


async def write(setting: EngineSetting, records: Sequence[NewRecord]) -> None:
    await setting.log.append(records)


async def until_read(node: EngineNode, count: int, topic: str | None = None) -> InputPlace:
    """Wait until all records of a topic are done, and return the place."""
    topic = topic or str(node.engine.command_topic)
    key = input_key(topic, 0)

    async def is_read() -> bool:
        place = decode_place(node.partition._replica.reserved(key))
        return place is not None and place.next_offset == count

    await eventually(is_read, every_s=0.005, what="the end of the topic")
    place = decode_place(node.partition._replica.reserved(key))
    assert place is not None
    return place


async def values_of(setting: EngineSetting, topic: str) -> list[Any]:
    return [msgspec.json.decode(each.value or b"null") for each in await setting.records(topic)]


async def test_commands_of_a_topic_are_done_once_with_their_place_in_the_same_batch(setting: EngineSetting) -> None:
    """N39: a rejected one moves on too, replies go where they are asked for, all in one transaction."""
    answers = setting.name()
    await setting.log.admin.create(answers, partitions=1, config=TopicConfig())
    bank = topic_bank(setting, outputs=[answers])
    topic = str(bank.command_topic)
    node = await setting.owner(bank)
    await write(
        setting,
        [
            command(topic, "a", {"amount": 5}, reply_to=answers, command_id="x", correlation_id="c-1"),
            command(topic, "a", {"amount": 50}, "Withdraw", reply_to=answers),
            command(topic, "b", {"amount": 7}),
            command(topic, "a", {"amount": 5}, reply_to=answers, command_id="x"),
        ],
    )
    place = await until_read(node, 4)
    assert (place.done, place.attempts) == ((), 0)
    assert await setting.payloads(bank) == [{"amount": 5}, {"amount": 7}]
    replies = await setting.records(answers)
    done, rejected, again = (msgspec.json.decode(each.value or b"") for each in replies)
    assert (done["outcome"], done["version"], done["events"]) == (
        "success",
        1,
        [{"type": "Deposited", "data": {"amount": 5}}],
    )
    assert (rejected["outcome"], rejected["code"], rejected["details"]) == ("rejected", "overdrawn", {"balance": 5})
    assert again == done
    headers = {name: value for name, value in replies[0].headers if name != "headrace.batch"}
    assert headers == {
        "headrace.in-reply-to": f"{topic}/0/0".encode(),
        "headrace.command-id": b"x",
        "headrace.correlation-id": b"c-1",
    }
    event = (await setting.records(bank.name))[0]
    assert batch_of(event) == batch_of(replies[0])


@pytest.mark.parametrize("loses", ["commit", "answer", "owner"])
async def test_a_lost_commit_answer_or_owner_neither_loses_nor_repeats_commands(
    setting: EngineSetting, loses: str
) -> None:
    """N39: exactly once without any ids, because the place is in the transaction of the effects."""
    bank = topic_bank(setting)
    node = await setting.owner(bank)
    await until_read(node, 0)
    setting.unsure.loses = "" if loses == "owner" else loses
    await write(setting, [command(str(bank.command_topic), f"a{n % 3}", {"amount": 1}) for n in range(20)])
    if loses == "owner":
        await until_some(setting, bank)
        node = await setting.fails_over(node, "n2")
    await write(setting, [command(str(bank.command_topic), "b", {"amount": 1}) for _ in range(5)])
    await until_read(node, 25)
    assert not setting.unsure.loses
    amounts = {aggregate: await node.record(aggregate) for aggregate in ("a0", "a1", "a2", "b")}
    assert [record.version for record in amounts.values() if record is not None] == [7, 7, 6, 5]
    assert await setting.payloads(bank) == [{"amount": 1}] * 25


async def until_some(setting: EngineSetting, bank: Engine[Any]) -> None:
    async def is_some() -> bool:
        return bool(await setting.records(bank.name))

    await eventually(is_some, every_s=0.001, what="the first commands")


@pytest.mark.parametrize("where", ["engine.before-commit", "engine.after-commit"])
async def test_an_owner_that_crashes_around_a_commit_leaves_each_command_once(
    setting: EngineSetting, where: str
) -> None:
    """N39: a crash before the commit, and one after it, when nothing was applied: the next owner goes on there."""
    bank = topic_bank(setting)
    node = await setting.owner(bank)
    await until_read(node, 0)
    with crash_at(where):
        await write(setting, [command(str(bank.command_topic), "a", {"amount": n}) for n in range(3)])
        running = node.partition._running
        assert running is not None
        with pytest.raises(SimulatedCrash):
            await asyncio.wait_for(asyncio.shield(running), 20)
    node = await setting.fails_over(node, "n2")
    await until_read(node, 3)
    assert await setting.payloads(bank) == [{"amount": n} for n in range(3)]


def deposits_that_wait(bank: Engine[int]) -> asyncio.Event:
    """Declare deposits, and return what one of 0 waits for."""
    may_go = asyncio.Event()

    @bank.command
    async def deposit(count: int | None, command: Deposit) -> Deposit:
        if command.amount == 0:
            await may_go.wait()
        return command

    @bank.event
    def deposited(count: int | None, event: Deposit) -> int:
        return (count or 0) + event.amount

    return may_go


async def test_a_slow_command_holds_up_neither_others_nor_the_place(setting: EngineSetting) -> None:
    """N39: what is done behind it is listed in the place, and is not done again by the next owner."""
    topic = setting.name()
    bank: Engine[int] = Engine(f"{topic}-bank", state=int, partitions=1, command_topic=topic)
    may_go = deposits_that_wait(bank)
    node = await setting.owner(bank)
    await until_read(node, 0)
    await write(setting, [command(topic, "a", {"amount": 0}), command(topic, "b", {"amount": 1})])

    async def is_listed() -> bool:
        place = decode_place(node.partition._replica.reserved(input_key(topic, 0)))
        return place is not None and place.done == ((1, 2),)

    await eventually(is_listed, every_s=0.005, what="the second command")
    node = await setting.fails_over(node, "n2")
    may_go.set()
    await until_read(node, 2)
    assert await setting.payloads(bank) == [{"amount": 1}, {"amount": 0}]


async def test_records_that_are_no_commands_are_dead_letters(setting: EngineSetting) -> None:
    """N39: with the reason and the place; so is a command that fails, and one that is another command's id."""
    bank = topic_bank(setting)
    topic = str(bank.command_topic)
    node = await setting.owner(bank)
    await write(
        setting,
        [
            NewRecord(topic, b"a", b"{}"),
            NewRecord(topic, None, b"{}", (("headrace.command", b"Deposit"),)),
            NewRecord(topic, b"\xff", b"{}", (("headrace.command", b"Deposit"),)),
            NewRecord(topic, b"a", b"no JSON", (("headrace.command", b"Deposit"),)),
            command(topic, "a", {}, "Explode"),
            command(topic, "a", {"amount": 1}, reply_to="elsewhere"),
            command(topic, "a", {"where": "handler"}, "Fail"),
            command(topic, "a", {"amount": 1}, command_id="x"),
            command(topic, "a", {"amount": 2}, command_id="x"),
            command(topic, "a", {"amount": 3}),
        ],
    )
    await until_read(node, 10)
    assert await setting.payloads(bank) == [{"amount": 1}, {"amount": 3}]
    letters = [dict(each.headers) for each in await setting.records(f"{topic}.dead-letters")]
    reasons = {int((each["headrace.place"] or b"").split(b"/")[2]): each["headrace.error"] or b"" for each in letters}
    assert sorted(reasons) == [0, 1, 2, 3, 4, 5, 6, 8]
    for offset, words in {
        0: b"headrace.command",
        1: b"key",
        2: b"UTF-8",
        4: b"no handler for Explode",
        5: b"elsewhere",
        6: b"the handler is broken",
        8: b"was used for another command",
    }.items():
        assert words in reasons[offset]


@embedded_only
async def test_a_command_whose_handler_never_returns_fails(setting: EngineSetting) -> None:
    """N8, N37: it is ended after `handler_s`; its aggregate, its partition's input and its caller go on."""
    bank = topic_bank(setting, limits=EngineLimits(handler_s=0.05))

    @bank.command
    async def hang(account: Account | None, command: Hang) -> None:
        await asyncio.Event().wait()

    topic = str(bank.command_topic)
    node = await setting.owner(bank)
    await write(setting, [command(topic, "a", {}, "Hang"), command(topic, "a", {"amount": 1})])
    await until_read(node, 2)
    assert await setting.payloads(bank) == [{"amount": 1}]
    (letter,) = await setting.records(f"{topic}.dead-letters")
    assert b"it did not return within 0.05 s" in (dict(letter.headers)["headrace.error"] or b"")
    failed = await node.send("a", Hang())
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, CommandFailed)
    assert (await node.send("a", Deposit(2))).version == 2


@embedded_only
async def test_a_command_that_ends_its_process_is_a_dead_letter_after_three_deaths(setting: EngineSetting) -> None:
    """N37, N39: owners that get no further are counted in the log; the record is tried alone, then set aside."""
    topic = setting.name()
    bank: Engine[int] = Engine(f"{topic}-bank", state=int, partitions=1, command_topic=topic)
    deaths = asyncio.Event()

    @bank.command
    async def deposit(count: int | None, command: Deposit) -> Deposit:
        if command.amount == 0:
            deaths.set()
            await asyncio.Event().wait()
        return command

    @bank.event
    def deposited(count: int | None, event: Deposit) -> int:
        return (count or 0) + event.amount

    node = await setting.owner(bank)
    await node.stop()
    setting.nodes.clear()
    await write(setting, [command(topic, "a", {"amount": 0}), command(topic, "a", {"amount": 1})])
    node = await setting.owner(bank, "n1")
    for death in range(3):
        await asyncio.wait_for(deaths.wait(), 20)
        deaths.clear()
        node = await setting.fails_over(node, f"n{death + 2}")
    await until_read(node, 2)
    assert await setting.payloads(bank) == [{"amount": 1}]
    (letter,) = await setting.records(f"{topic}.dead-letters")
    assert b"ended 3 times" in (dict(letter.headers)["headrace.error"] or b"")


async def test_a_topic_of_others_is_read_whatever_its_keys_and_partitions_are() -> None:
    """N39: a command for another partition is taken there through the command topic, once."""
    bank = bank_engine(partitions=3)

    def decode(record: Record) -> tuple[str, Deposit] | None:
        who, amount = (record.value or b"").decode().split(":")
        return None if who == "nobody" else (who, Deposit(int(amount)))

    bank.commands_from("payments", decode=decode)
    names = [f"acc-{n}" for n in range(8)]
    async with EngineHarness(bank, topics={"payments": 5}) as harness:
        payments = [NewRecord("payments", None, f"{name}:{n}".encode()) for n in range(1, 4) for name in names]
        payments += [NewRecord("payments", b"k", b"nobody:1"), NewRecord("payments", b"k", b"garbage")]
        await harness.connection.log.append(payments)

        async def all_paid() -> bool:
            states = [await harness.aggregate(name).state() for name in names]
            return states == [Account(6)] * len(names)

        await eventually(all_paid, every_s=0.02, what="the payments")
        for name in names:
            assert len(await harness.events(name)) == 3
    with pytest.raises(BadArgument, match="takes commands from it already"):
        bank.commands_from("payments")


@embedded_only
async def test_a_message_of_the_outbox_is_a_command_with_the_message_id_as_command_id(
    setting: EngineSetting, tmp_path: Path
) -> None:
    """N39: it is done once, also if the relay sends it twice, because its id is remembered."""
    bank = topic_bank(setting)
    topic, url = str(bank.command_topic), f"sqlite:///{tmp_path / 'shop.db'}"
    node = await setting.owner(bank)
    migrate(url)
    database = create_engine(url)
    with database.begin() as transaction:
        producer = Outbox().producer(topic, serializer=JsonSerializer())
        producer.publish(transaction, {"amount": 10}, key="a", headers={"headrace.command": "Deposit"})
    database.dispose()
    relay = Relay(url, setting.log)
    await relay.start()
    try:
        await until_read(node, 1)
    finally:
        await relay.stop()
    (sent,) = await setting.records(topic)
    await write(setting, [NewRecord(topic, sent.key, sent.value, sent.headers)])
    await until_read(node, 2)
    record = await node.record("a")
    assert record is not None
    assert (record.version, [each.id for each in record.ids]) == (1, [event_id_of(sent.headers)])


async def test_an_input_that_begins_with_the_latest_record_remembers_where_that_was(setting: EngineSetting) -> None:
    """N39: what was there before the first owner is not read; what came while nobody owned the partition is."""
    news = setting.name()
    await setting.log.admin.create(news, partitions=1, config=TopicConfig())
    await write(setting, [command(news, "a", {"amount": 1})])
    bank = bank_engine(setting.name())
    bank.commands_from(news, start="latest")
    node = await setting.owner(bank)
    await until_read(node, 1, news)
    await node.stop()
    setting.nodes.clear()
    await write(setting, [command(news, "a", {"amount": 2})])
    node = await setting.owner(bank, "n2")
    await until_read(node, 2, news)
    assert await setting.payloads(bank) == [{"amount": 2}]


async def test_a_topic_that_was_made_again_is_read_from_its_start_and_lost_records_are_passed(
    setting: EngineSetting,
) -> None:
    """N39: an offset of the old topic says nothing about the new one; what retention removed does not stop the rest."""
    bank = bank_engine(setting.name())
    again = setting.name()
    bank.commands_from(again)
    await setting.log.admin.create(again, partitions=1, config=TopicConfig())
    await write(setting, [command(again, "a", {"amount": n}) for n in (1, 2)])
    node = await setting.owner(bank)
    await until_read(node, 2, again)
    await node.stop()
    setting.nodes.clear()
    await setting.log.admin.delete(again)
    await setting.log.admin.create(again, partitions=1, config=TopicConfig())
    await write(setting, [command(again, "a", {"amount": n}) for n in (3, 4, 5)])
    await setting.log.retention.truncate(TopicPartition(again, 0), before=1)
    node = await setting.owner(bank, "n2")
    await until_read(node, 3, again)
    assert await setting.payloads(bank) == [{"amount": n} for n in (1, 2, 4, 5)]


@embedded_only
@pytest.mark.parametrize("done", [(), ((4, 9),)], ids=["place", "done behind it"])
async def test_an_input_that_ends_before_its_place_is_not_read_until_it_is_made_again(
    setting: EngineSetting, caplog: pytest.LogCaptureFixture, done: tuple[tuple[int, int], ...]
) -> None:
    """N39: a topic was restored from an old copy; new commands at old offsets are neither skipped nor done twice."""
    bank = topic_bank(setting)
    topic = str(bank.command_topic)
    node = await setting.owner(bank)
    await write(setting, [command(topic, "a", {"amount": n}) for n in (1, 2)])
    stored = await until_read(node, 2)
    await node.stop()
    setting.nodes.clear()
    setting.is_spoiled = True
    ahead = msgspec.structs.replace(stored, next_offset=2 if done else 7, done=done)
    await write(setting, [NewRecord(bank.state_topic, input_key(topic, 0), encode_place(ahead), partition=0)])
    await write(setting, [command(topic, "a", {"amount": 3})])
    node = await setting.owner(bank, "n2")
    told = metrics.INPUTS.labels(topic, "retried")._value

    async def is_told() -> bool:
        return bool(told.get())

    await eventually(is_told, every_s=0.01, what="the error")
    last = 8 if done else 6
    assert f"offsets 3 to {last} of {topic}[0] were read and are gone from the log" in caplog.text
    assert await setting.payloads(bank) == [{"amount": 1}, {"amount": 2}]
    await node.stop()
    setting.nodes.clear()
    await setting.log.admin.delete(topic)
    await setting.log.admin.create(topic, partitions=1, config=TopicConfig())
    await write(setting, [command(topic, "a", {"amount": 4})])
    node = await setting.owner(bank, "n3")
    await until_read(node, 1)
    assert await setting.payloads(bank) == [{"amount": 1}, {"amount": 2}, {"amount": 4}]


async def test_an_owner_with_nothing_to_read_is_not_counted_among_those_that_failed(
    setting: EngineSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N37, N39: the offset of a transaction marker behind the last record is no record that waits."""
    begun: list[InputPlace] = []
    begin = TopicPump._begin

    async def noted(pump: TopicPump) -> InputPlace:
        begun.append(await begin(pump))
        return begun[-1]

    async def until_begun(times: int) -> None:
        async def is_begun() -> bool:
            return len(begun) == times

        await eventually(is_begun, every_s=0.005, what="an owner's first look at the topic")

    monkeypatch.setattr(TopicPump, "_begin", noted)
    bank = topic_bank(setting)
    topic = str(bank.command_topic)
    node = await setting.owner(bank)
    await until_begun(1)
    producer = await setting.log.transactional("others")
    await producer.begin()
    await producer.append([command(topic, "a", {"amount": 1})])
    await producer.commit()
    await producer.close()
    read = await until_read(node, 1)
    assert (await setting.log.bounds(TopicPartition(topic, 0))).end == 2
    node = await setting.fails_over(node, "n2")
    await until_begun(2)
    await write(setting, [command(topic, "a", {"amount": 2})])
    assert await until_read(node, 3) == InputPlace(1, read.topic_id, 3)
    places = [decode_place(each.value) for each in await reserved_records(setting, bank, input_key(topic, 0))]
    assert {each.attempts for each in places if each is not None} == {0}


async def reserved_records(setting: EngineSetting, bank: Engine[Any], key: bytes) -> list[Record]:
    at = TopicPartition(bank.state_topic, 0)
    batches = setting.log.read(at, 0, (await setting.log.bounds(at)).end, timeout_s=20)
    return [each async for batch in batches for each in batch.records if each.key == key]


def waiting_engine(setting: EngineSetting, topic: str) -> tuple[Engine[int], asyncio.Event]:
    """Return an engine that reads a topic, and what a deposit of 0 waits for."""
    bank: Engine[int] = Engine(setting.name(), state=int, partitions=1)
    bank.commands_from(topic)
    return bank, deposits_that_wait(bank)


async def until_done_behind(node: EngineNode, topic: str, count: int) -> None:
    """Wait until so many records behind one that is not done are."""

    async def is_listed() -> bool:
        place = decode_place(node.partition._replica.reserved(input_key(topic, 0)))
        return place is not None and len(place.done) == count

    await eventually(is_listed, every_s=0.005, what="the commands behind the slow one")


@embedded_only
async def test_a_place_goes_on_when_records_before_those_that_are_done_were_compacted(setting: EngineSetting) -> None:
    """N39: what is done stays so, and the place is not held up by a record that is gone."""
    await setting.log.admin.create("compacted", partitions=1, config=TopicConfig(cleanup=Cleanup.COMPACT))
    bank, _ = waiting_engine(setting, "compacted")
    node = await setting.owner(bank)
    await write(setting, [command("compacted", name, {"amount": n}) for n, name in enumerate("abc")])
    await until_done_behind(node, "compacted", 2)
    await write(setting, [command("compacted", "a", {"amount": 5})])
    await node.stop()
    setting.nodes.clear()
    await setting.log.retention.enforce()
    assert [each.offset for each in await setting.records("compacted")] == [1, 2, 3]
    node = await setting.owner(bank, "n2")
    assert (await until_read(node, 4, "compacted")).done == ()
    assert await setting.payloads(bank) == [{"amount": n} for n in (1, 2, 5)]


async def test_what_is_done_behind_removed_records_is_not_done_again(setting: EngineSetting) -> None:
    """N39: retention that passes the place of an owner that died forgets nothing of what it had done further on."""
    await setting.log.admin.create("removed", partitions=1, config=TopicConfig())
    bank, may_go = waiting_engine(setting, "removed")
    node = await setting.owner(bank)
    await write(setting, [command("removed", name, {"amount": n}) for name, n in (("a", 0), ("a", 0), ("b", 1))])
    await until_done_behind(node, "removed", 1)
    await node.stop()
    setting.nodes.clear()
    await setting.log.retention.truncate(TopicPartition("removed", 0), before=1)
    may_go.set()
    node = await setting.owner(bank, "n2")
    await until_read(node, 3, "removed")
    assert await setting.payloads(bank) == [{"amount": 1}, {"amount": 0}]


class SometimesAway(JsonValues[int]):
    """States whose codec is away for a moment, as a schema registry may be."""

    is_away = False

    async def prepare(self, data: bytes) -> None:
        if self.is_away:
            self.is_away = False
            raise Unreachable("registry", "it is restarted")


async def test_commands_of_an_aggregate_keep_their_order_when_one_of_them_has_to_be_tried_again(
    setting: EngineSetting,
) -> None:
    """N39: those behind it are read again with it, and not handled before it."""
    codec = SometimesAway(int)
    bank: Engine[int] = Engine(setting.name(), state=codec, partitions=1, command_topic="ordered")

    @bank.command
    def deposit(count: int | None, command: Deposit) -> Deposit:
        return command

    @bank.event
    def deposited(count: int | None, event: Deposit) -> int:
        return event.amount

    node = await setting.owner(bank)
    await write(setting, [command("ordered", "a", {"amount": 0})])
    await until_read(node, 1, "ordered")
    assert node.partition.live.passivate(before_s=float("inf")) == 1
    codec.is_away = True
    await write(setting, [command("ordered", "a", {"amount": n}) for n in range(1, 6)])
    await until_read(node, 6, "ordered")
    assert await setting.payloads(bank) == [{"amount": n} for n in range(6)]


async def test_commands_that_are_read_again_while_their_batch_is_unsettled_are_not_taken_for_done(
    setting: EngineSetting,
) -> None:
    """N39: the reading begins again while they are in a commit; that is lost, and they are done all the same."""
    await setting.log.admin.create("unsettled", partitions=1, config=TopicConfig())
    bank = bank_engine(setting.name())
    seen: list[int] = []

    def decode(record: Record) -> tuple[str, Deposit]:
        seen.append(record.offset)
        if seen.count(3) == 1 and record.offset == 3:
            raise ValueError("not at once")
        return f"a{record.offset}", Deposit(record.offset)

    bank.commands_from("unsettled", decode=decode)
    node = await setting.owner(bank)
    await until_read(node, 0, "unsettled")
    commit, may_fail = node.owner.commit, asyncio.Event()

    async def loses(records: Sequence[NewRecord]) -> Any:
        node.owner.commit = commit  # type: ignore[method-assign]
        await may_fail.wait()
        raise TransactionFailed("id", "no answer", outcome_known=False)

    node.owner.commit = loses  # type: ignore[method-assign]
    await write(setting, [NewRecord("unsettled", None, b"") for _ in range(5)])

    async def is_read_again() -> bool:
        return 4 in seen

    await eventually(is_read_again, every_s=0.005, what="the second reading")
    may_fail.set()
    await until_read(node, 5, "unsettled")
    assert sorted(each["amount"] for each in await setting.payloads(bank)) == list(range(5))


async def test_work_that_comes_when_the_partition_is_lost_is_not_done_later(setting: EngineSetting) -> None:
    """N39: a place that an earlier owner has read does not come back when its node owns the partition again."""
    bank = topic_bank(setting)
    key = input_key(str(bank.command_topic), 0)
    node = await setting.owner(bank)
    await write(setting, [command(str(bank.command_topic), "a", {"amount": 1})])
    place = await until_read(node, 1)
    await node.partition.lost()
    work = WrittenRecords(node.partition._queue._places, InputSpan(key, place.topic_id, 0, 1))
    late = node.partition._submit_work(key.decode(), work, False)
    assert isinstance(late.done.exception(), NotPartitionOwner)


class Panic(BaseException):
    """What extensions in Rust raise when they panic is no Exception."""


@embedded_only
@pytest.mark.parametrize("error", [ValueError("no amount: \udc80"), Panic("no amount: \udc80")], ids=["error", "panic"])
@pytest.mark.parametrize("where", ["decode", "handler"])
async def test_an_error_whose_text_can_not_be_written_holds_up_nothing(
    setting: EngineSetting, where: str, error: BaseException
) -> None:
    """N8, N39: a reason with characters that UTF-8 can't carry is written with escapes, as dead letter and as reply."""
    for topic in ("texts", "answers"):
        await setting.log.admin.create(topic, partitions=1, config=TopicConfig())
    bank: Engine[int] = Engine(setting.name(), state=int, partitions=1, outputs=["answers"])

    @bank.command
    def deposit(count: int | None, command: Deposit) -> Deposit:
        if not command.amount:
            raise error
        return command

    @bank.event
    def deposited(count: int | None, event: Deposit) -> int:
        return (count or 0) + event.amount

    def decode(record: Record) -> tuple[str, Deposit]:
        if where == "decode" and record.offset == 0:
            raise error
        return "a", Deposit(record.offset)

    bank.commands_from("texts", decode=decode)
    node = await setting.owner(bank)
    asked = (("headrace.reply-to", b"answers"), ("headrace.command-id", b"x"))
    await write(setting, [NewRecord("texts", None, b"", asked), NewRecord("texts", None, b"")])
    await until_read(node, 2, "texts")
    assert await setting.payloads(bank) == [{"amount": 1}]
    (letter,) = await setting.records("texts.dead-letters")
    assert b"no amount: \\udc80" in (dict(letter.headers)["headrace.error"] or b"")
    assert len(await setting.records("answers")) == (where == "handler")


async def test_a_rejection_that_is_too_large_for_the_reply_topic_is_told_without_details(
    setting: EngineSetting,
) -> None:
    """N36, N39: whoever waits for the reply hears of it, and the command is no dead letter."""
    wordy, short = setting.name(), setting.name()
    await setting.log.admin.create(short, partitions=1, config=TopicConfig(max_record_bytes=10_000))
    bank: Engine[int] = Engine(setting.name(), state=int, partitions=1, command_topic=wordy, outputs=[short])

    @bank.command
    def deposit(count: int | None, command: Deposit) -> Reject:
        return Reject("no", "not now", {"why": "x" * command.amount})

    node = await setting.owner(bank)
    await write(setting, [command(wordy, "a", {"amount": n}, reply_to=short) for n in (20_000, 1)])
    await until_read(node, 2, wordy)
    told = await values_of(setting, short)
    assert [(each["code"], each["message"], each["details"]) for each in told] == [
        ("no", "not now", {}),
        ("no", "not now", {"why": "x"}),
    ]
    assert await setting.records(f"{wordy}.dead-letters") == []


async def test_partitions_that_a_topic_gets_later_are_read_from_their_start(
    setting: EngineSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N39: also by an input that begins with the latest record, without a new owner."""
    monkeypatch.setattr(background, "_LOOK_FOR_PARTITIONS_S", 0.05)
    await setting.log.admin.create("growing", partitions=1, config=TopicConfig())
    bank = bank_engine(setting.name())
    bank.commands_from("growing", start="latest")
    node = await setting.owner(bank)
    await until_read(node, 0, "growing")
    await setting.log.admin.add_partitions("growing", total=2)
    await write(setting, [msgspec.structs.replace(command("growing", "a", {"amount": 1}), partition=1)])

    async def is_done() -> bool:
        return await setting.payloads(bank) == [{"amount": 1}]

    await eventually(is_done, every_s=0.01, what="the command in the new partition")


async def test_a_command_that_goes_on_to_its_partition_keeps_its_trace() -> None:
    """N26, N39: what another program began is one trace, whichever partition the command is read from."""
    bank = bank_engine(partitions=2)
    bank.commands_from("payments")
    other = next(name for name in "abcdef" if partition_of(name.encode(), 2) == 1)
    trace = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    async with EngineHarness(bank, topics={"payments": 1}) as harness:
        sent = command("payments", other, {"amount": 1})
        await harness.connection.log.append([msgspec.structs.replace(sent, headers=(*sent.headers, trace))])

        async def is_paid() -> bool:
            return await harness.aggregate(other).state() == Account(1)

        await eventually(is_paid, every_s=0.01, what="the payment")
        at = TopicPartition(str(bank.command_topic), 1)
        end = (await harness.connection.log.bounds(at)).end
        moved = [each async for batch in harness.connection.log.read(at, 0, end) for each in batch.records]
        assert [trace in each.headers for each in moved] == [True]


async def test_a_command_topic_has_as_many_partitions_as_its_engine(setting: EngineSetting) -> None:
    """N39: one with another number is refused, with the way to read it all the same."""
    orders = setting.name()
    await setting.log.admin.create(orders, partitions=2, config=TopicConfig())
    with pytest.raises(WrongEngineTopic, match="commands_from"):
        await setting.node(bank_engine(setting.name(), command_topic=orders))
    setting.nodes.clear()


@for_all(some.lists(some.integers(0, 7), max_size=20), some.sampled_from([1, 2, 5]))
def test_a_place_is_the_same_whatever_the_order_in_which_records_are_done(order: list[int], step: int) -> None:
    """N39: a record counts as done from its first mention on, and the next offset never passes one that is not."""
    spans = [InputSpan(b"k", "t", 10 + n * step, 10 + (n + 1) * step) for n in range(8)]
    places = InputPlaces({}.get)
    places.put(b"k", InputPlace.begin("t", 10))
    for n in order:
        if not places.is_done(spans[n]):
            places.finish(spans[n])
    place = places.get(b"k")
    assert place is not None
    assert [places.is_done(span) for span in spans] == [n in order for n in range(8)]
    first_open = next((n for n in range(8) if n not in order), 8)
    assert place.next_offset == spans[first_open].first if first_open < 8 else spans[-1].end
    assert not place.is_done(spans[0]._replace(topic_id="another"))
    before = place
    places.finish(spans[0]._replace(topic_id="another"))
    assert places.get(b"k") == before
    with pytest.raises(NotReadable):
        decode_place(b"nonsense")
