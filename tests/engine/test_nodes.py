"""Engines on nodes of a cluster, as an application uses them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.engine.conftest import embedded_only
from tests.engine.models import Account, Close, Deposit, Deposited, Note, Withdraw, bank_engine, counter_engine
from tests.engine.node_process import EnginePlace
from tests.suites.journal_setting import replicate

from headrace.app import Headrace, connect
from headrace.engine import Engine, EngineLimits, Failed, Rejected, Success
from headrace.errors import BadArgument, Busy, ImpossibleTopicChange, TopicClaimed, UnknownCommand, WrongEngineTopic
from headrace.journal import change_terms, grow_topic
from headrace.keyspace import Keyspace, State, state
from headrace.model import Event, TopicPartition
from headrace.observe import render, traces
from headrace.pipeline.jobs.expiry import purge_expired_of
from headrace.testing.conformance.log_setting import eventually


@contextlib.asynccontextmanager
async def _node(place: EnginePlace, name: str, *engines: Engine[Any]) -> AsyncIterator[Headrace]:
    async with connect(settings=place.settings(name)) as hr, hr.node(*engines):
        yield hr


@pytest.fixture
async def bank(place: EnginePlace) -> AsyncIterator[tuple[Headrace, Engine[Account]]]:
    """A node that serves a bank."""
    engine = bank_engine(place.name)

    @engine.tags
    def tags(event: Any) -> list[str]:
        return [f"large-{engine.name}"] if isinstance(event, Deposited) and event.amount >= 100 else []

    async with _node(place, "n1", engine) as hr:
        yield hr, engine


async def test_a_command_is_handled_by_the_owner_whichever_node_it_arrives_at(place: EnginePlace) -> None:
    """N18, N34: the reply comes out where the command went in; a moved partition costs the caller no error."""
    bank = bank_engine(place.name)
    async with contextlib.AsyncExitStack() as leaving, _node(place, "n2") as caller:
        await leaving.enter_async_context(_node(place, "n1", bank_engine(place.name)))
        account = caller.engine(bank).aggregate("a")
        assert (await account.send(Deposit(1), command_id="x")).version == 1
        async with _node(place, "n3", bank_engine(place.name)) as standby:

            async def is_online() -> bool:
                assert standby._node is not None
                members = standby._node.view.members.values()
                return sum(each.is_online for member in members for each in member.holdings) == 2

            await eventually(is_online, every_s=0.01, what="the standby")
            sends = [asyncio.create_task(account.send(Deposit(1))) for _ in range(20)]
            await sends[5]
            await leaving.aclose()
            later = [asyncio.create_task(account.send(Deposit(1))) for _ in range(3)]
            assert [(await each).version for each in sends + later] == list(range(2, 25))
            again = await standby.engine(bank).aggregate("a").send(Deposit(1), command_id="x")
            assert (again.version, again.is_repeated) == (1, True)


@embedded_only
async def test_callers_of_a_full_partition_are_refused_at_once(place: EnginePlace) -> None:
    """N41: on the owner's node and on another one; they don't wait there for a place, of which there is a bound."""
    bank = Engine(place.name, state=Account, partitions=1, limits=EngineLimits(waiting=2))
    go_on = asyncio.Event()

    @bank.command
    async def deposit(account: Account | None, command: Deposit) -> Deposited:
        await go_on.wait()
        return Deposited(command.amount)

    @bank.event
    def deposited(account: Account | None, event: Deposited) -> Account:
        return Account((account.balance if account else 0) + event.amount)

    async with _node(place, "n1", bank) as owner, _node(place, "n2") as caller:
        waiting = [asyncio.create_task(owner.engine(bank).aggregate(each).send(Deposit(1))) for each in "ab"]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            for hr in (owner, caller):
                with pytest.raises(Busy, match="2 requests in flight") as busy:
                    await hr.engine(bank).aggregate("c").send(Deposit(1), command_id="x")
                assert busy.value.outcome_known
        go_on.set()
        assert [(await each).version for each in waiting] == [1, 1]


async def test_the_journal_of_an_engine_is_a_journal(bank: tuple[Headrace, Engine[Account]]) -> None:
    """N24: its aggregates are read with Journal, replicated, and found by tag, without another line of code."""
    hr, engine = bank
    account = hr.engine(engine).aggregate("acc-1")
    await account.send(Deposit(150), command_id="x")
    await account.send(Note("hello"))
    journal = hr.journal(engine.name, read_only=True)
    assert [(each.seq_nr, each.payload["type"]) async for each in journal.read("acc-1")] == [
        (1, "Deposited"),
        (2, "Noted"),
    ]
    assert await journal.pointer("acc-1") == 2
    tagged = [each async for each in hr.events_by_tag(f"large-{engine.name}")]
    assert [(each.id, each.seq_nr) for each in tagged] == [("acc-1", 1)]


async def test_an_account_is_opened_credited_and_not_overdrawn(bank: tuple[Headrace, Engine[Account]]) -> None:
    """N27: 1000 and 100 make 1100; what would overdraw it is rejected with a code, and changes nothing."""
    hr, engine = bank
    account = hr.engine(engine).aggregate("acc-1")
    opened, credited = await account.send(Deposit(1000), command_id="open"), await account.send(Deposit(100))
    overdrawn = await account.send(Withdraw(5000))
    assert (opened.version, credited.version) == (1, 2)
    assert isinstance(overdrawn, Rejected)
    assert overdrawn.code
    assert await account.state() == Account(1100)


async def test_nobody_else_writes_to_the_journal_of_an_engine(bank: tuple[Headrace, Engine[Account]]) -> None:
    """N38: appends, deletes, purges and growth are refused, naming the engine; marks of readers are not."""
    hr, engine = bank
    await hr.engine(engine).aggregate("acc-1").send(Deposit(1))
    journal = hr.journal(engine.name)
    for call in (
        journal.append("acc-1", [Event(2, {})]),
        journal.append("acc-1", [Event(2, {})], expected=1),
        journal.append("acc-1", [Event(2, {})], append_id="x"),
        journal.append_next("acc-1", [{}]),
        journal.delete("acc-1", to=1),
        journal.purge("acc-1"),
    ):
        with pytest.raises(TopicClaimed, match=f"engine '{engine.name}' is the only writer"):
            await call
    with pytest.raises(ImpossibleTopicChange, match=f"journal of engine '{engine.name}'"):
        await grow_topic(hr.log, hr.store.settings, engine.name, partitions=2, lease_s=0.0)
    assert await journal.mark("acc-1", "m") >= 0
    assert [each.seq_nr async for each in journal.read("acc-1")] == [1]
    assert (await hr.engine(engine).aggregate("acc-1").send(Deposit(1))).version == 2


@embedded_only
async def test_expired_journals_of_an_engine_are_left_alone(place: EnginePlace) -> None:
    """N38: the job that purges expired journals is refused, naming the engine."""
    async with connect(settings=place.settings("n1")) as hr:
        await hr.journal("t", partitions=1).append("a", [Event(1, {})], expire_after="1 ms")
        await replicate(hr.log, hr.store, "t")
        await change_terms(hr.store.settings, "t", lambda terms: msgspec.structs.replace(terms, engine="bank"))
        with pytest.raises(TopicClaimed, match="purge_expired is refused in topic 't': engine 'bank'"):
            await purge_expired_of(hr.log, hr.store, TopicPartition("t", 0), 10**14)


@embedded_only
async def test_topics_that_an_engine_can_not_use_are_refused(place: EnginePlace) -> None:
    """N38: a journal that others wrote, another engine's, or one with another number of partitions."""
    async with connect(settings=place.settings("n1")) as hr:
        await hr.journal("taken", partitions=1).append("a", [Event(1, {})])
        engines = [bank_engine("one", journal="taken"), bank_engine("two", journal="mine", partitions=2)]
        with pytest.raises(WrongEngineTopic, match="journals that others wrote"):
            await hr.node(engines[0]).__aenter__()
        async with hr.node(bank_engine("three", journal="mine")):
            pass
        with pytest.raises(WrongEngineTopic, match="it has 1 partitions, the engine is declared with 2"):
            await hr.node(engines[1]).__aenter__()
        with pytest.raises(WrongEngineTopic, match="journal of engine 'three'"):
            await hr.node(bank_engine("four", journal="mine")).__aenter__()
        with pytest.raises(BadArgument, match="commands go through a node"):
            hr.engine(engines[0])


async def test_results_and_errors_reach_the_caller_typed(bank: tuple[Headrace, Engine[Account]]) -> None:
    """N6, N7, N22, N26: a success and a rejection are values; a failure is raised, or returned with `outcome_known`."""
    hr, engine = bank
    account = hr.engine(engine).aggregate("acc-1")
    with pytest.raises(BadArgument, match="they are given in a list"):
        await account.apply_events(Deposited(5))
    applied = await account.apply_events([Deposited(5), Deposited(6)])
    assert (applied.state, applied.version, applied.events) == (Account(11), 2, (Deposited(5), Deposited(6)))
    done, rejected = await account.send(Deposit(1)), await account.send(Withdraw(100))
    assert isinstance(done, Success)
    assert isinstance(rejected, Rejected)
    assert rejected.details == {"balance": 12}
    failed = await account.try_send(Deposit(1), expected_version=1)
    assert isinstance(failed, Failed)
    assert failed.outcome_known
    assert "expects version 1, it is at 3" in str(failed.error)
    with pytest.raises(UnknownCommand, match="no handler for Deposited"):
        await account.send(Deposited(1))
    read = await account.read()
    assert (read.state, read.version) == (Account(12), 3)
    await account.send(Close())
    assert await account.state() is None
    metrics = render()
    for stage in ("route", "load", "handle", "serialize", "publish", "apply"):
        assert f'headrace_engine_stage_seconds_count{{engine="{engine.name}",stage="{stage}"}}' in metrics


async def test_a_command_is_traced_from_the_caller_to_the_journal(
    place: EnginePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N26: the spans of caller and owner, and the record in the journal, have one trace; a node's health is a tree."""
    exporter, engine = InMemorySpanExporter(), bank_engine(place.name)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "_tracer", provider.get_tracer("test"))
    async with _node(place, "n1", engine), _node(place, "n2") as caller:
        await caller.engine(bank_engine(place.name)).aggregate("a").send(Deposit(1))
        (event,) = [each async for each in caller.journal(engine.name, read_only=True).read("a")]
        assert caller._node is not None
        tree = caller._node.health
        assert (tree.is_up, [child.name for child in tree.children]) == (True, ["background", engine.name])
        tree.child(engine.name).child("0").down("broken")
        assert tree.state == "down"
    spans = {each.name: each for each in exporter.get_finished_spans() if each.name.startswith("engine.")}
    sent, handled = spans["engine.send"], spans["engine.handle"]
    assert handled.parent is not None
    assert sent.context is not None
    assert handled.parent.span_id == sent.context.span_id
    assert f"{sent.context.trace_id:032x}" in event.headers["traceparent"]


async def test_a_program_that_starts_again_finds_its_aggregates(place: EnginePlace) -> None:
    """N10, N21: states, versions and remembered ids outlive the process, in its folder and in the log."""
    for number in (1, 2):
        engine, counter = bank_engine(place.name), counter_engine(f"{place.name}-counter")
        async with _node(place, "n1", engine, counter) as hr:
            done = await hr.engine(engine).aggregate("a").send(Deposit(1), command_id="x")
            assert (done.version, done.is_repeated) == (1, number == 2)
            assert (await hr.engine(counter).aggregate("c").send(Deposit(2))).version == number


class Ledger(Keyspace, name="ledger", partitions=1, store="memory"):
    """A keyspace with a state and a topic that engines may have, too."""

    state_: State[str, int] = state(topic="ledger-state")


@embedded_only
@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([bank_engine("bank"), counter_engine("bank")], "engine is 'bank', but two engines have this name"),
        ([bank_engine("ledger", state_topic="other"), Ledger], "'ledger', but an engine and a keyspace have this name"),
        ([bank_engine("one", state_topic="s"), bank_engine("two", state_topic="s")], "'s', but engine 'one' has it"),
        ([bank_engine("one"), bank_engine("two", state_topic="one")], "'one', but engine 'one' has it"),
        ([bank_engine("one", command_topic="c"), bank_engine("two", command_topic="c")], "'c', but engine 'one' has"),
        ([Ledger, bank_engine("one", state_topic="ledger-state")], "'state_' of keyspace 'ledger' has it"),
        ([Ledger, bank_engine("ledger-replies")], "'replies' of keyspace 'ledger' has it"),
    ],
)
async def test_parts_of_a_node_share_neither_names_nor_topics(place: EnginePlace, parts: list[Any], says: str) -> None:
    """One of the two would not be served, or would take the records of the other for its own."""
    async with connect(settings=place.settings("n1")) as hr:
        with pytest.raises(BadArgument, match=says):
            async with hr.node(*parts):
                pass
        assert not [topic for topic in await hr.log.admin.topics() if not topic.startswith("__")]


@embedded_only
async def test_an_engine_may_be_named_twice(place: EnginePlace) -> None:
    """It is served once, as a keyspace is that belongs to several apps."""
    bank = bank_engine(place.name)
    async with _node(place, "n1", bank, bank) as hr:
        assert (await hr.engine(bank).aggregate("a").send(Deposit(1))).version == 1
