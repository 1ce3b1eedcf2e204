"""Consistency tokens of commands: they name what was committed, in the journal and in the state topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.engine.conftest import EngineNode, EngineSetting
from tests.engine.models import Deposit, Deposited, Query, Withdraw, bank_engine, counter_engine
from tests.engine.node_process import EnginePlace

from headrace.app import connect
from headrace.cluster import Committed
from headrace.engine import AggregateRecord, CommandRequest, Engine, Rejected
from headrace.engine.records import NOTHING_FORGOTTEN
from headrace.errors import BadToken, StateDiskFull, TimedOut, TokenAhead, TokenOfOtherTopic
from headrace.model import ConsistencyToken, NewRecord, TokenPlace, combine_tokens
from headrace.projection import Projection


async def offsets_of(node: EngineNode, aggregate: str, command: Any, **options: Any) -> dict[str, int]:
    """Send a command and return the offsets that the token of its answer names, by topic."""
    kind, data = node.engine.commands.encode(command)
    request = CommandRequest(aggregate=aggregate, kind=kind, data=data, **options)
    answer = await node.partition.submit(request, deadline_s=asyncio.get_running_loop().time() + 20)
    return {place.topic: place.offset for place in ConsistencyToken.parse(answer.token).places}


async def last_offsets(setting: EngineSetting, engine: Engine[Any]) -> dict[str, int]:
    """Return the offsets of the last records that the engine wrote."""
    topics = [engine.state_topic, *([engine.journal_topic] if engine.journal_topic else [])]
    return {topic: (await setting.records(topic))[-1].offset for topic in topics}


@pytest.mark.parametrize("loses", ["", "commit", "answer"])
async def test_the_token_of_a_command_names_its_records(setting: EngineSetting, loses: str) -> None:
    """Also if the answer to the commit was lost, and the log was read to find out what became of it."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    setting.unsure.loses = loses
    named, written = await offsets_of(node, "a", Deposit(2)), await last_offsets(setting, bank)
    assert named.keys() == written.keys()
    assert all(named[topic] >= offset for topic, offset in written.items())


async def test_answers_without_a_commit_and_those_of_the_next_owner_name_all_that_was_committed(
    setting: EngineSetting,
) -> None:
    """A rejection, a query and a repeated command rest on what was committed before, by whichever owner."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(1), command_id="x")
    written = await last_offsets(setting, bank)
    for command, options in ((Withdraw(5), {}), (Query(), {}), (Deposit(1), {"command_id": "x"})):
        named = await offsets_of(node, "a", command, **options)
        assert all(named[topic] >= offset for topic, offset in written.items())
    await node.stop()
    setting.nodes.clear()
    successor = await setting.owner(bank, "n2")
    named = await offsets_of(successor, "a", Query())
    assert all(named[topic] >= offset for topic, offset in written.items())
    read = await successor.partition.read("a", timeout_s=20)
    assert {place.topic for place in ConsistencyToken.parse(read.token).places} == written.keys()


async def test_an_engine_without_a_journal_names_its_state_topic(setting: EngineSetting) -> None:
    """There is nothing else to name."""
    counter = counter_engine(setting.name())
    node = await setting.owner(counter)
    named, written = await offsets_of(node, "a", Deposit(2)), await last_offsets(setting, counter)
    assert named == written


async def test_one_token_is_for_every_read(place: EnginePlace) -> None:
    """The reply to a command carries it; state, journal, queries by tag and projections show the command with it."""
    engine, tag = bank_engine(place.name), f"deposits-{place.name}"
    engine.tags(lambda event: [tag] if isinstance(event, Deposited) else [])
    seen: list[int] = []
    projection = Projection(f"seen-{place.name}", tag, lambda event: seen.append(event.seq_nr))
    async with connect(settings=place.settings("n1")) as hr, hr.node(engine):
        account = hr.engine(engine).aggregate("a")
        done = await account.send(Deposit(7))
        rejected = await account.send(Withdraw(100))
        assert isinstance(rejected, Rejected)
        read = await account.read(at_least=rejected.token)
        token = combine_tokens(done.token, rejected.token, read.token)
        assert (await account.state(at_least=token)) == read.state
        assert [each.seq_nr async for each in hr.journal(engine.name, read_only=True).read("a", at_least=token)] == [1]
        assert [each.id async for each in hr.events_by_tag(tag, at_least=token)] == ["a"]
        async with hr.project(projection) as running:
            await running.wait_for(token)
            assert seen == [1]
        state = next(each for each in ConsistencyToken.parse(token).places if each.topic == engine.state_topic)
        for wrong, error in (
            (state._replace(offset=state.offset + 1000), TokenAhead),
            (state._replace(topic_id="another"), TokenOfOtherTopic),
            (state._replace(partition=99), BadToken),
        ):
            with pytest.raises(error):
                await account.read(at_least=str(ConsistencyToken.of([wrong])))
        with pytest.raises(BadToken):
            await account.read(at_least="garbage")


async def test_a_read_shows_an_event_that_others_saw_before_the_owner_heard_of_its_commit(
    setting: EngineSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N28: while the answer to a commit is on its way the log has it; a read with the event's token waits for it."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    commit, written, answered = node.owner.commit, asyncio.Event(), asyncio.Event()

    async def held(records: Sequence[NewRecord]) -> Committed:
        committed = await commit(records)
        written.set()
        await answered.wait()
        return committed

    monkeypatch.setattr(node.owner, "commit", held)
    sending = asyncio.create_task(node.send("a", Deposit(2)))
    await written.wait()
    read = node.partition.read
    assert ((await read("a", timeout_s=20)).record or AggregateRecord.new(NOTHING_FORGOTTEN)).version == 1
    for topic, offset in (await last_offsets(setting, bank)).items():
        topic_id = (await setting.log.admin.describe(topic)).topic_id
        token = str(ConsistencyToken.of([TokenPlace(topic, topic_id, 0, offset)]))
        with pytest.raises(TimedOut, match="waiting for a commit of engine"):
            await read("a", timeout_s=0.02, at_least=token)
    reading = asyncio.create_task(read("a", timeout_s=20, at_least=token))
    await asyncio.sleep(0)
    answered.set()
    assert ((await reading).record or AggregateRecord.new(NOTHING_FORGOTTEN)).version == 2
    await sending


async def test_a_read_after_a_reply_shows_the_command_also_if_it_could_not_be_applied_at_once(
    setting: EngineSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N11: what was acknowledged is in the log; until the copy has read it there, reads wait, and are never older."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    catch_up, go_on = node.partition._states.catch_up, asyncio.Event()

    def fails(*_: Any, **__: Any) -> None:
        raise StateDiskFull("/data", "no space left on device")

    async def later() -> None:
        await go_on.wait()
        await catch_up()

    with monkeypatch.context() as patch:
        patch.setattr(node.partition._replica, "apply_committed", fails)
        patch.setattr(node.partition._states, "catch_up", later)
        done = await node.send("a", Deposit(2))
        assert done.version == 2
        with pytest.raises(TimedOut):
            await node.partition.read("a", timeout_s=0.02)
        reading = asyncio.create_task(node.partition.read("a", timeout_s=20))
        go_on.set()
        assert ((await reading).record or AggregateRecord.new(NOTHING_FORGOTTEN)).version == 2
